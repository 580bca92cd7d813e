"""Tools of environments: `ToolSet` is what a policy may call: schemas (`schema`), `validation`, canonical keys."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from offline_agent.arguments.foreign import broken, is_plain, self_contained
from offline_agent.envs.tools import schema as reflection
from offline_agent.envs.tools.validation import check_arguments, check_foreign, clean_text, same
from offline_agent.errors import ConfigError, did_you_mean
from offline_agent.records import Action, ToolCall

_SPACE = re.compile(r"\s+")


class ToolSet:
    """Tools by name.

    Args:
        schemas: `{"type": "function", "function": {"name", "description", "parameters"}}`, one per tool.
        defaults: Per tool, the default of each parameter that has one: an argument equal to its default makes the
            same canonical key as leaving it out.
        late: Schemas of tools that exist but are not offered at the start of an episode: valid to call (the
            environment refuses them until it has offered them), absent from `schemas` and from error messages.
        answers_differ: False where the text of a final answer has no effect, so that all answers are one action.

    Attributes:
        schemas: Schemas of the tools that the policy is shown.
        names: Their names, in the same order.
    """

    def __init__(
        self,
        schemas: Iterable[Mapping[str, Any]],
        defaults: Mapping[str, Mapping[str, Any]] | None = None,
        late: Iterable[Mapping[str, Any]] = (),
        answers_differ: bool = True,
    ) -> None:
        self.schemas: tuple[dict[str, Any], ...] = tuple(dict(s) for s in schemas)
        self.names: tuple[str, ...] = tuple(s["function"]["name"] for s in self.schemas)
        self._known = {s["function"]["name"]: s for s in (*self.schemas, *map(dict, late))}
        self._foreign = {name for name, s in self._known.items() if not is_plain(s["function"].get("parameters") or {})}
        self._defaults = dict(defaults or {})
        self._answers_differ = answers_differ

    def to_json(self) -> dict[str, Any]:
        """Return the set as a JSON-serialisable dict."""
        late = [schema for name, schema in self._known.items() if name not in self.names]
        return {"schemas": self.schemas, "defaults": self._defaults, "late": late, "differ": self._answers_differ}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ToolSet:
        """Rebuild a set from `to_json`."""
        return cls(data["schemas"], data["defaults"], data["late"], data["differ"])

    @classmethod
    def of(cls, environment: type) -> ToolSet:
        """Return the tools of an environment class, by reflection as TRL does it.

        Raises:
            ConfigError: One line per tool that cannot be described, naming tool and parameter and how to mend it.
        """
        own = getattr(environment, "_tool_schemas", None)
        if own is not None:  # an adapter's class: its tools are described where they come from
            own = _described(environment, own)
            usual = {one["function"]["name"]: _defaults(one["function"].get("parameters") or {}) for one in own}
            return cls(own, usual, answers_differ=getattr(environment, "_answers_differ", True))
        faults: list[str] = []
        schemas: list[dict[str, Any]] = []
        defaults: dict[str, dict[str, Any]] = {}
        for name, function in reflection.tool_functions(environment).items():
            try:
                schemas.append(reflection.function_schema(function))
                # TRL calls a tool by the function's own name, so an alias would be announced under another name.
                if schemas[-1]["function"]["name"] != name:
                    raise reflection.SchemaFault(f"its function is called {function.__name__!r}; use `def {name}`")
                defaults[name] = reflection.defaults(function)
            except reflection.SchemaFault as fault:
                faults.append(
                    f"environment {environment.__name__}: tool {name!r}: {fault}."
                    f" (If it is no tool, call it `_{name}`: every public method is one.)"
                )
        if faults:
            raise ConfigError(faults)
        return cls(schemas, defaults, answers_differ=getattr(environment, "_answers_differ", True))

    def validate(self, call: ToolCall) -> tuple[dict[str, Any] | None, str | None, str | None]:
        """Return `(coerced arguments, None, None)`, or `(None, fault, detail)`.

        The fault is `unknown_tool` or `bad_arguments`; the detail is for the policy: every fault of the call, what
        was got and allowed, and the tool's signature.
        """
        schema = self._known.get(call.name)
        if schema is None:
            names = ", ".join(self.names) or "none"
            near = did_you_mean(call.name, self.names)
            shown = call.name if len(call.name) <= 80 else call.name[:80] + "..."
            return None, "unknown_tool", f"Error: there is no tool {clean_text(shown)!r}. Tools: {names}.{near}"
        shape = schema["function"].get("parameters") or {}
        arguments, faults = (check_foreign if call.name in self._foreign else check_arguments)(shape, call.arguments)
        if faults:
            detail = f"Error: bad call of {call.name}: {'; '.join(faults)}; usage: {reflection.usage(schema)}"
            return None, "bad_arguments", clean_text(detail)
        return arguments, None, None

    def canonical_key(self, action: Action) -> str:
        """Return the canonical key: turns with the same key are the same action; thoughts do not count.

        `name{arguments}` with the coerced arguments as sorted compact JSON, those equal to their default left out;
        `answer:<text>` with white space collapsed for a final answer; `!<fault>` for everything that is faulty.
        """
        if action.fault is not None:
            return f"!{action.fault}"
        if action.call is None:
            said = clean_text(action.message()["content"]) if self._answers_differ else ""
            return "answer:" + _SPACE.sub(" ", said).strip()
        arguments, fault, _ = self.validate(action.call)
        if arguments is None:
            return f"!{fault}"
        usual = self._defaults.get(action.call.name, {})
        given = {k: v for k, v in arguments.items() if k not in usual or not same(usual[k], v)}
        return action.call.name + json.dumps(given, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _described(environment: type, tools: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the schemas of an adapter's tools, each `self_contained`.

    Raises:
        ConfigError: One line per tool whose schema is none.
    """
    out: list[dict[str, Any]] = []
    faults: list[str] = []
    for tool in tools:
        function = tool["function"]
        shape = self_contained(function.get("parameters") or {})
        if (why := broken(shape)) is not None:
            faults.append(
                f"environment {environment.__name__}: tool {function['name']!r}: its schema is no JSON Schema: {why}; "
                "leave the tool out (env.tools), or mend it where it is described"
            )
        out.append({**tool, "function": {**function, "parameters": shape}})
    if faults:
        raise ConfigError(faults)
    return out


def _defaults(shape: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of the arguments that may be left out."""
    fields = shape.get("properties") or {}
    return {
        name: field["default"]
        for name, field in fields.items()
        if isinstance(field, Mapping) and "default" in field and name not in shape.get("required", ())
    }
