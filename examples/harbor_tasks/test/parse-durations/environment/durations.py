"""Durations in words."""


def seconds(text: str) -> int:
    """Return the seconds of a text such as `1h30m`; raises ValueError where it is none."""
    raise NotImplementedError
