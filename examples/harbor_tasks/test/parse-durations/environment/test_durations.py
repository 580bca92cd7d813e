from durations import seconds


def test_hours_and_minutes() -> None:
    assert seconds("1h30m") == 5400


def test_days() -> None:
    assert seconds("2d 4h") == 187200
