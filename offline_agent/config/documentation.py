"""The text of `--help` and the page docs/configuration.md, both written from the declared keys.

`python -m offline_agent.config.documentation` prints the page; `make docs` writes it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence

from offline_agent import catalog
from offline_agent.config.build_prefs import BuildPrefsConfig, RunConfig
from offline_agent.config.evaluate import EvaluateConfig
from offline_agent.config.import_logs import ImportLogsConfig
from offline_agent.config.iterate import IterateConfig
from offline_agent.config.judging import AuditConfig, RejudgeConfig, TrainRewardConfig
from offline_agent.config.loading import Key, keys
from offline_agent.config.refine_grpo import RefineGrpoConfig
from offline_agent.config.training import TrainDpoConfig, TrainSftConfig
from offline_agent.errors import ConfigError, did_you_mean

COMMANDS: dict[str, type[RunConfig]] = {
    "build_prefs": BuildPrefsConfig,
    "import_logs": ImportLogsConfig,
    "rejudge": RejudgeConfig,
    "train_sft": TrainSftConfig,
    "train_dpo": TrainDpoConfig,
    "evaluate": EvaluateConfig,
    "iterate": IterateConfig,
    "refine_grpo": RefineGrpoConfig,
    "audit": AuditConfig,
    "train_reward": TrainRewardConfig,
}

_PAGE = """\
# Configuration

Written by `make docs` from the keys that the code declares (`offline_agent/config/`). Do not edit this page.

Every command but `import_logs`, which needs logs, and `rejudge`, which needs a run, runs without a key. Keys are given
on the command line as `key=value`, or in a YAML file (`--config FILE`); the command line takes precedence. An unknown
key is an error, and all errors are reported at once.
`--print-config` prints the resolved configuration, which `--config` reads back. A number without an upper bound below
is at most 10^12. `null` means that the key is not set. In a file, a text that looks like another type is quoted.

`python -m offline_agent.pipelines.<command> --help` shows the sections of a command, `--help <section>` the keys of
one. Keys marked with * do not change results, so they may differ when a run is resumed; any other difference is
refused.
"""


def key_help(name: str, config: type[RunConfig], width: int = 120) -> str:
    """Return examples of a command, its keys outside of sections, and a line for each section.

    Args:
        name: The name of the command.
        config: Its configuration.
        width: Characters of a line.
    """
    lines = ["Examples:"] if config.examples else []
    for arguments, about in config.examples:
        lines += [f"  # {about}", f"  python -m offline_agent.pipelines.{name} {arguments}".rstrip()]
    first: dict[str, list[Key]] = {}
    for entry in keys(config):
        first.setdefault(entry.path.partition(".")[0], []).append(entry)
    rows = []
    for top, of in first.items():
        if of[0].path == top and len(of) == 1:
            rows += of
        else:  # a section; where it can be set whole, as `env=shop`, its first key says to what
            default = of[0].default if of[0].path == top else ""
            about = config.model_fields[top].description or of[0].about
            rows.append(of[0]._replace(path=top, allowed=f"section, {len(of)} keys", default=default, about=about))
    more = "--help SECTION shows the keys of a section, docs/configuration.md every key."
    return "\n".join([*lines, "", key_table(rows, width), "", more])


def topic_help(config: type[RunConfig], topic: str, width: int = 120) -> str:
    """Return the keys of a section, or a single key.

    Args:
        config: The configuration.
        topic: A dotted path.
        width: Characters of a line.

    Raises:
        ConfigError: There is no such section or key.
    """
    every = keys(config)
    found = [entry for entry in every if f"{entry.path}.".startswith(f"{topic}.")]
    if not found:
        parts = [entry.path.split(".") for entry in every]
        paths = dict.fromkeys(".".join(part[:depth]) for part in parts for depth in range(1, len(part) + 1))
        raise ConfigError(f"--help: there is no section or key {topic!r}.{did_you_mean(topic, paths)}")
    return key_table(found, width)


def installed(config: type[RunConfig], kinds: Iterable[str], width: int = 120) -> str:
    """Return the short names that are installed, by package; "" for sections that the configuration has not."""
    lines = []
    for kind in ("env", "judge"):
        if kind in kinds and kind in config.model_fields:
            for package, names in catalog.listing(kind).items():
                line = f"{kind}= of {package}: {', '.join(names)}"
                lines += textwrap.wrap(line, width, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines)


def key_table(entries: Sequence[Key], width: int = 120) -> str:
    """Return a table of keys with type, default and meaning, `width` characters wide."""
    rows = [("key", "type", "default", "meaning"), *((k.path, k.allowed, k.default, k.about) for k in entries)]
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


# -- docs/configuration.md ---------------------------------------------------------------------------------------------


def page() -> str:
    """Return docs/configuration.md: the commands with examples, then every key once, by its section."""
    parts, listed = [_PAGE], dict[Key, list[str]]()
    for name, config in COMMANDS.items():
        calls = [
            f"# {about}\npython -m offline_agent.pipelines.{name} {arguments}".rstrip()
            for arguments, about in config.examples
        ]
        parts.append("\n".join([f"## {name}\n\n{config.about}\n\n```bash", *calls, "```"]))
        for entry in keys(config):
            listed.setdefault(entry, []).append(name)
    sections: dict[str, list[Key]] = {"": []}  # keys outside of a section first
    for entry in listed:
        first, dot, _ = entry.path.partition(".")
        sections.setdefault(first if dot else "", []).append(entry)
    parts.append("## Keys")
    parts += [f"### {name or 'keys of no section'}\n\n{_markdown(of, listed)}" for name, of in sections.items()]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _markdown(entries: Iterable[Key], listed: Mapping[Key, Sequence[str]]) -> str:
    lines = ["| key | allowed | default | meaning | of |", "|---|---|---|---|---|"]
    for entry in entries:
        more = f"; may grow when a run of {', '.join(entry.grows)} is resumed" if entry.grows else ""
        commands = "every command" if len(listed[entry]) == len(COMMANDS) else ", ".join(listed[entry])
        key = f"`{entry.path}`" + "*" * entry.free
        cells = (key, entry.allowed, f"`{entry.default}`", entry.about + more, commands)
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;") if not text.startswith("`") else text.replace("``", "")


if __name__ == "__main__":
    print(page(), end="")
