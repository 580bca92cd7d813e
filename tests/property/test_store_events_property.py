from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from offline_agent.errors import DataError
from offline_agent.store.events import EventLog
from offline_agent.store.files import safe_name
from offline_agent.store.provenance import hash_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
RECORDS = st.lists(
    st.dictionaries(st.text(max_size=8), VALUES, max_size=4)
    | st.fixed_dictionaries({"tree": st.sampled_from(["a", 'b"', "\ud800"])}, optional={"n": VALUES}),
    min_size=1,
    max_size=6,
)


def _write(path: Path, records: list[dict]) -> None:
    log = EventLog(path)
    for record in records:
        log.append(record)
    log.close()


@given(RECORDS, st.data())
@settings(max_examples=60)
def test_a_log_cut_anywhere_is_a_prefix_and_goes_on(records: list[dict], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "e.jsonl"
        _write(path, records)
        assert list(EventLog(path).read()) == records
        raw = path.read_bytes()
        path.write_bytes(raw[: data.draw(st.integers(0, len(raw)))])
        kept = list(EventLog(path).read())
        assert kept == records[: len(kept)]
        _write(path, records[len(kept) :])
        assert path.read_bytes() == raw


@given(RECORDS, st.data())
@settings(max_examples=60)
def test_a_changed_byte_is_never_read_as_something_else(records: list[dict], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "e.jsonl"
        _write(path, records)
        raw = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place] ^= data.draw(st.integers(1, 255))
        path.write_bytes(raw)
        kept = []
        try:
            for record in EventLog(path).read():
                kept.append(record)
        except DataError as error:
            assert "e.jsonl" in str(error)
        assert kept == records[: len(kept)]


@given(st.text(max_size=300))
def test_file_names_are_safe(name: str) -> None:
    from urllib.parse import unquote

    safe = safe_name(name)
    assert safe and len(safe) <= 120 and not safe.startswith(".") and "/" not in safe and safe.isascii()
    if name and "~" not in safe:
        assert unquote(safe, errors="surrogatepass") == name


@given(st.lists(st.text(max_size=200), unique=True, max_size=6))
def test_file_names_differ(names: list[str]) -> None:
    assert len({safe_name(name) for name in names}) == len(names)


@given(st.dictionaries(st.text(), VALUES))
def test_the_order_of_keys_does_not_change_a_hash(data: dict) -> None:
    assert hash_json(data) == hash_json(dict(reversed(data.items())))
