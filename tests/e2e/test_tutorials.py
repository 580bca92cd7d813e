"""The tutorials: every command of their pages runs as it is written, with smaller sizes.

On the page for a GPU a tiny model takes the place of the served one, behind a server that speaks vLLM's protocol. On
that of a pretrained model the embedded one takes its place, and the shop, which it knows, that of the environment.
"""

from __future__ import annotations

import importlib
import json
import re
import shlex
import string
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from offline_agent.pipelines.entry import main
from offline_agent.policies.base import DEFAULT_MODEL
from tests.helpers.fake_server import serving
from tests.helpers.model_server import ModelServer

ROOT = Path(__file__).parents[2]
SMALLER = {
    "build_prefs": ["tasks.n=4", "tracking.uri=null"],
    "train_sft": ["optimizer.max_updates=2", "threads=1", "tracking.uri=null"],
    "train_dpo": ["optimizer.max_updates=2", "threads=1", "tracking.uri=null"],
    "evaluate": ["tasks.n=2", "attempts=1", "resamples=100", "tracking.uri=null"],
}
SERVED = ("tasks.n=2", "search.simulations=12")
INSTALLS = ("python -m venv ", "vllm-env/bin/pip install ")
"""Beginnings of the lines that are not run here."""


def commands(name: str) -> Iterator[str]:
    """Yield the lines of a page's blocks of shell commands."""
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    for block in re.findall(r"^```bash\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        yield from block.splitlines()


def run(line: str) -> None:
    """Run `python -m MODULE ARGUMENTS` in this process, which has imported the heavy libraries once."""
    module, *arguments = shlex.split(line)[2:]
    name = module.rpartition(".")[2]
    loaded = importlib.import_module(module)
    keys = [*arguments, *SMALLER.get(name, ()), *(SERVED if name == "build_prefs" and "policy=server" in line else ())]
    status = main(loaded.COMMAND, keys) if name in SMALLER else loaded.main(arguments)
    assert status == 0, line


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("my_env", None)


def test_the_ten_minutes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    ((name, source),) = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page, re.DOTALL)
    (folder / name).write_text(source, encoding="utf-8")
    for line in commands("tutorial.md"):
        run(line)
    said = capsys.readouterr().out
    assert "Safe: passed" in said and "chosen" in said
    judged = json.loads((folder / "runs" / "judged" / "summary.json").read_text())
    assert judged["comparison"]["sampled"]["tasks"] == 2


def test_a_pretrained_model(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "your_model.md").read_text(encoding="utf-8")
    ((name, source),) = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page, re.DOTALL)
    variables: dict[str, str] = {}
    ran = 0
    for line in commands("your_model.md"):
        if line.startswith("export "):
            key, _, value = shlex.split(line)[1].partition("=")
            variables[key] = str(DEFAULT_MODEL) if key == "MODEL" else re.sub(r"\w+\.chat_template=compact ", "", value)
            continue
        line = string.Template(line).substitute(variables).replace("env=countdown env.n=3", "env=shop")
        line = line.replace("tasks.n=2000", "tasks.n=20")
        if line.startswith(f"python {name} "):
            monkeypatch.setattr(sys, "argv", shlex.split(line)[1:])
            exec(compile(source, name, "exec"), {"__name__": "__main__"})
        elif line != "make model":
            run(line)
            ran += 1
    assert ran == 6 and "\ncompact " in capsys.readouterr().out
    after = json.loads((folder / "runs" / "mine" / "after" / "summary.json").read_text())
    assert after["comparison"]["sampled"]["tasks"] == 2


def test_the_forty_minutes_with_a_tiny_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone catches a model that is served, trained with adapters and served again, by commands of a page."""
    variables: dict[str, str] = {}
    ran = 0
    with ExitStack() as served:
        for line in commands("tutorial_gpu.md"):
            if line.startswith(INSTALLS):
                continue
            if line.startswith("export "):
                key, _, value = shlex.split(string.Template(line).substitute(variables))[1].partition("=")
                variables[key] = str(DEFAULT_MODEL) if key == "MODEL" else value
                continue
            line = string.Template(line).substitute(variables)
            # the tiny model has a template of its own
            line = line.replace("policy.chat_template=qwen ", "").replace("model.chat_template=qwen ", "")
            if line == "kill %1":
                served.close()
            elif line.startswith("vllm-env/bin/vllm serve "):
                assert line.endswith(" &")
                words = shlex.split(line)
                server = ModelServer(Path(words[2]))
                given = "--served-model-name" in words
                server.models = (words[words.index("--served-model-name") + 1] if given else words[2],)
                served.enter_context(serving(server))
                assert words[words.index("--port") + 1] == "8000"
                url = server.url
            else:
                run(line.replace("http://localhost:8000/v1", url))
                ran += 1
    assert ran == 7
    runs = folder / "runs" / "gpu"
    assert json.loads((runs / "search" / "summary.json").read_text())["pairs_total"] > 0
