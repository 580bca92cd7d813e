"""Catalog of short names, of environments, policies, judges …; `module:Class` works wherever a short name does."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from offline_agent import __version__
from offline_agent.errors import ConfigError, did_you_mean, ends_the_run

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

PACKAGE = "offline-agent"
ENVIRONMENTS: dict[str, str] = {
    "countdown": "offline_agent.envs.countdown:Countdown",
    "math": "offline_agent.envs.math:Math",
    "shop": "offline_agent.envs.shop:Shop",
}
"""Environments of this package. Installed packages add theirs by entry points: see `entry_point`."""

POLICIES: dict[str, str] = {
    "colocated": "offline_agent.policies.vllm.policy:ColocatedPolicy",
    "hf": "offline_agent.policies.hf.policy:HFPolicy",
    "noisy": "offline_agent.policies.scripted:NoisyPolicy",
    "oracle": "offline_agent.policies.scripted:OraclePolicy",
    "random": "offline_agent.policies.scripted:RandomPolicy",
    "server": "offline_agent.policies.server.policy:ServerPolicy",
}

JUDGES: dict[str, str] = {
    "all_of": "offline_agent.judges.composition:all_of",
    "any_of": "offline_agent.judges.composition:any_of",
    "ensemble": "offline_agent.judges.composition:ensemble",
    "environment": "offline_agent.judges.composition:environment",
    "exact_match": "offline_agent.judges.verifiers:exact_match",
    "f1": "offline_agent.judges.verifiers:f1",
    "goal_state": "offline_agent.judges.verifiers:goal_state",
    "hybrid": "offline_agent.judges.composition:hybrid",
    "llm": "offline_agent.judges.models.llm:LLMJudge",
    "mean_of": "offline_agent.judges.composition:mean_of",
    "planned": "offline_agent.judges.models.planning:planned",
    "purchase": "offline_agent.judges.verifiers:purchase",
    "reward_model": "offline_agent.training.reward_model:RewardModelJudge",
    "rows": "offline_agent.judges.verifiers:rows",
    "subgoals": "offline_agent.judges.process:subgoals",
    "symbolic": "offline_agent.judges.verifiers:symbolic",
    "unit_tests": "offline_agent.judges.code:unit_tests",
}

SOURCES: dict[str, str] = {
    "failures": "offline_agent.evaluation.task_sources:failures",
    "proposer": "offline_agent.evaluation.proposer:proposals",
}

TABLES: dict[str, dict[str, str]] = {"env": ENVIRONMENTS, "judge": JUDGES, "policy": POLICIES, "source": SOURCES}
GROUPS = {"env": "offline_agent.environments", "judge": "offline_agent.judges"}
"""Groups of entry points, by which a package that is installed adds short names."""

SHIPPED = "offline-agent-environments"
FAMILIES = ("babyai", "bfcl", "browser", "code", "files_qa", "repo", "retail", "search_qa", "sql", "textworld")
ADAPTERS = ("agentbench", "gym", "harbor", "mcp", "openenv", "retry", "skills", "tau2")
ELSEWHERE = {"env": (*FAMILIES, *(f"{word}:" for word in ADAPTERS)), "judge": ("repository_tests", "sql")}
"""Names of the package `SHIPPED`, for the message where it is not installed; those of its adapters end with a colon."""

OWN = {"parts": "offline_agent.envs.parts", "propose": "offline_agent.envs.propose"}
"""Adapters of this package: modules by name."""

GIVEN: list[EntryPoint] = []
"""Entry points of the process that started this one, in an interpreter that has not got their package."""

Kind = Literal["env", "judge", "policy", "source"]


def resolve(kind: Kind, name: str, key: str | None = None) -> Any:
    """Return the object that a short name, `module:Class` or `path/to/file.py:Class` stands for.

    Args:
        kind: The table in which short names are looked up.
        name: The name that the user wrote. Modules are looked for in the current directory too.
        key: The configuration key that messages name; None = the kind.

    Raises:
        ConfigError: No such short name, module or attribute, or the module raised while being imported; says which.
    """
    check(kind, name, key)
    point = entry_point(kind, name)
    return load(key or kind, TABLES[kind].get(name, name) if point is None else point.value)


def check(kind: Kind, name: str, key: str | None = None) -> None:
    """Check that a name is a short one that is known here, or may be a path.

    Raises:
        ConfigError: It is neither, or two packages have it.
    """
    if name in TABLES[kind] or entry_point(kind, name) is not None:
        return
    word, colon, _ = name.partition(":")
    if word + colon in ELSEWHERE.get(kind, ()):
        raise ConfigError(
            f"{key or kind}: got {name!r}, which is in the package {SHIPPED}, and that is not installed: pip install "
            f"{SHIPPED} (in a checkout of this project: pip install -e environments)"
        )
    if not colon:
        own, names = "callable" if kind in ("judge", "source") else "Class", sum(listing(kind).values(), [])
        near = did_you_mean(name, [*names, *ELSEWHERE.get(kind, ())])
        allowed = f"{', '.join(names)}, or module:{own} for your own"
        raise ConfigError(f"{key or kind}: got {name!r}, allowed: {allowed}.{near}")


def entry_point(kind: str, name: str) -> EntryPoint | None:
    """Return what an installed package has under a name; None where no package has it, or this one does.

    An entry point of an environment names its class, `sql = "my_package:SQL"`. One that names a module alone is an
    adapter: it adapts environments of another project by the module's `adapt`, and what it adapts follows a colon.

    Raises:
        ConfigError: Two packages have the name.
    """
    if name in TABLES[kind]:
        return None
    word, colon, _ = name.partition(":")
    points = [one for one in installed(kind) if (one.name, is_adapter(one)) == (word, bool(colon))]
    if len({one.value for one in points}) > 1:
        given = ", ".join(f"{one.value} of {distribution(one)}" for one in points)
        raise ConfigError(f"{kind}: two packages have {name!r}: {given}. Uninstall one, or write module:Class.")
    return points[0] if points else None


def is_adapter(point: EntryPoint) -> bool:
    """Return whether an entry point names a module that adapts environments."""
    return ":" not in point.value


def distribution(point: EntryPoint) -> str:
    """Return name and version of the distribution that has an entry point."""
    if point.dist is None:
        return f"{PACKAGE} {__version__}" if OWN.get(point.name) == point.value else "unknown"
    return f"{point.dist.name} {point.dist.version}"


def listing(kind: Kind) -> dict[str, list[str]]:
    """Return the short names that are known here, by the distribution that has them; adapters end with a colon."""
    found = {f"{PACKAGE} {__version__}": sorted(TABLES[kind])}
    for point in sorted(installed(kind), key=lambda one: (is_adapter(one), one.name)):
        found.setdefault(distribution(point), []).append(point.name + ":" * is_adapter(point))
    return found


@functools.cache
def installed(kind: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a kind that installed packages have; looked up once in a process."""
    if kind not in GROUPS:
        return ()
    from importlib import metadata

    own = (metadata.EntryPoint(name, module, GROUPS["env"]) for name, module in OWN.items())
    every = (*metadata.entry_points(group=GROUPS[kind]), *own, *GIVEN)
    return tuple(one for one in every if one.group == GROUPS[kind])


def load(key: str, path: str) -> Any:
    """Return the object at `module:attribute` (dots allowed in it) or `path/to/file.py:attribute`.

    Args:
        key: The configuration key the path is from, for messages.
        path: Its path.

    Raises:
        ConfigError: As `resolve`.
    """
    module_name, _, attribute = path.rpartition(":")
    if not module_name or not attribute:
        raise ConfigError(f"{key}: got {path!r}; write module:Class, e.g. my_package.my_module:MyClass")
    found: Any = _module(key, module_name)
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            near = did_you_mean(part, [name for name in vars(found) if not name.startswith("_")])
            raise ConfigError(f"{key}: {module_name!r} was imported but has no {attribute!r}.{near}") from error
    return found


def _module(key: str, name: str) -> types.ModuleType:
    if name.endswith(".py"):
        return _file(key, Path(name))
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(missing + "."):
            raise ConfigError(
                f"{key}: there is no module {name!r} ({missing!r} was not found); give module:Class with the module in "
                f"the current directory or installed, or path/to/file.py:Class"
            ) from error
        raise ConfigError(
            f"{key}: importing {name!r} needs the module {missing!r}, which is not installed; install it"
        ) from error
    except BaseException as error:
        if ends_the_run(error):
            raise
        raise ConfigError(f"{key}: importing {name!r} raised {type(error).__name__}: {error}") from error


def _file(key: str, path: Path) -> types.ModuleType:
    if not path.is_file():
        raise ConfigError(f"{key}: there is no file {str(path)!r}")
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path.resolve()):
        return known
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    if spec is None or spec.loader is None:
        raise ConfigError(f"{key}: {str(path)!r} cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    if known is None:
        sys.modules[path.stem] = module  # so that its classes can be copied and pickled
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        if known is None:
            del sys.modules[path.stem]
        if ends_the_run(error):
            raise
        raise ConfigError(f"{key}: running {str(path)!r} raised {type(error).__name__}: {error}") from error
    return module
