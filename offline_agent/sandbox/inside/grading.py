"""Tests run apart from the program that they test.

The program is in another session. Names of it are stand-ins here: calling one asks the other session, and what comes
back is a plain value, or a stand-in for an object that stays there. A stand-in can be called, its attributes, items,
length, text and members are plain values in their turn, and it has no operator, order, equality or truth: those would
be the program's own verdict on itself. A patched test library or an exit before the end change nothing here.
"""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from offline_agent.sandbox.inside.messages import decode, encode

Ask = Callable[[dict[str, Any]], dict[str, Any]]

_TEXT = 500


class ProgramStopped(Exception):
    """The program under test ended, or was stopped, before it answered."""


class NotPlain(Exception):
    """A test hands the program something that is no plain value, so it cannot be run apart."""


def grade(request: dict[str, Any], ask: Ask) -> dict[str, Any]:
    """Run tests; return for each whether it passed, and what it raised.

    Args:
        request: `names` (globals that the program has), `setup` (code that is run first), `tests` (code; each passes
            unless it raises), `files` (module → code of test files, in place of `tests`: their functions
            named `test…` are the tests), `modules` (top-level packages of the program).
        ask: Puts a question to the program's session.
    """
    if request.get("modules"):
        sys.meta_path.insert(0, _Finder(ask, tuple(request["modules"])))
    names: dict[str, Any] = {"__name__": "tests"}
    exec(compile(request.get("setup") or "", "setup.py", "exec"), names)
    names.update({name: _named(ask, name) for name in request["names"]})
    results: dict[str, Any] = {}
    for number, test in enumerate(request.get("tests") or ()):
        code = compile(test, f"test_{number}.py", "exec")
        results[str(number)] = _outcome(lambda code=code: exec(code, dict(names)))  # type: ignore[misc]
    for module, source in (request.get("files") or {}).items():
        results.update(_file_tests(module, source))
    return {"results": results}


def _file_tests(name: str, source: str) -> Iterator[tuple[str, Any]]:
    """Yield the tests of a file with their outcomes; a file that cannot be imported has the one test `(import)`."""
    module = types.ModuleType(name)
    first = _outcome(lambda: exec(compile(source, f"{name}.py", "exec"), module.__dict__))
    if not first["passed"]:
        yield f"{name}::(import)", first
        return
    for test, function in list(vars(module).items()):
        if test.startswith("test") and isinstance(function, types.FunctionType):
            yield f"{name}::{test}", _outcome(function)


def _outcome(test: Callable[[], Any]) -> dict[str, Any]:
    try:
        test()
    except NotPlain as error:
        return {"passed": False, "unscorable": str(error)[:_TEXT], "error": ""}
    except Exception as error:
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return {"passed": False, "unscorable": None, "error": text[:_TEXT]}
    return {"passed": True, "unscorable": None, "error": ""}


def _asked(
    ask: Ask, target: Any, what: str, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
) -> Any:
    """Return what an operation gave there; raises what it raised, as the nearest class of Python's own."""
    question = {
        "op": "do", "target": target, "what": what,
        "args": [encode(item, _handle) for item in arguments],
        "kwargs": {name: encode(item, _handle) for name, item in (keywords or {}).items()},
    }  # fmt: skip
    answer = ask(question)
    if "stopped" in answer:
        raise ProgramStopped(str(answer["stopped"]))
    if "raised" in answer:
        raise _error(answer, what)
    try:
        return decode(answer["value"], lambda data: Remote(ask, {"t": "h", "h": int(data["h"])}, str(data["n"])))
    except (ValueError, TypeError, LookupError) as error:
        raise ProgramStopped(f"its answer cannot be read: {error}") from None


def _error(answer: dict[str, Any], what: str) -> Exception:
    text = str(answer.get("text"))
    if "StopIteration" in answer["bases"] and what != "next":  # it would end a loop of the test's own
        return ProgramStopped("it raised StopIteration")
    for name in answer["bases"]:
        found = getattr(builtins, str(name), None)
        if isinstance(found, type) and issubclass(found, Exception):
            try:
                made = found(text)
            except Exception:  # a class whose constructor takes more, such as UnicodeDecodeError
                continue
            made.remote_name = str(answer["raised"])  # type: ignore[attr-defined]
            return made
    return ProgramStopped(f"it raised {answer['raised']}: {text}")  # SystemExit and the like


def _named(ask: Ask, name: str) -> Any:
    """Return a global of the program: its value where it is plain; what is not there is missed when it is used."""
    try:
        return _asked(ask, name, "self")
    except Exception:
        return Remote(ask, name)


def _handle(value: Any) -> Any:
    if isinstance(value, Remote):
        target = object.__getattribute__(value, "_target")
        if isinstance(target, dict):
            return target
        raise ProgramStopped(f"the program has no {target!r} to hand over")
    raise NotPlain(f"a test hands over a {type(value).__name__}, which is no plain value")


class Remote:
    """A stand-in for something of the program: what is done to it is done there."""

    def __init__(self, ask: Ask, target: Any, kind: str = "") -> None:
        object.__setattr__(self, "_ask", ask)
        object.__setattr__(self, "_target", target)
        object.__setattr__(self, "_kind", kind)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        return _do(self, "call", args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__name__", "__doc__"):
            raise AttributeError(name)
        return _do(self, "get", (name,))

    def __setattr__(self, name: str, value: Any) -> None:
        _do(self, "set", (name, value))

    def __eq__(self, other: object) -> bool:
        return self is other or _refused(self, "compared")

    def __bool__(self) -> bool:
        return _refused(self, "taken for true or false")

    def __hash__(self) -> int:
        return hash(str(object.__getattribute__(self, "_target")))

    def __repr__(self) -> str:
        return f"<{object.__getattribute__(self, '_kind') or 'object'} of the program>"

    def __str__(self) -> str:
        return _of(self, "str", str)

    def __len__(self) -> int:
        return _of(self, "len", int)

    def __iter__(self) -> Iterator[Any]:
        return iter(_of(self, "iter", list))

    def __next__(self) -> Any:
        return _do(self, "next")

    def __getitem__(self, key: Any) -> Any:
        return _do(self, "item", (key,))

    def __setitem__(self, key: Any, value: Any) -> None:
        _do(self, "put", (key, value))

    def __delitem__(self, key: Any) -> None:
        _do(self, "remove", (key,))

    def __enter__(self) -> Any:
        return _do(self, "enter")

    def __exit__(self, *error: object) -> None:
        _do(self, "exit")


def _do(remote: Remote, what: str, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None) -> Any:
    ask, target = (object.__getattribute__(remote, name) for name in ("_ask", "_target"))
    return _asked(ask, target, what, arguments, keywords)


def _of(remote: Remote, what: str, kind: type[Any]) -> Any:
    """Return an operation's result; raises where the program gave one of another type."""
    value = _do(remote, what)
    if type(value) is not kind:
        raise ProgramStopped(f"{what} of its object gave a {type(value).__name__}")
    return value


def _refused(remote: Remote, done: str) -> bool:
    raise ProgramStopped(f"{remote!r} is {done} by a test, which believes plain values alone")


class _Finder:
    """Imports of the program's packages, as modules of stand-ins."""

    def __init__(self, ask: Ask, packages: tuple[str, ...]) -> None:
        self._ask, self._packages = ask, packages

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """See importlib.abc.MetaPathFinder."""
        from importlib.machinery import ModuleSpec

        if name.partition(".")[0] not in self._packages:
            return None
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> types.ModuleType:
        """Return the module of stand-ins; raises what importing it raised there."""
        _asked(self._ask, f"{spec.name}:", "repr")
        return _Module(spec.name, self._ask)

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: the module is made on the other side."""


class _Module(types.ModuleType):
    def __init__(self, name: str, ask: Ask) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self._sandbox_ask = ask

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _asked(self._sandbox_ask, f"{self.__name__}:{name}", "self")
