from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.config.evaluate import EvaluateConfig
from offline_agent.config.import_logs import ImportLogsConfig
from offline_agent.config.iterate import IterateConfig
from offline_agent.config.judging import RejudgeConfig
from offline_agent.config.loading import free_keys, keys, load, to_yaml
from offline_agent.config.refine_grpo import RefineGrpoConfig
from offline_agent.config.training import TrainDpoConfig, TrainSftConfig
from offline_agent.errors import ConfigError
from offline_agent.sections import Plugged, Section, key

ROOT = Path(__file__).resolve().parents[3]
FILES = sorted(
    path for folder in ("configs", "environments") for path in (ROOT / folder).rglob("*.yaml")
    if path.parent.name != "judges"  # rubrics
)  # fmt: skip
MODELS = {
    "build_prefs": BuildPrefsConfig,
    "evaluate": EvaluateConfig,
    "import_logs": ImportLogsConfig,
    "iterate": IterateConfig,
    "refine_grpo": RefineGrpoConfig,
    "rejudge": RejudgeConfig,
    "train_dpo": TrainDpoConfig,
    "train_sft": TrainSftConfig,
}


def _faults(*overrides: str, file: Path | None = None) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load(BuildPrefsConfig, file, overrides)
    return caught.value.faults


def test_there_are_configurations() -> None:
    assert len(FILES) >= 4  # finding none must fail


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_configuration_loads_and_says_its_command(file: Path) -> None:
    first = file.read_text().splitlines()[0]
    words = first.removeprefix("# python -m offline_agent.pipelines.").split()
    assert words[1:3] == ["--config", str(file.relative_to(ROOT))], first
    load(MODELS[words[0]], file, words[3:])


def test_the_embedded_default_is_the_shops_file() -> None:
    assert load(BuildPrefsConfig, ROOT / "configs/shop/demo.yaml") == load(BuildPrefsConfig)
    assert load(EvaluateConfig, ROOT / "configs/shop/evaluate.yaml") == load(EvaluateConfig)


def test_overrides_go_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("seed: 5\nsearch: {simulations: 7, budget: {tokens: 100}}\n")
    config = load(BuildPrefsConfig, file, ["search.simulations=9", "search.budget.seconds=1.5"])
    assert (config.seed, config.search.simulations, config.search.proposals) == (5, 9, 4)
    assert (config.search.budget.tokens, config.search.budget.seconds) == (100, 1.5)


def test_a_name_and_its_arguments_work_together_in_any_order() -> None:
    for overrides in (["env=math", "env.world=3"], ["env.world=3", "env=math"], ["env={name: math, world: 3}"]):
        env = load(BuildPrefsConfig, None, overrides).env
        assert (env.name, env.given()) == ("math", {"world": 3})
    policy = load(BuildPrefsConfig, None, ["policy=m:C", "policy.noise=0.3", "policy.model=x"]).policy
    assert policy.given() == {"model": "x", "noise": 0.3} and policy.defaults() == {"temperature": 0.7}
    assert load(BuildPrefsConfig, None, ["policy.temperature=0"]).policy.given() == {"temperature": 0}


def test_a_name_in_the_file_may_be_short(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("env: math\n")
    env = load(BuildPrefsConfig, tmp_path / "c.yaml", ["env.game=coin"]).env
    assert (env.name, env.given()) == ("math", {"game": "coin"})


@pytest.mark.parametrize("text", ["2024", "1e3", "true", "[a]", "a: b", "http://h:1/v1", "null.x", "2024-01-01"])
def test_a_text_is_taken_as_it_stands(text: str) -> None:
    assert load(BuildPrefsConfig, None, [f"policy.model={text}"]).policy.model == text


WORDS = [
    (model, entry.path, word)
    for model in MODELS.values()
    for entry in keys(model)
    if " | " in entry.allowed and "true | false" not in entry.allowed and not entry.allowed.startswith("list of")
    for word in entry.allowed.removesuffix(" or null").split(" | ")
]


@pytest.mark.parametrize(("model", "path", "word"), WORDS)
def test_every_word_that_a_key_allows_can_be_typed(model: Any, path: str, word: str, tmp_path: Path) -> None:
    section, _, name = path.rpartition(".")
    file = tmp_path / "c.yaml"
    file.write_text(f"{section}:\n  {name}: {word}\n" if section else f"{name}: {word}\n")
    for source, overrides in ((None, [f"{path}={word}"]), (file, [])):
        try:
            value: Any = load(model, source, overrides)
        except ConfigError as error:
            assert not any(f"{path}: got" in fault for fault in error.faults), error.faults  # it may ask for other keys
            continue
        for part in path.split("."):
            value = getattr(value, part)
        assert str(value) == word


def test_a_word_is_not_what_yaml_makes_of_another() -> None:
    with pytest.raises(ConfigError, match="got True, allowed: auto | off"):
        load(TrainSftConfig, None, ["batch.share_prefixes=on"])
    with pytest.raises(ConfigError, match="got False, allowed:"):
        load(RefineGrpoConfig, None, ["objective.scale=off"])


def test_a_name_that_ends_with_a_colon_is_a_text() -> None:
    assert load(BuildPrefsConfig, None, ["env=propose:"]).env.name == "propose:"


def test_null_and_lists_and_interpolation() -> None:
    config = load(
        BuildPrefsConfig, None, ["tasks.n=null", "pairs.kinds=[step,minimal]", "tasks.offset=${seed}", "seed=4"]
    )
    assert (config.tasks.n, config.pairs.kinds, config.tasks.offset) == (None, ("step", "minimal"), 4)


def test_every_fault_is_listed_at_once_with_the_nearest_key() -> None:
    faults = _faults(
        "serch.simulations=3", "simulation=3", "search.simulatons=2", "search.simulations=abc", "search.gamma=2",
        "tasks.split=tain", "pairs.kinds=[step,stepp]", "launcher=rai", "search=3", "foo", "seed=true",
        "pairs.per_node=0", "tasks.n=1.5", "policy.temperature=.nan",
    )  # fmt: skip
    text = "\n".join(faults)
    for line in (
        "serch: unknown key. Did you mean 'search'?",
        "simulation: unknown key. Did you mean 'search.simulations'?",
        "search.simulatons: unknown key. Did you mean 'search.simulations'?",
        "search.simulations: got 'abc', allowed: integer >= 1 and <= 10000000.",
        "search.gamma: got 2, allowed: number > 0 and <= 1.",
        "tasks.split: got 'tain', allowed: train | validation | test. Did you mean 'train'?",
        "pairs.kinds: got 'stepp', allowed: list of step | trajectory | hindsight | minimal. Did you mean 'step'?",
        "launcher: got 'rai', allowed: local | ray | slurm. Did you mean 'ray'?",
        "search: got 3, but it is a section; set search.algorithm=...",
        "'foo': write key=value, e.g. seed=1.",
        "seed: got True, allowed: integer >= 0 and <= 9223372036854775807.",
        "pairs.per_node: got 0, allowed: integer >= 1.",
        "tasks.n: got 1.5, allowed: integer >= 1 or null.",
        "policy.temperature: got nan, allowed: number >= 0 and <= 100.",
    ):
        assert line in text
    assert len(faults) == 14


@pytest.mark.parametrize("misspelt", ["env.nmae", "seeed", "run_dirr", "pairs.mingap", "limits.worker", "c_puct"])
def test_an_unknown_key_gets_a_suggestion(misspelt: str) -> None:
    if misspelt.startswith("env."):
        assert load(BuildPrefsConfig, None, [f"{misspelt}=x"]).env.given() == {"nmae": "x"}  # the constructor refuses
    else:
        assert "Did you mean" in _faults(f"{misspelt}=1")[0]


def test_faults_across_keys() -> None:
    assert "search.proposals (9) is more than search.max_children (8)" in _faults("search.proposals=9")[0]
    assert "names a kind twice" in _faults("pairs.kinds=[step,step]")[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [("a: [", "cannot be read as YAML"), ("- a", "must hold keys and values"), ("seed: 1\nseed: 2", "YAML"), ("3", "")],
)
def test_a_file_that_is_no_configuration(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    faults = _faults("tasks.n=0", file=tmp_path / "c.yaml")
    assert says in faults[0] and "c.yaml" in faults[0] and "tasks.n" in faults[1]


def test_a_missing_file_gets_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "demo.yaml").touch()
    assert "there is no file" in _faults(file=tmp_path / "demmo.yaml")[0]
    assert "Did you mean 'demo.yaml'?" in _faults(file=tmp_path / "demmo.yaml")[0]


def test_printed_configuration_reads_back(tmp_path: Path) -> None:
    config = load(BuildPrefsConfig, None, ["env=m.n:C", "env.x={a: [1, null]}", "policy.url=http://h", "seed=3"])
    (tmp_path / "c.yaml").write_text(to_yaml(config))
    assert load(BuildPrefsConfig, tmp_path / "c.yaml") == config
    assert yaml.safe_load(to_yaml(config)) == config.resolved()


def test_only_what_cannot_change_results_may_differ_on_resume() -> None:
    around = ("plan.", "ray.", "slurm.")  # where and at what cost it runs: nothing of that changes a result
    free = set(free_keys(BuildPrefsConfig))
    assert {entry.path for entry in keys(BuildPrefsConfig) if entry.path.startswith(around)} <= free
    assert {path for path in free if not path.startswith(around)} == {
        "run_dir", "tracking.uri", "tracking.experiment", "tracking.parent", "tracking.iteration", "launcher",
        "limits.workers", "search.state_cache", "env.isolate", "limits.environments", "sandbox.allow",
        "audit", "report",
    }  # fmt: skip


def test_defaults_are_valid_and_frozen() -> None:
    config = load(BuildPrefsConfig)
    with pytest.raises(ValueError):
        config.search.simulations = 3  # type: ignore[misc]


def test_secrets_do_not_reach_manifest_or_tracking() -> None:
    overrides = ["policy.api_key=sk-123", "tracking.uri=http://me:word@host/x", "policy.max_tokens=5", "env.token=t"]
    config = load(BuildPrefsConfig, None, overrides)
    assert config.policy.given()["api_key"] == "sk-123" and config.tracking.uri == "http://me:word@host/x"
    resolved = config.resolved()
    assert resolved["policy"]["api_key"] == "***" and resolved["env"]["token"] == "***"
    assert resolved["tracking"]["uri"] == "http://***@host/x" and resolved["policy"]["max_tokens"] == 5


def test_own_sections() -> None:
    class Inner(Plugged):
        name: str = key("a", "which")

    class Own(Section):
        inner: Inner = key(Inner(name="a"), "inner")
        size: int = key(1, "how many", ge=1)

    assert load(Own, None, ["inner=b", "inner.x=1", "size=2"]).inner.given() == {"x": 1}


PAIRED = "dpo.enabled=true"


def test_the_loop_trains_on_kinds_that_are_built() -> None:
    assert load(IterateConfig, None, [PAIRED, "dpo.kinds=[step]"]).dpo.kinds == ("step",)
    with pytest.raises(ConfigError, match=r"dpo\.kinds: none of minimal is built; pairs\.kinds builds step"):
        load(IterateConfig, None, [PAIRED, "dpo.kinds=[minimal]", "pairs.kinds=[step]"])


@pytest.mark.parametrize(
    ("overrides", "built"),
    [
        ([], ("hindsight",)),  # fine-tuning takes hindsight's trajectories
        (["filtered.origins=[search]"], ()),
        ([PAIRED], ("step", "trajectory", "hindsight")),
        ([PAIRED, "dpo.kinds=[step]"], ("step", "hindsight")),
        ([PAIRED, "dpo.kinds=[trajectory]", "filtered.origins=[search,pruned]"], ("trajectory", "minimal")),
        (["pairs.kinds=[step,minimal]"], ("step", "minimal")),
        ([PAIRED, "dpo.kinds=[step]", "filtered.origins=[search]", "pairs.min_gap=0.3"], ("step",)),
    ],
)
def test_the_loop_builds_what_is_used(overrides: list[str], built: tuple[str, ...], tmp_path: Path) -> None:
    config = load(IterateConfig, None, overrides)
    assert config.pairs.kinds == built
    (tmp_path / "c.yaml").write_text(to_yaml(config))
    assert load(IterateConfig, tmp_path / "c.yaml", []) == config


def test_by_default_training_uses_what_was_measured_to_help() -> None:
    assert load(TrainDpoConfig, None, []).data.kinds == ("step",)
    loop = load(IterateConfig, None, [])  # the recipe of benchmarks/arms.py
    assert not loop.dpo.enabled and loop.sft.optimizer.epochs == 6 and loop.search.until == "success"
    loop = load(IterateConfig, None, [PAIRED])
    assert loop.dpo.kinds == ("step", "trajectory") and loop.pairs.decisive
    assert len(load(BuildPrefsConfig, None, []).pairs.kinds) == 4  # what is built can be looked at


@pytest.mark.parametrize("model", [BuildPrefsConfig, EvaluateConfig, IterateConfig, RefineGrpoConfig, TrainDpoConfig])
def test_no_number_is_without_bounds(model: Any) -> None:
    numbers = [entry.path for entry in keys(model) if {"integer", "number"} & set(entry.allowed.split())]
    assert len(numbers) > 20
    for value in ("1" + "0" * 40, "-1" + "0" * 40):
        with pytest.raises(ConfigError) as caught:
            load(model, overrides=[f"{path}={value}" for path in numbers])
        named = {fault.partition(":")[0] for fault in caught.value.faults}
        assert not set(numbers) - named


@pytest.mark.parametrize(
    "override",
    [
        "limits.workers=100000", "tasks.offset=10000000000000000000000000000000000000000",
        "pairs.confidence=0.9999999999999999", "search.critic=nan", "search.critic=policies", "tracking.uri=none",
    ],
)  # fmt: skip
def test_values_that_no_run_can_use_are_refused(override: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(override.partition("=")[0])):
        load(BuildPrefsConfig, overrides=[override])


def test_a_text_with_a_zero_byte_is_refused() -> None:
    with pytest.raises(ConfigError, match="run_dir.*zero byte"):
        load(BuildPrefsConfig, overrides=["run_dir=a\0b"])
