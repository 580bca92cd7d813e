"""Shell commands of logs: whether they run tests, how these ended, and whether the command may change files.

Nothing is guessed. A command that cannot be taken apart runs no tests and may change files; an exit status counts
where the shell reports that of the tests (no pipe, `||` or `;` after them); a summary counts where nothing else in the
command could have printed it.

Definitions: the words of the runners' own summaries, as pytest 8, unittest, Jest 29, Vitest 3, Mocha 11, cargo 1.8x,
Go 1.2x, Surefire 3, Gradle 8, CTest 3 and RSpec 3 print them.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

_HEREDOC = re.compile(r"(?<!<)<<-?[ \t]*(['\"]?)(\w+)\1([^\n]*)\n(?:.*?\n)?[ \t]*\2[ \t]*$", re.S | re.M)
_COMMENT = re.compile(r"^\s*#.*$", re.M)
_COLOURS = re.compile(r"\x1b\[[\d;]*[A-Za-z]")
_PUNCTUATION = "();<>|&\n"
_BEFORE = re.compile(  # words that may stand before a runner; of options those alone that take no value
    r"\w+=.*|-[muBqysEk]|--(?:yes|no-sync|frozen|no-install|foreground)|\d+[smhd]?|(?:.*/)?python[\d.]*|env|time|timeout|"
    r"sudo|nice|exec|npx|bunx|uvx|bundle|poetry|uv|pipenv|hatch|pdm|rye|run|coverage|xvfb-run")  # fmt: skip
_RUNNERS = {
    "pytest": (r"(?:pytest|py\.test)\b", r"\b[1-9]\d* passed",
               r"^(?:=+ )?(?:\d+ [a-z]+(?: [a-z]+)?, )*\d+ [a-z]+(?: [a-z]+)? in \d+\.\d+s\b.*$"),
    "unittest": (r"(?:unittest|django test|manage\.py test|setup\.py test|runtests\.py)\b", r"^Ran [1-9][^\n]*\s+OK",
                 r"^Ran \d+ tests? in .*\s+(?:OK|FAILED)\b.*$"),
    "jest": (r"(?:(?:yarn|pnpm|bun|npm exec) (?:exec |run )?)?(?:jest|vitest|react-scripts test)\b",
             r"\n *Tests.*\b[1-9]\d* passed",
             r"^ *(?:Test Suites:|Test Files) +\d.*\n *Tests:? +\d.*$|^ *Test.*\b\d+ failed.*$"),
    "mocha": (r"mocha\b", r"[1-9]\d* passing", r"^ *\d+ (?:passing|failing)\b.*$"),
    "cargo": (r"cargo (?:\+\S+ )?(?:test|nextest run|t)\b", r"\b[1-9]\d* passed", r"^(?:test result:| *Summary \[).*$"),
    "go": (r"go test\b", r"^ok(?!.*\[no tests)", r"^(?:ok\s|FAIL\b|--- FAIL|\?\s).*$"),
    "maven": (r"mvnw? .*\b(?:test|verify|package|install)\b", r"Tests run: [1-9](?:.*\n)*.*BUILD SUCCESS",
              r"^(?:\[\w+\] )?Tests run: .*(?:(?:\n(?!.*Tests run: ).*)*\n.*BUILD SUCCESS$)?"),
    "gradle": (r"gradlew? .*\b(?:test|check)\b", r"^BUILD SUCCESSFUL", r"^(?:BUILD SUCC|\d+ tests? completed, ).*$"),
    "ctest": (r"ctest\b", r"^100% .* out of [1-9]", r"^\d+% tests passed, .*$"),
    "rspec": (r"rspec\b", r"^[1-9]", r"^\d+ examples?, \d+ failures?.*$"),
    "": (r"(?:npm|pnpm|yarn|bun|deno) (?:run )?(?:t|test)(?::\S+)?(?: |$)|make (?:.* )?(?:test|check)(?: |$)|"
         r"(?:tox|nox|phpunit)\b|(?:dotnet|swift|mix) test\b|rake (?:test|spec)\b", r"(?!)", r"(?!)"),
}  # fmt: skip
"""By family: the commands of its runners; which lines of a summary say that tests passed, if none says otherwise; the
lines that are a summary. "" = runners that run others."""
_FAILED = re.compile(r"\b[1-9]\d* (?:tests? )?(?:failed|failing|errors?|failures?)\b|\bFAIL(?:ED)?\b|"
                     r"(?:Failures|Errors): [1-9]")  # fmt: skip
_NOTHING_RUN = re.compile(r"(?i)\bno tests? (?:ran|run|found|files|specified|to run)|\b(?:ran|running)? 0 tests\b")
_DRY = re.compile(r"(?: |^)(?:--version|--help|-h|--collect-only|--co|--fixtures|--list\S*|-list|--no-run|--dry-run|"
                  r"--if-present|-N|-DskipTests\S*|-Dmaven\.test\.skip\S*|--passWithNoTests)(?: |$)")  # fmt: skip
_SHORTENING = ("tail", "tee", "cat")  # keep the end of what they are given, where summaries stand
_SILENT = ("cd", "export", "set", "true", ":", "mkdir", "sleep", "source", ".", "unset", "pwd", "echo", "pip", "pip3",
           "cargo", "go", "tsc", "ruff", "mypy")  # fmt: skip
_READING = re.compile(
    r"(?:cd|ls|cat|head|tail|[ef]?grep|rg|wc|echo|printf|pwd|true|:|which|type|file|stat|du|df|tree|date|env|whoami|id|ps|"
    r"sleep|exit|test|\[|uniq|cut|tr|nl|diff|cmp|jq|set|export|wait|mypy|flake8|pyright|pylint)(?: |$)|"
    r"find(?!.* -(?:delete|exec|ok|fprint))|sed -n(?!.* (?:-\w*i|--in-place))|git (?:-C \S+ |--no-pager )*"
    r"(?:status|diff|log|show|add|commit|push|branch|blame|rev-parse|ls-files|describe|remote)(?: |$)")  # fmt: skip


class Part(NamedTuple):
    """One program of a command.

    Attributes:
        words: Its name and arguments, without redirections.
        before: The operator between it and the part before: `&&`, `||`, `|`, `;`, `&`; "" at the start.
        hidden: What it prints goes into a file.
        writes: Its output overwrites a file.
    """

    words: list[str]
    before: str
    hidden: bool = False
    writes: bool = False


class Ran(NamedTuple):
    """How the tests of a command ended.

    Attributes:
        success: None = the log does not tell.
        line: What tells it: the runner's line, or the exit status.
    """

    success: bool | None
    line: str = ""


def parts(command: str) -> list[Part] | None:
    """Return the programs of a command in their order; None where it cannot be taken apart."""
    text = _COMMENT.sub("", _HEREDOC.sub(r"\3", command.replace("\\\n", " ")))
    lexer = shlex.shlex(text, posix=True, punctuation_chars=_PUNCTUATION)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    out, part = [], Part([], "")
    try:
        tokens = iter(list(lexer))
    except ValueError:
        return None
    for token in tokens:
        operator = re.sub(r"[()\s]", "", token).removesuffix(";").replace("|&", "|") or ";"
        if not set(token) <= set(_PUNCTUATION):
            part.words.append(token)
        elif "<<" in operator:
            return None  # a text that does not end
        elif {"<", ">"} & set(operator):
            number = part.words.pop() if part.words[-1:] in (["1"], ["2"]) else "1"
            target = next(tokens, "")
            file = ">" in operator and target not in ("1", "2")
            part = part._replace(hidden=part.hidden or (file and number == "1"),
                                 writes=part.writes or (file and target != "/dev/null"))  # fmt: skip
        elif part.words and not set(token) <= set("()"):
            out.append(part)
            part = Part([], operator)
    if part.before == "&" and not part.words:
        return None  # it goes on in the background
    return [*out, part] if part.words else out


def family(words: Sequence[str]) -> str | None:
    """Return the family of the test runner that some words call (`_RUNNERS`); None where they call none."""
    start = next((n for n, word in enumerate(words) if not _BEFORE.fullmatch(word)), len(words))
    line = _called(words[start:])
    return next((name for name, (form, *_) in _RUNNERS.items() if re.match(form, line) and not _DRY.search(line)), None)


def ran_tests(command: str, output: str, status: int | None) -> Ran | None:
    """Return how the tests of a command ended; None where it runs none.

    Args:
        command: As it was given to a shell.
        output: What it printed.
        status: Its exit status; None = the log does not tell.
    """
    found = parts(command) or []
    run = {n: name for n, part in enumerate(found) if (name := family(part.words)) is not None}
    if not run:
        return None
    if any(_changes(part) and not (part.before == "|" and part.words[0] == "tee") for part in found[max(run) + 1 :]):
        return Ran(None)  # files may have changed after the tests
    plain = all(part.before == "&&" for part in found[min(run) + 1 :]) and "||" not in {part.before for part in found}
    shown = status if plain else None
    lines = _summary(_COLOURS.sub("", output), set(run.values())) if _alone(found, run) else []
    bad = [line for _, line in lines if _FAILED.search(line)]
    good = [(name, line) for name, line in lines if re.search(_RUNNERS[name][1], line)]
    counts, asked = Counter(name for name, _ in good), Counter(name for name in run.values() if name)
    if bad:
        return Ran(None if shown == 0 else False, " ".join(bad[-1].split())[:200])
    if len(good) >= len(run) and all(counts[name] >= count for name, count in asked.items()):
        return Ran(True if shown in (None, 0) else None, " ".join(good[-1][1].split())[:200])
    some = {name for name, _ in lines} == set(counts) and (good or not _NOTHING_RUN.search(output))
    return Ran(True if shown == 0 and some else None, "exit status 0")


def changes(command: str) -> bool:
    """Return whether a command may change files: whether it does more than programs that are known to read."""
    found = parts(command)
    return found is None or any(map(_changes, found))


def _called(words: Sequence[str]) -> str:
    return " ".join(words).removeprefix(words[0][: words[0].rfind("/") + 1]) if words else ""


def _changes(part: Part) -> bool:
    return family(part.words) is None and (part.writes or not _READING.match(_called(part.words)))


def _alone(found: Sequence[Part], run: dict[int, str]) -> bool:
    """Return whether a summary in the output can only be the runners' own: no part hides, chooses or prints lines."""
    fed = False
    for n, part in enumerate(found):
        fed = part.before == "|" and (n - 1 in run or fed)
        printed = part.words[0] not in (_SHORTENING if fed else _SILENT) or _summary("\n".join(part.words[1:]), {""})
        if part.hidden or (n not in run and printed):
            return False
    return True


def _summary(output: str, families: set[str]) -> list[tuple[str, str]]:
    """Return the lines that are a summary of these families, of any where "" is one, with the family."""
    names = _RUNNERS if "" in families else families
    return [(name, one.group()) for name in sorted(names) for one in re.finditer(_RUNNERS[name][2], output, re.M)]
