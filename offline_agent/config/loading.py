"""YAML and `key=value` to validated models; every fault at once, with the nearest valid key."""

from __future__ import annotations

import textwrap
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from offline_agent.config.base import MOST, Plugged, Section, key, masked, section
from offline_agent.config.build_prefs import BuildPrefsConfig, PolicySection, RunConfig, TasksSection
from offline_agent.config.evaluate import EvaluateConfig
from offline_agent.config.iterate import IterateConfig
from offline_agent.config.refine_grpo import RefineGrpoConfig
from offline_agent.config.training import (
    AnchorSection,
    BatchSection,
    CheckpointSection,
    DpoSection,
    GuardSection,
    LoraSection,
    ModelSection,
    OptimizerSection,
    ScratchSection,
    TrainableConfig,
    TrainConfig,
    TrainDpoConfig,
    TrainSftConfig,
)
from offline_agent.errors import ConfigError, did_you_mean

__all__ = [
    "AnchorSection", "BatchSection", "BuildPrefsConfig", "CheckpointSection", "DpoSection", "EvaluateConfig",
    "GuardSection", "IterateConfig", "Key", "LoraSection", "ModelSection", "OptimizerSection", "Plugged",
    "PolicySection", "RefineGrpoConfig", "RunConfig", "ScratchSection", "Section", "TasksSection", "TrainConfig",
    "TrainDpoConfig", "TrainSftConfig", "TrainableConfig", "free_keys", "help_text", "key", "keys", "load", "masked",
    "section", "to_yaml",
]  # fmt: skip

Model = TypeVar("Model", bound=BaseModel)


class Key(NamedTuple):
    """One key: dotted path, allowed values in words, default as typed, meaning, and whether it may differ on resume."""

    path: str
    allowed: str
    default: str
    about: str
    free: bool
    text: bool


def load(model: type[Model], file: str | Path | None = None, overrides: Sequence[str] = ()) -> Model:
    """Return the configuration: the model's defaults, then the file, then the overrides.

    Args:
        model: A pydantic model made of `Section`s.
        file: A YAML file; None = none.
        overrides: `key=value` with dotted keys; values are read as YAML, and as they stand where the key is a text.

    Raises:
        ConfigError: With every fault found, not just the first.
    """
    faults: list[str] = []
    data = _read(Path(file), faults) if file is not None else {}
    known = {entry.path: entry for entry in keys(model)}
    for override in overrides:
        _override(model, data, override, known, faults)
    try:
        resolved = OmegaConf.to_container(OmegaConf.create(data), resolve=True)
    except (OmegaConfBaseException, yaml.YAMLError) as error:
        raise ConfigError([*faults, f"configuration: {str(error).splitlines()[0]}"]) from error
    try:
        config = model.model_validate(resolved)
    except ValidationError as error:
        faults += [_fault(model, entry, known) for entry in error.errors(include_url=False)]
    if faults:
        raise ConfigError(list(dict.fromkeys(faults)))
    return config


def keys(model: type[BaseModel], prefix: str = "") -> list[Key]:
    """Return every key of a model, in order; constructor arguments of a plugged part as `<section>.<argument>`."""
    return list(_keys(model, prefix))


def free_keys(model: type[BaseModel]) -> tuple[str, ...]:
    """Return the keys that may differ when a run is resumed."""
    return tuple(entry.path for entry in keys(model) if entry.free)


def to_yaml(config: BaseModel) -> str:
    """Return the configuration as YAML that `load` reads back to an equal one."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)


def help_text(model: type[BaseModel], width: int = 120) -> str:
    """Return a table of every key with its type, default and meaning, `width` characters wide."""
    rows = [("key", "type", "default", "meaning"), *((k.path, k.allowed, k.default, k.about) for k in keys(model))]
    first = max(len(row[0]) for row in rows)
    second = min(30, max(len(row[1]) for row in rows))
    third = min(22, max(len(row[2]) for row in rows))
    last = max(20, width - first - second - third - 6)
    lines: list[str] = []
    for row in rows:
        sized = zip(row[1:], (second, third, last), strict=True)
        columns = [[row[0]], *(textwrap.wrap(text, size) or [""] for text, size in sized)]
        for line in range(max(map(len, columns))):
            cells = [column[line] if line < len(column) else "" for column in columns]
            lines.append(f"{cells[0]:{first}}  {cells[1]:{second}}  {cells[2]:{third}}  {cells[3]}".rstrip())
    return "\n".join(lines)


def _keys(model: type[BaseModel], prefix: str) -> Iterator[Key]:
    for name, field in model.model_fields.items():
        inner = _model(field.annotation)
        if inner is not None:
            yield from _keys(inner, f"{prefix}{name}.")
            continue
        plugged = name == "name" and issubclass(model, Plugged)
        extra = field.json_schema_extra
        yield Key(
            prefix.rstrip(".") if plugged else prefix + name,
            _describe(field),
            _typed(field.get_default()),
            field.description or "",
            isinstance(extra, dict) and bool(extra.get("free")),
            str in _options(field.annotation),
        )
    if model.model_config.get("extra") == "allow":
        yield Key(f"{prefix}<argument>", "any", "", getattr(model, "argument_note", ""), False, False)


def _model(annotation: Any) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _options(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _describe(field: FieldInfo) -> str:
    """Return what a key allows, in words."""
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
            if bound is not None and bound != MOST:  # said once in the documents, not in every line of --help
                parts.append(f" {sign} {bound}")
    return " and".join(parts)


def _typed(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ",".join(map(str, value)) + "]"
    return {None: "null", True: "true", False: "false"}.get(value, str(value)) if not _is_number(value) else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _read(file: Path, faults: list[str]) -> dict[str, Any]:
    try:
        data = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
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
    try:
        value = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={raw}"]), resolve=False)["value"]  # type: ignore[index, call-overload]
    except (yaml.YAMLError, OmegaConfBaseException, ValueError):
        value = raw
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
    field = model.model_fields.get(name) if model is not None else None
    return _model(field.annotation) if field is not None else None


def _plugged(model: type[BaseModel] | None) -> bool:
    return model is not None and issubclass(model, Plugged)


def _fault(model: type[BaseModel], error: ErrorDetails, known: dict[str, Key]) -> str:
    """Return one line for one of pydantic's errors: what, got, allowed, how to mend."""
    parts = [str(part) for part in error["loc"]]
    path = ".".join(parts)
    if error["type"] == "extra_forbidden":
        return f"{path}: unknown key.{_nearest(path, model, known)}"
    if error["type"] == "value_error":
        return error["msg"].removeprefix("Value error, ")
    # a list's element, or a branch of a union, comes with more parts than the key has
    for end in range(len(parts), 0, -1):
        entry = known.get(".".join(parts[:end])) or known.get(".".join(parts[:end]).removesuffix(".name"))
        if entry is not None:
            near = did_you_mean(error["input"], entry.allowed.split()) if isinstance(error["input"], str) else ""
            near = near or (f" No number is above {MOST}." if error["type"] == "less_than_equal" else "")
            return f"{entry.path}: got {error['input']!r}, allowed: {entry.allowed}.{near}"
    inside = [name for name in known if name.startswith(path + ".")]
    if inside:
        return f"{path}: got {error['input']!r}, but it is a section; set {inside[0]}=..."
    return f"{path}: {error['msg']}, got {error['input']!r}"


def _nearest(path: str, model: type[BaseModel], known: dict[str, Key]) -> str:
    sections = {name.rsplit(".", depth)[0] for name in known for depth in (1, 2) if "." in name}
    near = did_you_mean(path, [*(name for name in known if "<" not in name), *sorted(sections)])
    if near:
        return near
    last = path.rsplit(".", 1)[-1]
    ends = {name.rsplit(".", 1)[-1]: name for name in known}
    if last in ends:
        return f" Did you mean {ends[last]!r}?"
    word = did_you_mean(last, ends)
    return f" Did you mean {ends[word.split(chr(39))[1]]!r}?" if word else ""
