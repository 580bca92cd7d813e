"""A model that is cached is loaded without the hub; a folder is never asked about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from offline_agent.errors import ConfigError
from offline_agent.rendering import hub


class Kind:
    """Stands in for a class of transformers; loads what `known` says, here or from the hub."""

    def __init__(self, *known: bool) -> None:
        self.known, self.asked = known, list[bool]()

    def from_pretrained(self, source: str, local_files_only: bool, **_: Any) -> str:
        self.asked.append(local_files_only)
        if local_files_only not in self.known:
            raise OSError("it is not there\nand more")
        return source


@pytest.mark.parametrize(("known", "asked"), [((True, False), [True]), ((False,), [True, False])])
def test_what_is_cached_is_loaded_without_the_hub(known: tuple[bool, ...], asked: list[bool]) -> None:
    kind = Kind(*known)
    assert hub.load(kind, "some/model", "policy.model", "a model") == "some/model" and kind.asked == asked


def test_what_is_nowhere_is_refused(tmp_path: Path) -> None:
    for source, asked in (("some/model", [True, False]), (str(tmp_path), [True])):
        kind = Kind()
        with pytest.raises(ConfigError, match=r"policy.model: .* as a model \(OSError: it is not there\)"):
            hub.load(kind, source, "policy.model", "a model")
        assert kind.asked == asked
