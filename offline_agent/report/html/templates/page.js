"use strict";
(() => {
  const one = (query, root = document) => root.querySelector(query);
  const all = (query, root = document) => [...root.querySelectorAll(query)];
  const tabs = all("#tabs a"), panels = all(".panel"), trees = all("article.tree");

  // -- tabs: links become tabs only where scripts run ------------------------------------------------------------
  const bar = one("#tabs");
  bar.setAttribute("role", "tablist");
  tabs.forEach(tab => {
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", tab.hash.slice(1));
    const panel = one(tab.hash);
    panel.setAttribute("role", "tabpanel");
    panel.setAttribute("aria-labelledby", tab.id);
  });
  function open(name) {
    tabs.forEach(tab => {
      const here = tab.hash === "#" + name;
      tab.setAttribute("aria-selected", here);
      tab.tabIndex = here ? 0 : -1;
    });
    panels.forEach(panel => { panel.hidden = panel.id !== name; });
    if (name === "trees") trees.filter(tree => !tree.hidden).forEach(centre);
  }
  bar.addEventListener("keydown", event => {
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    const at = tabs.indexOf(document.activeElement);
    const next = event.key === "Home" ? 0 : event.key === "End" ? tabs.length - 1
      : step && at >= 0 ? (at + step + tabs.length) % tabs.length : -1;
    if (next < 0) return;
    event.preventDefault();
    location.hash = tabs[next].hash;
    tabs[next].focus();
  });

  // -- trees -----------------------------------------------------------------------------------------------------
  const treeForm = one('form[data-for="trees"]');
  function showTree(number) {
    trees.forEach(tree => { tree.hidden = tree.dataset.number !== String(number); });
    treeForm.elements.tree.value = number;
  }
  function clean(copy) {
    all("[id]", copy).forEach(part => part.removeAttribute("id"));
    return copy;
  }
  function centre(tree) {
    const link = one(".drawing a.chosen", tree);
    if (!link) return;
    const canvas = one(".canvas", tree), box = one(".dot", link).getBoundingClientRect();
    const frame = canvas.getBoundingClientRect();
    if (box.left < frame.left || box.right > frame.right - 90) canvas.scrollLeft += box.left - frame.left - frame.width / 3;
    if (box.top < frame.top || box.bottom > frame.bottom) canvas.scrollTop += box.top - frame.top - frame.height / 3;
  }
  function showNode(tree, n) {
    const panel = one(`.node[data-n="${n}"]`, tree), detail = one(".detail", tree);
    if (!panel) return;
    all(".drawing a.chosen", tree).forEach(link => link.classList.remove("chosen"));
    const link = one(`.drawing a[data-n="${n}"]`, tree);
    if (link) link.classList.add("chosen");
    centre(tree);
    const way = [];
    for (let at = panel; at; at = at.dataset.up === undefined ? null : one(`.node[data-n="${at.dataset.up}"]`, tree)) way.unshift(at);
    const own = clean(one(":scope > .own", panel).cloneNode(true));
    one(".said", own).remove();
    const talk = document.createElement("details"), head = document.createElement("summary");
    head.textContent = `Conversation so far, ${way.length - 1} steps`;
    talk.append(head);
    way.forEach(node => talk.append(clean(one(":scope > .own > .said", node).cloneNode(true))));
    talk.open = true;
    const title = document.createElement("h4");
    title.append(one(":scope > summary", panel).textContent);
    detail.replaceChildren(title, own, talk);
    detail.scrollTop = 0;
  }
  const go = (tree, n) => { location.hash = `tree=${encodeURIComponent(tree.dataset.tree)}&node=${n}`; };
  trees.forEach(tree => {
    tree.addEventListener("click", event => {
      const link = event.target.closest("a[data-n]");
      if (!link || moved) { if (moved) event.preventDefault(); return; }
      event.preventDefault();
      go(tree, link.dataset.n);
    });
    tree.addEventListener("pointerover", event => {
      const link = event.target.closest(".drawing a");
      if (!link || one("title", link)) return;
      const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
      title.textContent = link.getAttribute("aria-label");
      link.prepend(title);
    });
    drag(one(".canvas", tree));
  });
  let moved = false;
  function drag(canvas) {
    let from = null;
    canvas.addEventListener("pointerdown", event => {
      moved = false;
      if (event.pointerType === "mouse" && event.button === 0) from = [event.clientX, event.clientY, canvas.scrollLeft, canvas.scrollTop];
    });
    window.addEventListener("pointermove", event => {
      if (!from) return;
      const x = event.clientX - from[0], y = event.clientY - from[1];
      if (Math.abs(x) + Math.abs(y) > 4) { moved = true; canvas.classList.add("drag"); }
      if (moved) { canvas.scrollLeft = from[2] - x; canvas.scrollTop = from[3] - y; }
    });
    window.addEventListener("pointerup", () => { from = null; canvas.classList.remove("drag"); setTimeout(() => { moved = false; }); });
    canvas.addEventListener("dragstart", event => event.preventDefault());
  }
  if (treeForm) {
    treeForm.hidden = false;
    treeForm.elements.tree.addEventListener("change", event => {
      go(trees.find(tree => tree.dataset.number === event.target.value), 0);
    });
    treeForm.addEventListener("click", event => {
      const button = event.target.closest("[data-zoom]");
      if (!button) return;
      const tree = trees.find(each => !each.hidden), svg = one(".drawing", tree), view = svg.viewBox.baseVal;
      const fit = (one(".canvas", tree).clientWidth - 2) / view.width;
      const now = svg.getAttribute("width") / view.width;
      const scale = {"-1": now / 1.3, 0: Math.min(1, fit), 1: now * 1.3}[button.dataset.zoom];
      svg.setAttribute("width", view.width * scale);
      svg.setAttribute("height", view.height * scale);
    });
    treeForm.addEventListener("submit", event => event.preventDefault());
  }

  // -- filters ---------------------------------------------------------------------------------------------------
  function filtered(name, fits) {
    const form = one(`form[data-for="${name}"]`);
    if (!form) return;
    form.hidden = false;
    const items = all(`#${name} > article`);
    const apply = () => {
      const left = items.filter(item => { const fit = fits(item.dataset, form.elements); item.hidden = !fit; return fit; });
      one("output", form).textContent = `${left.length} of ${items.length} shown`;
    };
    form.addEventListener("input", apply);
    form.addEventListener("submit", event => event.preventDefault());
    apply();
  }
  const part = (text, of) => text.toLowerCase().includes(of.toLowerCase());
  filtered("pairs", (pair, want) => (!want.kind.value || pair.kind === want.kind.value)
    && (want.margin.value === "" || Number(pair.margin) >= Number(want.margin.value)) && part(pair.task, want.task.value));
  const pairForm = one('form[data-for="pairs"]');

  // -- attempts side by side -------------------------------------------------------------------------------------
  const sideForm = one('form[data-for="evaluation"]');
  function lay() {
    const picked = [sideForm.elements.left, sideForm.elements.right].map(select => {
      const of = all("article.task").find(task => task.dataset.task === sideForm.elements.task.value);
      const copy = clean(all(".attempt", of)[select.selectedIndex].cloneNode(true));
      all("details", copy).slice(0, 1).forEach(box => { box.open = true; });
      return copy;
    });
    one("#sides").replaceChildren(...picked);
  }
  function attemptsOf() {
    const of = all("article.task").find(task => task.dataset.task === sideForm.elements.task.value);
    const names = all(".attempt", of).map(attempt => attempt.dataset.who);
    const other = names.findIndex(name => name.split(":")[0] + name.split(",")[0] !== names[0].split(":")[0] + names[0].split(",")[0]);
    [sideForm.elements.left, sideForm.elements.right].forEach((select, at) => {
      select.replaceChildren(...names.map(name => { const option = document.createElement("option"); option.textContent = name; return option; }));
      select.selectedIndex = at ? (other > 0 ? other : Math.min(1, names.length - 1)) : 0;
    });
    lay();
  }
  if (sideForm) {
    sideForm.hidden = false;
    sideForm.elements.task.addEventListener("change", attemptsOf);
    sideForm.elements.left.addEventListener("change", lay);
    sideForm.elements.right.addEventListener("change", lay);
    sideForm.addEventListener("submit", event => event.preventDefault());
    attemptsOf();
  }

  all('.pair a[href^="#tree="]').forEach(link => {
    const there = new URLSearchParams(link.hash.slice(1)).get("tree");
    if (!trees.some(tree => tree.dataset.tree === there)) link.replaceWith("its tree is not among those shown");
  });

  // -- links into the page ---------------------------------------------------------------------------------------
  function follow() {
    const text = location.hash.slice(1), want = new URLSearchParams(text);
    const known = tabs.find(tab => tab.hash === "#" + text);
    if (want.has("tree") && treeForm) {
      open("trees");
      const tree = trees.find(each => each.dataset.tree === want.get("tree"));
      if (tree) { showTree(tree.dataset.number); showNode(tree, want.get("node") || "0"); }
    } else if (want.has("pair") && pairForm) {
      open("pairs");
      const pair = document.getElementById("pair-" + want.get("pair"));
      if (pair) { pair.hidden = false; pair.scrollIntoView(); pair.tabIndex = -1; pair.focus({preventScroll: true}); }
    } else if (want.has("task") && sideForm) {
      open("evaluation");
      if ([...sideForm.elements.task.options].some(option => option.value === want.get("task"))) {
        sideForm.elements.task.value = want.get("task");
        attemptsOf();
      }
      sideForm.scrollIntoView();
    } else if (known) {
      open(text);
      scrollTo(0, 0);
    } else if (!text) open("overview");
  }
  if (treeForm && trees.length) { showTree(trees[0].dataset.number); showNode(trees[0], "0"); }
  window.addEventListener("hashchange", follow);
  open("overview");
  follow();
})();
