"""Trial of a foreign chat template in a process of its own, with limits: rendering here could not be stopped."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from offline_agent.errors import ConfigError

SECONDS, MEMORY, LETTERS = 5, 2 << 30, 1 << 20  # of the processor; bytes; of all that is written
_WAIT = 120  # seconds by the clock, on a machine that is busy
_OWN = ("rendering/templates/*.jinja", "assets/default_model/chat_template.jinja")
_CHILD = """
import json, resource, sys
from transformers.utils.chat_template_utils import render_jinja_template
template, special, seconds, memory, letters = json.load(sys.stdin)
used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
resource.setrlimit(resource.RLIMIT_CPU, (int(used) + seconds + 1,) * 2)
resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
call = {"type": "function", "function": {"name": "look_up", "arguments": {"key": "x"}}}
tool = {"type": "function", "function": {"name": "look_up", "description": "Look up.", "parameters": {
    "type": "object", "properties": {"key": {"type": "string", "description": "What."}}}}}
talk = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Yes.", "tool_calls": [call]},
        {"role": "tool", "name": "look_up", "content": "found"}, {"role": "assistant", "content": "Done."}]
for start in ([], [{"role": "system", "content": "Be brief."}]):
    for tools in ([tool], None):
        for count in (1, 2, 3, 4):
            try:
                texts, _ = render_jinja_template([start + talk[:count]], tools=tools, chat_template=template,
                                                 add_generation_prompt=count % 2 == 1, **special)
            except MemoryError:
                sys.exit(f"it took more than {memory >> 30} GiB")
            except Exception:  # it is told where the template is used
                continue
            if len(texts[0]) > letters:
                sys.exit(f"it wrote {len(texts[0])} letters, allowed: {letters}")
"""


@cache
def _trusted() -> frozenset[str]:
    package = Path(__file__).parents[1]
    return frozenset(path.read_text(encoding="utf-8") for pattern in _OWN for path in package.glob(pattern))


def check_ends(template: str, special: Mapping[str, object]) -> None:
    """Check that a chat template renders short conversations within limits of time, memory and size.

    Args:
        template: Its text.
        special: Texts of the tokenizer's named special tokens.

    Raises:
        ConfigError: It does not.
    """
    if template not in _trusted():
        why = _fault(template, json.dumps({name: text for name, text in special.items() if isinstance(text, str)}))
        if why:
            raise ConfigError(
                f"the chat template cannot be used: for a short conversation {why}. Give one that ends: "
                "chat_template= (policy.chat_template=) a file, or 'qwen', 'llama3', 'plain'"
            )


@cache
def _fault(template: str, special: str) -> str:
    """Return what a template took too much of; "" where nothing."""
    asked = json.dumps([template, json.loads(special), SECONDS, MEMORY, LETTERS])
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _CHILD],
            input=asked,
            capture_output=True,
            text=True,
            timeout=_WAIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it took more than {_WAIT} s"
    if done.returncode < 0:
        return f"it took more than {SECONDS} s, or its process was killed"
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""
