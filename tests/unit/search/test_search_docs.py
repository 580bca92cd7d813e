"""docs/search.md names every setting of the search with its default."""

from __future__ import annotations

import json
import re
from pathlib import Path

from offline_agent.search.settings import SearchSection

PAGE = (Path(__file__).parents[3] / "docs" / "search.md").read_text(encoding="utf-8")


def test_every_key_of_the_search_is_named_with_its_default() -> None:
    for name, field in SearchSection.model_fields.items():
        if name in ("budget", "algorithm", "selection", "value"):  # their default is given in words
            assert name in PAGE
            continue
        default = field.default if isinstance(field.default, str) else json.dumps(field.default)
        assert re.search(rf"`{name}`? \({re.escape(default)}\)|{name} \({re.escape(default)}\)", PAGE), name
