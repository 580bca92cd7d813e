"""Loading of configurations: YAML and `key=value` become validated models; all faults are reported at once."""

from __future__ import annotations

import os
import re
import types
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from offline_agent.errors import ConfigError, did_you_mean
from offline_agent.outgoing import remember, remember_environment, remember_variable
from offline_agent.sections import MOST, Plugged
from offline_agent.store.files import open_text


class Key(NamedTuple):
    """One key.

    Attributes:
        path: Dotted path, e.g. `search.simulations`.
        allowed: Allowed values in words.
        default: The default, as it is typed.
        about: Its meaning.
        free: It may differ when a run is resumed.
        text: Its values are texts.
        grows: Commands whose runs may be resumed with more of it.
    """

    path: str
    allowed: str
    default: str
    about: str
    free: bool
    text: bool
    grows: tuple[str, ...] = ()


def free_keys(model: type[BaseModel]) -> tuple[str, ...]:
    """Return the keys that may differ when a run is resumed."""
    return tuple(entry.path for entry in keys(model) if entry.free)


def growing_keys(model: type[BaseModel], command: str) -> tuple[str, ...]:
    """Return the keys of which a run of a command may be resumed with more."""
    return tuple(entry.path for entry in keys(model) if command in entry.grows)


def section_of(field: FieldInfo | None) -> type[BaseModel] | None:
    """Return the model of a field that is a section; None where it is a key."""
    annotation = None if field is None else field.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def keys(model: type[BaseModel], prefix: str = "") -> list[Key]:
    """Return every key of a model, in order; arguments of a plugged section are `<section>.<argument>`."""
    found: list[Key] = []
    for name, field in model.model_fields.items():
        if (inner := section_of(field)) is not None:
            found += keys(inner, f"{prefix}{name}.")
            continue
        path = prefix.rstrip(".") if name == "name" and issubclass(model, Plugged) else prefix + name
        extra: Any = field.json_schema_extra or {}
        grows, text = tuple(extra.get("grows", ())), str in _options(field.annotation)
        default, about = _typed(field.get_default()), field.description or ""
        found.append(Key(path, _allowed(field), default, about, bool(extra.get("free")), text, grows))
    if model.model_config.get("extra") == "allow":
        found.append(Key(f"{prefix}<argument>", "any", "", getattr(model, "argument_note", ""), False, False))
    return found


def _options(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _allowed(field: FieldInfo) -> str:
    """Return the values that a key allows, in words."""
    words = []
    for option in _options(field.annotation):
        if option is type(None):
            words.append("null")
        elif get_origin(option) is Literal:
            words.append(" | ".join(get_args(option)))
        elif get_origin(option) is tuple:
            item = get_args(option)[0]
            words.append("list of " + (" | ".join(get_args(item)) or {str: "texts", float: "numbers"}[item]))
        else:
            words.append({int: "integer", float: "number", bool: "true | false", str: "text"}[option] + _limits(field))
    return " or ".join(words)


def _limits(field: FieldInfo) -> str:
    parts = []
    for limit in field.metadata:
        for name, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<")):
            bound = getattr(limit, name, None)
            if bound is not None and bound != MOST:  # the general bound is stated once, in docs/configuration.md
                parts.append(f" {sign} {bound}")
    return " and".join(parts)


def _typed(value: Any) -> str:
    """Return a default as a user types it on the command line."""
    if isinstance(value, tuple):
        return "[" + ",".join(map(str, value)) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


Model = TypeVar("Model", bound=BaseModel)

_INTERPOLATION = re.compile(r"(\\*)\$\{")


def load(
    model: type[Model],
    file: str | Path | None = None,
    overrides: Sequence[str] = (),
    stored: Mapping[str, Any] | None = None,
) -> Model:
    """Return the configuration: the model's defaults, then the file, or the stored configuration, then the overrides.

    Its secrets are remembered.

    Args:
        model: A pydantic model made of `Section`s.
        file: A YAML file; None = none.
        overrides: `key=value` with dotted keys; values are read as YAML, and as they stand where the key is a text.
        stored: A resolved configuration of an earlier run; None = none.

    Raises:
        ConfigError: With every fault found, not just the first.
    """
    faults: list[str] = []
    data = _read(Path(file), faults) if file is not None else escaped(stored or {})
    known = {entry.path: entry for entry in keys(model)}
    for override in overrides:
        _override(model, data, override, known, faults)
    remember_environment(os.environ)
    remember(data)
    try:
        resolved = OmegaConf.to_container(OmegaConf.create(data), resolve=True)
    except (OmegaConfBaseException, yaml.YAMLError) as error:
        raise ConfigError([*faults, f"configuration: {str(error).splitlines()[0]}"]) from error
    remember(resolved)
    try:
        config = model.model_validate(resolved)
    except ValidationError as error:
        faults += [line for entry in error.errors(include_url=False) for line in _faults(entry, known)]
    if faults:
        raise ConfigError(list(dict.fromkeys(faults)))
    return config


def read_value(raw: str) -> Any:
    """Return the value of a text that was typed after `key=`: read as YAML, the text itself where it is none.

    Interpolations (`${...}`) are left as they are, and so is a text that ends with a colon, a mapping in YAML.
    """
    if raw.endswith(":"):
        return raw
    try:
        return OmegaConf.to_container(OmegaConf.from_dotlist([f"value={raw}"]), resolve=False)["value"]  # type: ignore[index, call-overload]
    except (yaml.YAMLError, OmegaConfBaseException, ValueError):
        return raw


def escaped(value: Any) -> Any:
    """Return a JSON value in which OmegaConf finds no interpolation: `${` is written as `\\${`."""
    if isinstance(value, Mapping):
        return {name: escaped(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [escaped(inner) for inner in value]
    return _INTERPOLATION.sub(lambda found: rf"{2 * found[1]}\${{", value) if isinstance(value, str) else value


def to_yaml(config: BaseModel) -> str:
    """Return the configuration as YAML that `load` reads back to an equal one."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)


def _variable(name: str, *default: Any) -> Any:
    """Resolve `${oc.env:NAME}`; what the environment gave is remembered as a secret (`outgoing`)."""
    if name in os.environ:
        remember_variable(name, os.environ[name])
    return oc.env(name, *default)


OmegaConf.register_resolver("oc.env", _variable, replace=True)


def _read(file: Path, faults: list[str]) -> dict[str, Any]:
    try:
        with open_text(file) as stream:
            data = OmegaConf.to_container(OmegaConf.load(stream), resolve=False)
    except FileNotFoundError:
        near = did_you_mean(file.name, [entry.name for entry in file.parent.glob("*.y*ml")])
        faults.append(f"--config: there is no file {str(file)!r}.{near}")
        return {}
    except (OSError, ValueError, yaml.YAMLError, OmegaConfBaseException) as error:
        faults.append(f"--config: {file} cannot be read as YAML: {' '.join(str(error).split())}")
        return {}
    if not isinstance(data, dict) or not all(isinstance(name, str) for name in data):
        faults.append(f"--config: {file} must hold keys and values, got {type(data).__name__}")
        return {}
    return {str(name): value for name, value in data.items()}


def _override(
    model: type[BaseModel], data: dict[str, Any], override: str, known: dict[str, Key], faults: list[str]
) -> None:
    path, equals, raw = override.partition("=")
    parts = path.split(".")
    if not equals or not all(parts):
        faults.append(f"{override!r}: write key=value, e.g. seed=1.{did_you_mean(path, known)}")
        return
    value = read_value(raw)
    entry = known.get(path) or known.get(path.removesuffix(".name"))
    whole = isinstance(value, dict) and _plugged(_field_model(model, path))  # env={name: ..., argument: ...}
    if entry is not None and entry.text and not whole and not isinstance(value, str | None):
        value = raw  # a text that looks like a number or a list
    _put(model, data, parts, value, faults, path)


def _put(
    model: type[BaseModel], data: dict[str, Any], parts: list[str], value: Any, faults: list[str], path: str
) -> None:
    """Set a dotted key; a plugged section keeps its arguments when only its name is given, and the reverse."""
    here: type[BaseModel] | None = model
    for part in parts[:-1]:
        here = _field_model(here, part)
        inner = data.get(part)
        if not isinstance(inner, dict):
            inner = data[part] = {"name": inner} if isinstance(inner, str) and _plugged(here) else {}
        data = inner
    last = _field_model(here, parts[-1])
    there = data.get(parts[-1])
    if last is not None and isinstance(value, dict) and isinstance(there, dict):
        there.update(value)
    elif _plugged(last) and isinstance(value, str) and isinstance(there, dict):
        there["name"] = value
    elif last is not None and not _plugged(last) and not isinstance(value, dict):
        first = next(iter(last.model_fields), "<argument>")
        faults.append(f"{path}: got {value!r}, but it is a section; set {path}.{first}=...")
    else:
        data[parts[-1]] = value


def _field_model(model: type[BaseModel] | None, name: str) -> type[BaseModel] | None:
    return None if model is None else section_of(model.model_fields.get(name))


def _plugged(model: type[BaseModel] | None) -> bool:
    return model is not None and issubclass(model, Plugged)


def _faults(error: ErrorDetails, known: dict[str, Key]) -> list[str]:
    """Return the faults of one of pydantic's errors; a check of several keys gives a line each."""
    if error["type"] != "value_error":
        return [_fault(error, known)]
    text, path = error["msg"].removeprefix("Value error, "), ".".join(map(str, error["loc"]))
    head = text.partition(".")[0]
    if head != path and head in error["loc"] and any(name.startswith(f"{path}.") for name in known):
        text = re.sub(rf"\b{head}\.", f"{path}.", text)  # a section that this command has in another place
    return text.splitlines()


def _fault(error: ErrorDetails, known: dict[str, Key]) -> str:
    """Return one line for one of pydantic's errors: what, got, allowed, how to mend."""
    parts = [str(part) for part in error["loc"]]
    path = ".".join(parts)
    if error["type"] == "extra_forbidden":
        return f"{path}: unknown key.{_nearest(path, known)}"
    # a list's element, or a branch of a union, comes with more parts than the key has
    for end in range(len(parts), 0, -1):
        entry = known.get(".".join(parts[:end])) or known.get(".".join(parts[:end]).removesuffix(".name"))
        if entry is not None:
            near = did_you_mean(error["input"], entry.allowed.split()) if isinstance(error["input"], str) else ""
            near = near or (f" No number is above {MOST}." if error["type"] == "less_than_equal" else "")
            return f"{entry.path}: got {error['input']!r}, allowed: {entry.allowed}.{near}"
    if inside := [name for name in known if name.startswith(path + ".")]:
        return f"{path}: got {error['input']!r}, but it is a section; set {inside[0]}=..."
    return f"{path}: {error['msg']}, got {error['input']!r}"


def _nearest(path: str, known: dict[str, Key]) -> str:
    sections = {name.rsplit(".", depth)[0] for name in known for depth in (1, 2) if "." in name}
    ends = {name.rsplit(".", 1)[-1]: name for name in known}
    found = get_close_matches(path.rsplit(".", 1)[-1], ends, n=1)
    other = f" Did you mean {ends[found[0]]!r}?" if found else " --help lists the keys."
    return did_you_mean(path, [*(name for name in known if "<" not in name), *sorted(sections)]) or other
