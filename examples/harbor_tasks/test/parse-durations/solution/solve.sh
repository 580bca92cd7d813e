#!/bin/bash

cat > durations.py <<'EOF'
"""Durations in words."""

import re

_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_TEXT = re.compile(r"\s*".join(f"(?:([0-9]+){unit})?" for unit, _ in _UNITS))


def seconds(text: str) -> int:
    """Return the seconds of a text such as `1h30m`; raises ValueError where it is none."""
    found = _TEXT.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        raise ValueError(f"{text!r} is no duration")
    return sum(int(number or 0) * size for number, (_, size) in zip(found.groups(), _UNITS))
EOF

python3 -c 'import test_durations as t; t.test_days(); t.test_hours_and_minutes(); print("passed")'
