// The page as text with element numbers, and what the tools need to know of an element. Run once in each new document,
// before the page's own scripts; it keeps its state out of their sight.
(() => {
  if (window.__agent) return;
  try {
    localStorage.clear(); // an episode leaves nothing for the next one
    sessionStorage.clear();
  } catch {} // documents that have none
  const HIDDEN = new Set(["reward-display", "sync-task-cover", "click-canvas", "query"]); // MiniWoB's frame of a task
  const SKIPPED = new Set(["SCRIPT", "STYLE", "NOSCRIPT", "TEMPLATE", "OPTION", "OPTGROUP", "CANVAS", "BR", "HR"]);
  const BUTTONS = new Set(["button", "submit", "reset", "image"]);
  const PICKED = new Set(["date", "time", "month", "week", "datetime-local", "color", "range"]);
  const SHARES = [0.5, 0.25, 0.75, 0.1, 0.9]; // of an element's width and height, the middle first
  const POINTS = SHARES.flatMap((right) => SHARES.map((down) => [right, down]));
  const LONGEST = 200; // characters of one text in a view
  const numbers = new WeakMap();
  const elements = [null]; // element 1 is the first that was shown

  const clean = (text) => (text || "").replace(/\s+/g, " ").trim();
  const quoted = (text, cut) => JSON.stringify(cut && text.length > LONGEST ? text.slice(0, LONGEST) + "…" : text);

  function number(element) {
    if (!numbers.has(element)) {
      numbers.set(element, elements.length);
      elements.push(new WeakRef(element));
    }
    return numbers.get(element);
  }

  function kind(element) {
    const tag = element.tagName.toLowerCase();
    if (tag === "input") {
      const type = (element.type || "text").toLowerCase();
      if (BUTTONS.has(type)) return "button";
      return type === "checkbox" || type === "radio" ? type : type === "hidden" || type === "file" ? "" : "textbox";
    }
    if (element.isContentEditable) return "textbox";
    if (tag === "select" || tag === "button" || tag === "textarea") return tag;
    const role = element.getAttribute("role");
    if (["button", "tab", "menuitem", "option", "link", "treeitem", "checkbox", "radio"].includes(role)) return role;
    return tag === "a" ? "link" : "";
  }

  const pointed = (element) => getComputedStyle(element).cursor === "pointer";
  const drawn = (element) => [...element.getClientRects()].some((box) => box.width > 0 && box.height > 0);

  function label(element) {
    const own = element.getAttribute("aria-label") || element.getAttribute("placeholder");
    if (own) return clean(own);
    const labels = element.labels ? [...element.labels].map((one) => clean(one.textContent)).filter(Boolean) : [];
    if (labels.length) return labels.join(" ");
    if (element.tagName === "INPUT" && BUTTONS.has(element.type)) return clean(element.value || element.type);
    return clean(element.getAttribute("title") || element.getAttribute("alt"));
  }

  function named(element, what) {
    return what + (element.id && !/^ui-id-/.test(element.id) ? "#" + element.id : "");
  }

  // one line of an element that can be acted on
  function line(element, what, cut) {
    const parts = [`[${number(element)}] ${what}`];
    const field = what === "textbox" || what === "textarea" || what === "select" || what === "checkbox" || what === "radio";
    const text = field ? label(element) : clean(element.textContent) || label(element);
    if (field && !text) parts[0] = `[${number(element)}] ${named(element, what)}`;
    if (!field && !text) {
      const look = [...element.classList].join(".") || element.id;
      if (look) parts.push("." + look);
    }
    if (text) parts.push(quoted(text, cut));
    if (what === "textbox" || what === "textarea") {
      const value = element.isContentEditable ? clean(element.textContent) : element.value;
      if (value) parts.push("= " + quoted(value, cut));
    }
    if (what === "select") {
      const options = [...element.options].map((one) => quoted(clean(one.textContent), cut));
      const chosen = [...element.selectedOptions].map((one) => quoted(clean(one.textContent), cut));
      parts.push(`= ${chosen.join(", ") || '""'} of ${options.join(", ")}`);
    }
    if (element.checked || element.getAttribute("aria-checked") === "true") parts.push("(checked)");
    const selected = element.getAttribute("aria-selected") === "true" || element.classList.contains("selected");
    if (selected) parts.push("(selected)");
    if (element.getAttribute("aria-expanded") === "true") parts.push("(expanded)");
    if (element.disabled) parts.push("(disabled)");
    return parts.join(" ");
  }

  // shapes and colours have no text: their look is told
  function look(element) {
    const style = getComputedStyle(element);
    const tag = element.tagName.toLowerCase();
    if (element instanceof SVGElement) {
      if (tag === "svg" || tag === "g" || tag === "defs") return "";
      return `[${number(element)}] ${tag} ${element.getAttribute("fill") || style.fill}`;
    }
    const classes = [...element.classList].join(".");
    const colour = style.backgroundColor === "rgba(0, 0, 0, 0)" ? "" : " " + (element.style.backgroundColor || "");
    if (!pointed(element) && !element.classList.length) return "";
    return `[${number(element)}] ${tag}${classes ? "." + classes : ""}${colour}`.trimEnd();
  }

  function walk(element, lines, cut) {
    if (SKIPPED.has(element.tagName) || HIDDEN.has(element.id)) return;
    const style = getComputedStyle(element);
    if (style.display === "none") return;
    const shown = style.visibility !== "hidden" && style.opacity !== "0" && drawn(element);
    const what = kind(element);
    if (what && shown) {
      lines.push(line(element, what, cut));
      if (what !== "tab" && what !== "menuitem" && what !== "treeitem") return;
      for (const child of element.children) walk(child, lines, cut);
      return;
    }
    if (element.tagName === "LABEL" && element.control) {
      for (const child of element.children) walk(child, lines, cut);
      return;
    }
    if (!element.children.length) {
      const text = clean(element.textContent);
      if (!shown) return;
      if (text) lines.push(`[${number(element)}] ${pointed(element) ? "link" : "text"} ${quoted(text, cut)}`);
      else if (look(element)) lines.push(look(element));
      return;
    }
    let held = "";
    const flush = () => {
      if (held && shown) lines.push("text " + quoted(held, cut));
      held = "";
    };
    for (const child of element.childNodes) {
      if (child.nodeType === Node.TEXT_NODE) held = clean(held + " " + child.data);
      else if (child.nodeType === Node.ELEMENT_NODE) {
        flush();
        walk(child, lines, cut);
      }
    }
    flush();
  }

  function found(wanted) {
    const element = elements[wanted] && elements[wanted].deref();
    return element && element.isConnected && drawn(element) ? element : null;
  }

  const agent = {
    // the page's lines: all of it, or one element and what is in it
    view(wanted = 0, cut = true) {
      const lines = [];
      const root = wanted ? found(wanted) : document.body;
      if (!root) return null;
      if (root !== document.body && (kind(root) || !root.children.length)) {
        const what = kind(root);
        lines.push(what ? line(root, what, cut) : `[${wanted}] text ${quoted(clean(root.textContent), cut)}`);
      } else if (root) walk(root, lines, cut);
      return lines;
    },

    // where an element is to be clicked, and what it is: {x, y, kind, picked, in_form, leaves} or {fault}
    spot(wanted) {
      const element = found(wanted);
      if (!element) return { fault: `there is no element ${wanted} on the page` };
      if (element.disabled) return { fault: `element ${wanted} is disabled` };
      element.scrollIntoView({ block: "center", inline: "center" });
      let reached = null, over = null;
      for (const [right, down] of POINTS) {
        for (const box of element.getClientRects()) {
          const x = box.x + box.width * right, y = box.y + box.height * down;
          const hit = document.elementFromPoint(x, y);
          const labels = element.labels ? [...element.labels] : [];
          if (hit && [element, ...labels].some((one) => one.contains(hit)) && !reached) reached = { x, y };
          over = over || hit;
        }
        if (reached) break;
      }
      if (!reached) {
        const by = over && numbers.has(over) ? ` by element ${numbers.get(over)}` : "";
        return { fault: `element ${wanted} is covered${by}` };
      }
      const type = (element.getAttribute("type") || "").toLowerCase();
      const link = element.closest("a[href]");
      const submits = (element.tagName === "BUTTON" || BUTTONS.has(type)) && element.form && type !== "button" && type !== "reset";
      return {
        ...reached, kind: kind(element), picked: PICKED.has(type), in_form: Boolean(element.form),
        focused: document.activeElement === element,
        leaves: Boolean(submits || (link && !link.getAttribute("href").startsWith("#"))),
      };
    },

    clear(wanted) {
      const element = found(wanted);
      if (element && element.select) element.select();
      else if (element) getSelection().selectAllChildren(element);
    },

    // the value of a field that is picked rather than typed: a date, a colour, a number on a scale
    set(wanted, value) {
      const element = found(wanted);
      element.value = value;
      element.dispatchEvent(new Event("input", { bubbles: true }));
      element.dispatchEvent(new Event("change", { bubbles: true }));
      return element.value;
    },

    // chooses an option of a list by its text; null or a fault
    choose(wanted, text) {
      const element = found(wanted);
      if (!element) return `there is no element ${wanted} on the page`;
      if (element.tagName !== "SELECT") return `element ${wanted} is no list of options`;
      if (element.disabled) return `element ${wanted} is disabled`;
      const options = [...element.options];
      const option = options.find((one) => clean(one.textContent) === clean(text)) || options.find((one) => one.value === text && text);
      if (!option) {
        const allowed = options.map((one) => clean(one.textContent)).filter(Boolean).map((one) => quoted(one, false));
        return `no such option, allowed: ${allowed.join(", ")}`;
      }
      element.focus();
      if (!element.multiple) element.value = option.value;
      option.selected = true;
      element.dispatchEvent(new Event("input", { bubbles: true }));
      element.dispatchEvent(new Event("change", { bubbles: true }));
      return null;
    },
  };
  Object.defineProperty(window, "__agent", { value: Object.freeze(agent), enumerable: false });
})();
