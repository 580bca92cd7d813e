"""Completion for shells: `offline-agent completion bash | zsh | fish` prints a script that completes commands and keys.

  bash   source <(offline-agent completion bash)                                    in ~/.bashrc
  zsh    source <(offline-agent completion zsh)                                     in ~/.zshrc, after compinit
  fish   offline-agent completion fish > ~/.config/fish/completions/offline-agent.fish

The script holds every command, key and allowed word, so completing starts no Python; print it again after an update.

Exit status: 0 printed, 2 the request was wrong.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from offline_agent.errors import did_you_mean
from offline_agent.runner.terminal import say

if TYPE_CHECKING:
    from pydantic import BaseModel

SHELLS = ("bash", "zsh", "fish")
_PLAIN_KEYS = {
    "compare": ("mode=", "mode=sampled", "mode=greedy", "confidence=", "json=true"),
    "completion": SHELLS,
    "doctor": ("url=", "run_dir="),
    "inspect": (
        "tree=", "node=", "pair=", "kind=", "task=", "order=doubtful", "trajectory=", "search=", "n=", "full=true",
    ),
    "status": ("run_dir=",),
    "track": ("run_dir=", "tracking.uri="),
}  # fmt: skip
_OPTIONS = ("--config", "--help", "--plan", "--print-config", "--submit")


def main(arguments: Sequence[str]) -> int:
    """Print the script of a shell; returns the exit status."""
    if "--help" in arguments or "-h" in arguments:
        print(__doc__)
        return 0
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        got = " ".join(arguments) or "nothing"
        say(f"completion: got {got}, allowed: {', '.join(SHELLS)}.{did_you_mean(got, SHELLS)}")
        return 2
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[arguments[0]]())
    return 0


def words() -> dict[str, tuple[str, ...]]:
    """Return by command what its arguments may begin with: options, `key=`, and `key=word` where words are allowed."""
    from offline_agent.config.capture import CaptureConfig
    from offline_agent.config.documentation import COMMANDS
    from offline_agent.config.export import ExportConfig
    from offline_agent.config.keys import keys
    from offline_agent.config.report import ReportConfig

    out = dict(_PLAIN_KEYS)
    others: dict[str, type[BaseModel]] = {"capture": CaptureConfig, "export": ExportConfig, "report": ReportConfig}
    for name, config in {**COMMANDS, **others}.items():
        found: list[str] = list(_OPTIONS) if name in COMMANDS else ["--help"]
        for key in keys(config):
            if "<" not in key.path:
                found.append(f"{key.path}=")
                found += [f"{key.path}={word}" for word in _allowed(key.allowed)]
        out[name] = tuple(found)
    return out


def _allowed(text: str) -> Iterator[str]:
    """Yield the words of `a | b or null`; nothing where a number or a text is allowed."""
    for part in text.split(" or "):
        if " | " in part:
            yield from (word for word in part.split(" | ") if word.isidentifier())


def _commands() -> dict[str, str]:
    from offline_agent.pipelines.__main__ import COMMANDS

    return {name: about for name, (_, about) in COMMANDS.items()}


def _bash() -> str:
    cases = "\n".join(
        f"    {name}) words={shlex.quote(' '.join(found))} ;;" for name, found in sorted(words().items())
    )
    return f"""\
_offline_agent() {{
  local line=${{COMP_LINE:0:COMP_POINT}} words= cur name
  cur=${{line##* }}
  read -r _ name _ <<< "$line"
  if [[ $line != *' '*' '* ]]; then
    COMPREPLY=($(compgen -W {shlex.quote(' '.join(_commands()))} -- "$cur"))
    return
  fi
  case $name in
{cases}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
  if [[ ${{#COMPREPLY[@]}} -eq 0 ]]; then
    COMPREPLY=($(compgen -f -- "${{cur#*=}}"))
    compopt -o filenames 2>/dev/null
  elif [[ $cur == *=* && $COMP_WORDBREAKS == *=* ]]; then
    COMPREPLY=("${{COMPREPLY[@]#"${{cur%=*}}"=}}")
  fi
  [[ ${{#COMPREPLY[@]}} -eq 1 && ${{COMPREPLY[0]}} != *= ]] || compopt -o nospace 2>/dev/null
}}
complete -F _offline_agent offline-agent"""


def _zsh() -> str:
    escaped = {name: about.replace(":", "\\:") for name, about in _commands().items()}
    commands = "\n".join(f"    {shlex.quote(f'{name}:{about}')}" for name, about in escaped.items())
    cases = "\n".join(
        f"    {name}) found=({' '.join(map(shlex.quote, found))}) ;;" for name, found in sorted(words().items())
    )
    return f"""\
#compdef offline-agent
_offline_agent() {{
  local -a commands found
  commands=(
{commands}
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  case $words[2] in
{cases}
  esac
  compadd -S '' -- $found
  if [[ $PREFIX == *=* ]]; then compset -P '*='; fi
  _files
}}
compdef _offline_agent offline-agent"""


def _fish() -> str:
    lines = [
        f"complete -c offline-agent -f -n __fish_use_subcommand -a {name} -d {shlex.quote(about)}"
        for name, about in _commands().items()
    ]
    lines += [
        f"complete -c offline-agent -n '__fish_seen_subcommand_from {name}' -a {shlex.quote(' '.join(found))}"
        for name, found in sorted(words().items())
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
