"""Refusals of every command: what is wrong, what it got, what is allowed or how to mend it; nothing is written."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offline_agent.config.loading import Key, keys, load
from offline_agent.errors import ConfigError
from offline_agent.pipelines.__main__ import COMMANDS
from offline_agent.pipelines.entry import main
from tests.helpers import rows
from tests.helpers.report import evaluated

ROOT = Path(__file__).parents[2]
MODULES = {name: importlib.import_module(module) for name, (module, _) in COMMANDS.items()}
CONFIGURED = {name: module.COMMAND.config for name, module in MODULES.items() if hasattr(module, "COMMAND")}
WAYS = re.compile(
    r"\b(?:allowed|asked for|can be read as|cannot read|did you mean|enable|export|give|goes with|install|leave|lists|"
    r"lower|make|name|needs?|not one of|raise|remove|set|use|write|(?:is|are|has|have) no)\b",
    re.IGNORECASE,
)
"""Words of what is allowed or how a request is mended; what is missing says so itself."""


def wrong(entry: Key) -> Any:
    """Return a value that a key does not allow."""
    return [] if "text" in entry.allowed and "list" not in entry.allowed else {"no": "value"}


@pytest.mark.parametrize("command", CONFIGURED)
def test_every_key_says_what_it_got_and_what_it_allows(command: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    for entry in keys(CONFIGURED[command]):
        if "<" in entry.path:
            continue
        data: Any = wrong(entry)
        for part in reversed(entry.path.split(".")):
            data = {part: data}
        file.write_text(json.dumps(data))
        with pytest.raises(ConfigError) as caught:
            load(CONFIGURED[command], file)
        found = [fault for fault in caught.value.faults if fault.startswith(entry.path) and "got " in fault]
        assert any(map(WAYS.search, found)), caught.value.faults


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with logs, two runs with pairs, a search and an evaluation; it is the current one."""
    folder = tmp_path_factory.mktemp("place")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        said = [{"messages": [{"role": "user", "content": "well?"}, {"role": "assistant", "content": answer}]}
                for answer in ("yes", "no")]  # fmt: skip
        Path("log.jsonl").write_text("\n".join(map(json.dumps, said)))
        Path("bad.jsonl").write_text('{"a": 1}\n')
        Path("empty").mkdir()
        assert run("import_logs", "source=log.jsonl", "run_dir=imported") == 0
        best = ["policy=noisy", "policy.noise=0.5", "search.algorithm=best_of_n", "search.simulations=5", "tasks.n=6"]
        assert run("build_prefs", *best, "pairs.kinds=[step,trajectory]", "run_dir=search") == 0
        rows.run(Path("pairs"), [rows.pair(0)], [rows.trajectory(0)])
        rows.run(Path("going"), [rows.pair(0)], [], status=None)
        evaluated(Path("evaluation"), "report=false")
        yield folder


def contents(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def run(command: str, *arguments: str) -> int:
    """Run a command in this process and return its status."""
    module = MODULES[command]
    if command in CONFIGURED:
        return main(module.COMMAND, [*arguments, "tracking.uri=null"])
    return int(module.main(list(arguments)))


SEARCH = ("env=shop", "policy=noisy", "tasks.n=4")
JUDGED = ("run_dir=imported", "judge=exact_match", "judge.gold=sure")
ONLINE = ("env=examples.bandit:Bandit",)
REFUSED = {
    "build_prefs": [
        (("search.simulatoins=4",), "search.simulations"),
        (("env=shopp", "policy.temperature=-1"), "Did you mean 'shop'", "policy.temperature: got -1"),
        ((*SEARCH, "policy.nosie=0.2", "env.catalog_sede=1"), "policy.nosie", "env.catalog_sede"),
        (("env=math", "sandbox.allow=docker"), "sandbox.allow: got 'docker'"),
        ((*SEARCH, "--plan", "plan.prob=3"), "Did you mean 'plan.probe'?"),
        ((*SEARCH, "--plan", "plan.probe=0"), "plan.probe: got 0, allowed"),
        ((*SEARCH, "--pln"), "Did you mean '--plan'?"),
        ((*SEARCH, "--plan", "policy=nosy"), "Did you mean 'noisy'?"),
        ((*SEARCH, "--merge", "--shard"), "--merge, --shard: give one of them"),
        ((*SEARCH, "--submit"), "--submit: got launcher=local; it goes with launcher=slurm"),
        (("run_dir=search", "policy=noisy", "search.c_puct=2", "pairs.min_gap=0.3"), "search.c_puct", "pairs.min_gap"),
    ],
    "import_logs": [
        ((), "source: nothing to read"),
        (("source=nowhere",), "source: there is no nowhere"),
        (("source=bad.jsonl",), "no record of 1 files can be read; allowed: inspect, harbor"),
        (("source=log.jsonl", "format=opnai"), "format"),
        (("source=log.jsonl", "pairs.kinds=[minimal]"), "the other kinds need replays"),
        (("source=log.jsonl", "judge=f2"), "f2"),
        (("source=log.jsonl", "launcher=ray"), "launcher"),
        (("source=log.jsonl", "env=shp"), "Did you mean 'shop'"),
    ],
    "rejudge": [
        ((), "run_dir: name the run"),
        (("run_dir=log.jsonl",), "is no run directory"),
        (("run_dir=imported",), "judge: got environment"),
        (("run_dir=imported", "judge=nobody"), "judge"),
        (("run_dir=imported", "judge=exact_match"), "needs 'gold'"),
        ((*JUDGED, "tokenizer=x"), "the run has no token ids"),
        ((*JUDGED, "launcher=ray"), "launcher"),
        ((*JUDGED, "pairs.kinds=[hindsight]"), "pairs.kinds"),
    ],
    "train_sft": [
        (("tasks.split=test", "tasks.file=none.jsonl"), "tasks.split: got 'test'", "tasks.file: cannot read"),
        (("optimizer.learning_rat=1",), "optimizer.learning_rate"),
        (("model.path=./nowhere",), "model.path: got './nowhere'"),
        (("scratch.layers=1", "model.path=x", "data.files=[a.csv]"), "model.path: got 'x', but scratch.layers=1"),
        (("data.runs=[nowhere]", "data.files=[a.csv]"), "data.runs: there is no nowhere", "data.files:"),
        (("batch.max_length=4096", "data.files=[a.csv]"), "batch.max_length: got 4096, allowed: at most 2048"),
        ((f"env={ROOT}/examples/reach.py:Reach",), "has no scripted expert"),
        (("scratch.reading=1",), "only a new model reads first"),
    ],
    "train_dpo": [
        (("data.runs=[nowhere]", "model.path=./elsewhere", "anchor.runs=[gone]"), "nowhere", "elsewhere", "gone"),
        (("data.runs=[pairs]", "dpo.loss=kto"), "allowed: sigmoid | ipo"),
        ((), "data.runs: nothing to learn from; name run directories"),
        (("data.runs=[pairs]", "batch.max_length=100000"), "batch.max_length"),
    ],
    "train_reward": [(("source=empty",), "has no trees/")],
    "audit": [
        (("env=tests.helpers.audited_environments:Nothing",), "no 'Nothing'"),
        (("checks=[rntime]",), "rntime"),
    ],
    "evaluate": [
        ((*SEARCH, "policy.nosie=1", "env.x=1", "search.max_steps=4", "search.simulations=3", "against.run=/no",
          "test_time.algorithm=mcts"),
         "policy.nosie", "env.x", "search.max_steps", "test_time.simulations decides it", "/no is no search"),
        ((*SEARCH, "against.model=x"), "against.model"),
        ((*SEARCH, "attempts=0", "greedy=false"), "nothing to play"),
        ((*SEARCH, "test_time.simulations=4", "test_time.judge=agreement"),
         "test_time.simulations: got 4, but nothing is searched", "test_time.judge: got 'agreement'"),
        ((*SEARCH, "test_time.algorithm=mcts", "search.budget.tool_calls=10"), "search.budget.tool_calls"),
    ],
    "refine_grpo": [
        ((*ONLINE, "objective.name=grop", "watch.patience=9", "watch.window=4"), "'grop'", "grpo", "watch.patience"),
        ((*ONLINE, "sampler.correction=token_mask", "rollouts.temperature=0.7"), "token_mask compares"),
        ((*ONLINE, "rollouts.credit=turn_reward"), "environment Bandit does not say it: give its class an attribute"),
        (("env=examples.machines:Machines", "rollouts.max_steps=4", "rollouts.credit=state"),
         "environment Machines has none: give its class a property fingerprint"),
    ],
    "iterate": [
        (("policy=random",), "iterate trains the policy"),
        (("tasks.split=test",), "tasks.split: iterate learns from it"),
        (("held_out.n=3000",), "held_out.pool: got 2000, allowed: held_out.n=3000 or more"),
        (("held_out.split=test",), "held_out.split: got 'test', allowed: validation"),
        (("sft.enabled=false",), "nothing to train"),
        (("policy.model=./nowhere",), "policy.model"),
        (("env=nothing",), "env: got 'nothing'"),
        (("env.wrong=1", "policy.model=/nowhere/at/all"), "env.wrong"),
        (("tasks.offset=1000000",), "tasks: none left"),
        (("dpo.loss.loss=sigmiod",), "dpo.loss.loss: got 'sigmiod', allowed: sigmoid"),
        (("dpo.enabled=true", "dpo.anchor.runs=[/nowhere]"), "dpo.anchor.runs: /nowhere is no run directory"),
        (("dpo.kinds=[step]",), "dpo.enabled: got dpo.kinds, and no training on pairs"),
        (("lora.targets=q_proj,nope",), "lora.targets: got 'nope'"),
        (("lora.targets=q_proj,lm_head",), "lora.targets: got 'lm_head'"),
        (("sft.batch.max_length=99999",), "sft.batch.max_length: got 99999"),
        (("gate.confidence=0.9999999999999999",), "gate.confidence"),
    ],
    "capture": [
        (("upstream=localhost:8000",), "upstream: got 'localhost:8000'"),
        ((), "upstream: got ''"),
        (("upstream=http://x/v1", "upstream_key=NOT_THERE"), "there is no such environment variable"),
        (("upstream=http://x/v1", "port=70000"), "port"),
        (("upstream=http://x/v1", "host=0.0.0.0"), "host: got '0.0.0.0', which other machines reach"),
        (("upstream=http://user:word@x/v1",), "its key is upstream_key=VARIABLE"),
        (("upstream=http://x/v1", "session=a"), "session: unknown key"),
    ],
    "export": [
        (("run_dir=pairs", "format=trll"), "format: got 'trll', allowed: trl, llama_factory"),
        (("run_dir=pairs/none", "format=trl"), "is no run directory"),
        (("format=trl",), "run_dir: name the run"),
        (("run_dir=pairs", "format=verl"), "tokenizer: format=verl has token ids"),
        (("run_dir=pairs", "format=trl", "out=search"), "is there already"),
        (("run_dir=pairs", "format=trl", "table=x"), "table: unknown key"),
        (("run_dir=pairs", "format=atif"), "has no rows in trajectories"),
        (("run_dir=going", "format=trl"), "unfinished"),
        (("run_dir=pairs", "format=verl_tasks", "tasks.split=test"), "run_dir: format=verl_tasks", "tasks.split: got"),
        (("run_dir=pairs", "format=trl", "env=math"), "env, tasks: format=trl is made of a run"),
    ],
    "inspect": [
        (("nowhere",), "no manifest.json"),
        (("search", "tree=trian-0"), "Did you mean 'train"),
        (("search", "pair=9999"), "allowed: 0 to"),
        (("search", "trajectory=x"), "allowed: train"),
        (("search", "pair=0", "tree=x"), "give one of"),
        (("search", "pair=-1", "order=odd", "wot=3"), "wot: unknown key"),
    ],
    "compare": [
        (("evaluation", "search", "mode=greedy", "odd=1"), "odd: unknown key"),
        (("evaluation", "search"), "not by evaluate"),
        (("evaluation", "evaluation", "mode=greedy"), "allowed: what all runs have: sampled"),
    ],
    "status": [
        ((), "name the run directory"),
        (("run_dir=empty",), "it has no manifest.json"),
        (("run_di=x",), "Did you mean 'run_dir'?"),
    ],
    "report": [(("run_dir=empty", "out=empty"), "no manifest.json", "out: unknown key")],
    "doctor": [(("port=3",), "allowed: no argument")],
    "conformance": [(("nowhere:env", "A=b", "tasks=1"), "A: unknown key")],
}  # fmt: skip
CASES = [(command, *case) for command, cases in REFUSED.items() for case in cases]


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join([case[0], *case[1]]))
def test_a_refusal_says_what_it_got_what_is_allowed_and_how_to_mend_it(
    case: tuple[Any, ...], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, arguments, *said = case
    before = contents(place)
    capsys.readouterr()
    assert run(command, *arguments) == 2
    told = capsys.readouterr().err
    assert all(part in told for part in said), told
    assert "Traceback" not in told and contents(place) == before
    lines = told.partition("\n\n")[0].splitlines()
    for fault in [line for line in lines if line.startswith("  ")] or lines:
        assert WAYS.search(fault), fault


def test_every_command_is_asked_for_something_wrong() -> None:
    assert set(REFUSED) == set(COMMANDS)
