"""The confined program: a Python program run once, or an interpreter that answers requests.

Requests of a session, each a JSON object with `op`:

* `cell`: run `code` and keep its variables; the value of a last expression is printed.
* `load`: run `code` as the module `name` (`__main__` where it has none).
* `do`: apply `what` (`call`, `get`, `len` …) to `target`, a global name, `module:name` or a handle.
* `grade`: run tests against another session's program (`grading`).
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import json
import operator
import os
import random
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

from offline_agent.sandbox.inside import grading
from offline_agent.sandbox.inside.messages import decode, encode, read_frame, write_frame

_MOST_HANDLES = 10_000
_SHOWN = 2000


def run_program(source: str) -> None:
    """Run a program as `__main__`; what it raises is printed as Python does."""
    _forget_sandbox()
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv = ["program.py"]
    sys.path.insert(0, "")
    try:
        exec(compile(source, "program.py", "exec"), module.__dict__)
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        raise SystemExit(1) from None


def serve(requests: int, replies: int, paths: list[str]) -> None:
    """Answer requests until there are no more.

    Args:
        requests, replies: Descriptors.
        paths: Further folders of modules.
    """
    _forget_sandbox()
    sys.path.extend(paths)
    sys.argv = [""]
    random.seed(0)
    session = _Session(requests, replies)
    while True:
        data = read_frame(requests)
        if data is None:
            return
        reply = json.dumps(session.answer(json.loads(data))).encode()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the program closed or replaced it
                stream.flush()
        write_frame(replies, reply)


class _Session:
    def __init__(self, requests: int, replies: int) -> None:
        self._requests, self._replies = requests, replies
        self._main = types.ModuleType("__main__")
        sys.modules["__main__"] = self._main
        self._handles: list[Any] = []

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            kind = request["op"]
            if kind == "cell":
                self._cell(request["code"])
                return {"value": None}
            if kind == "load":
                self._load(request["code"], request.get("name"))
                return {"value": None}
            if kind == "grade":
                return grading.grade(request, self._ask)
            return {"value": self._encode(self._do(request))}
        except BaseException as error:
            return _raised(error)

    def _cell(self, code: str) -> None:
        tree = ast.parse(code, "cell.py")
        last = tree.body[-1] if tree.body else None
        if isinstance(last, ast.Expr):
            tree.body.pop()
        names = self._main.__dict__
        exec(compile(tree, "cell.py", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell.py", "eval"), names)
            if value is not None:
                print(repr(value))

    def _load(self, code: str, name: str | None) -> None:
        module = self._main
        if name is not None:
            module = types.ModuleType(name)
            sys.modules[name] = module
        exec(compile(code, f"{name or 'program'}.py", "exec"), module.__dict__)

    def _do(self, request: dict[str, Any]) -> Any:
        arguments = [decode(item, self._held) for item in request["args"]]
        keywords = {name: decode(item, self._held) for name, item in request["kwargs"].items()}
        return _OPERATIONS[request["what"]](self._target(request["target"]), *arguments, **keywords)

    def _target(self, target: Any) -> Any:
        if isinstance(target, dict):
            return self._held(target)
        module, _, name = target.rpartition(":")
        found: Any = importlib.import_module(module) if module else self._main
        if not module and name not in self._main.__dict__:
            raise NameError(f"name {name!r} is not defined")
        return getattr(found, name) if name else found

    def _held(self, data: Any) -> Any:
        return self._handles[data["h"]]

    def _encode(self, value: Any) -> Any:
        def hold(item: Any) -> Any:
            for number, known in enumerate(self._handles):
                if known is item:
                    return {"t": "h", "h": number, "n": type(item).__name__}
            if len(self._handles) >= _MOST_HANDLES:
                raise ValueError("too many objects are held")
            self._handles.append(item)
            return {"t": "h", "h": len(self._handles) - 1, "n": type(item).__name__}

        return encode(value, hold)

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Have the host put a question to the other session; return the answer."""
        write_frame(self._replies, json.dumps({"ask": question}).encode())
        data = read_frame(self._requests)
        if data is None:
            raise SystemExit(1)
        answer: dict[str, Any] = json.loads(data)
        return answer


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "self": lambda target: target, "call": lambda target, /, *args, **kwargs: target(*args, **kwargs),
    "get": getattr, "set": setattr, "len": len, "str": str, "repr": repr, "iter": list, "next": next,
    "item": operator.getitem, "put": operator.setitem, "remove": operator.delitem,
    "enter": lambda target: target.__enter__(), "exit": lambda target: target.__exit__(None, None, None),
}  # fmt: skip


def _raised(error: BaseException) -> dict[str, Any]:
    """Return an error as JSON data: its class, the classes it is derived from, its text, where it came from."""
    text = ""
    with contextlib.suppress(BaseException):
        text = str(error)[:_SHOWN]
    names = [cls.__name__ for cls in type(error).__mro__ if getattr(builtins, cls.__name__, None) is cls]
    where = ""
    with contextlib.suppress(BaseException):
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename.endswith(("cell.py", "program.py")):
                where = f"line {frame.lineno}, in {frame.name}"
    if isinstance(error, SyntaxError):
        where = f"line {error.lineno}"
    return {"raised": type(error).__name__, "bases": names, "text": text, "where": where}


def _forget_sandbox() -> None:
    """Take the sandbox's own modules away from what the program can import."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "offline_agent"]:
        del sys.modules[name]
    sys.stdin = open(os.devnull)  # noqa: SIM115  (for as long as the program runs)
