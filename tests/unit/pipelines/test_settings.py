"""Every key of a section reaches the settings that it stands for, and both have one default."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from offline_agent.config.keys import Key, keys
from offline_agent.config.loading import load
from offline_agent.config.refine_grpo import RefineGrpoConfig
from offline_agent.pipelines.stages.online_keys import online_settings, watch_settings
from offline_agent.training.collapse.watch import WatchSettings

RENAMED = {
    "coefficient": "value_weight", "clip": "value_clip", "learning_rate": "value_rate",  # of critic
}  # fmt: skip


def another(entry: Key) -> str:
    """Return a value that the key allows and that is not its default."""
    words = entry.allowed.removesuffix(" or null").split(" | ")
    if len(words) > 1:
        return next(word for word in words if word != entry.default)
    if entry.allowed.startswith("text"):
        return "ipo"
    if entry.default == "null":
        return "0.5" if "number" in entry.allowed else "3"
    value = float(entry.default)
    if entry.allowed.startswith("integer"):
        return str(int(value) - 1) if value > 4 else str(int(value) + 1)
    return str(value * 0.9 if value else 0.1)


CASES: list[tuple[type[Any], str, Callable[[Any], Any], tuple[str, ...], tuple[str, ...]]] = [
    (RefineGrpoConfig, "watch", watch_settings, ("enabled", "stop"), ()),
    (RefineGrpoConfig, "critic", online_settings, (), ()),
]
EVERY = [
    (model, entry, make, more)
    for model, section, make, left_out, more in CASES
    for entry in keys(model)
    if entry.path.startswith(f"{section}.") and entry.path.count(".") == 1
    and entry.path.partition(".")[2] not in left_out
]  # fmt: skip


@pytest.mark.parametrize(("model", "entry", "make", "more"), EVERY, ids=lambda value: getattr(value, "path", ""))
def test_a_key_reaches_its_setting(model: Any, entry: Key, make: Any, more: tuple[str, ...]) -> None:
    section, _, name = entry.path.partition(".")
    config = load(model, None, [f"{entry.path}={another(entry)}", *more])
    field = RENAMED.get(name, name) if section == "critic" else name
    given = getattr(getattr(config, section), name)
    assert given != getattr(getattr(load(model), section), name), "the value of this test is the default"
    assert getattr(make(config), field) == given


@pytest.mark.parametrize(
    ("section", "record"),
    [
        (load(RefineGrpoConfig).watch, WatchSettings()),
    ],
)
def test_a_key_and_its_setting_have_one_default(section: Any, record: Any) -> None:
    elsewhere = ("stop", "max_steps")
    shared = [name for name in type(section).model_fields if hasattr(record, name) and name not in elsewhere]
    assert shared and all(getattr(section, name) == getattr(record, name) for name in shared)
