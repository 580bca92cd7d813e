"""docs/masks.md: its example gives the masks that its table claims, and its table of fields is the certificate's."""

import json
import re
from pathlib import Path
from typing import Any

from offline_agent.rendering import certificate

PAGE = (Path(__file__).parents[3] / "docs" / "masks.md").read_text(encoding="utf-8")


def test_the_example_of_the_page(capsys: Any) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    scope: dict[str, Any] = {}
    exec(compile(source, "masks.md", "exec"), scope)
    row, renderer = scope["row"], scope["renderer"]
    turns: list[str] = []
    for on, before, token in zip(row["action_mask"], [0, *row["action_mask"]], row["input_ids"], strict=False):
        if on and not before:
            turns.append("")
        if on:
            turns[-1] += renderer.decode([token])
    end = renderer.decode([renderer.end_id])
    assert turns == [scope["turn"] + end, "Done." + end], "1 on the two turns with their ends, and nowhere else"
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(row["input_ids"]) and sum(line.startswith("1") for line in printed) == sum(
        row["action_mask"]
    )
    sealed = json.loads(certificate.seal(row["certificate"], {"weight": 1.0}))
    fields = {name for line in re.findall(r"^\| (`.*?) \| ", PAGE, re.M) for name in re.findall(r"`(\w+)`", line)}
    assert set(sealed) | {"prompt", "chosen", "rejected"} == fields
    assert set(sealed["sequence"]) - {"round_trip"} <= set(re.findall(r"`(\w+)`", PAGE))
