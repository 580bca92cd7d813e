from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from offline_agent.preferences.dataset.balance import Balance
from offline_agent.preferences.dataset.candidates import PairFacts
from offline_agent.preferences.settings import PairRules
from tests.helpers import balance_reference

NARROW = st.binary(min_size=1, max_size=1)
WIDE = st.binary(min_size=16, max_size=16)
HALVES = st.sampled_from([b"12345678" * 2, b"12345678abcdefgh", b"abcdefgh12345678", b"abcdefgh" * 2])
EVEN = st.sampled_from([0.9, 0.95])  # so that places are decided by what comes after


def facts(keys: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[PairFacts]]:
    one = st.builds(
        PairFacts,
        st.integers().map("p{}".format),
        st.sampled_from(["step", "trajectory", "hindsight", "minimal"]),
        st.sampled_from(["a", "b", "c", "ü\ud800"]),
        st.integers(0, 3),
        keys,
        keys,
        keys,
        st.integers(0, 60),
        st.integers(0, 60),
        EVEN | st.floats(0.5, 1),
        EVEN | st.floats(0, 1),
    )
    return st.lists(one, max_size=50)


RULES = st.builds(
    Balance,
    st.builds(
        PairRules,
        per_task=st.sampled_from([1, 3, 16]),
        per_depth=st.sampled_from([1, 2, 99]),
        length_tolerance=st.sampled_from([0.0, 0.01, 0.05, 0.3, 1e9]),
    ),
    bins=st.sampled_from([1, 3, 8]),
)


@settings(deadline=None, max_examples=150)
@given(RULES, facts(NARROW) | facts(WIDE) | facts(HALVES))
def test_columns_select_what_lists_do(rules: Balance, pairs: list[PairFacts]) -> None:
    assert balance_reference.chosen(rules, pairs) == balance_reference.select(rules, pairs)
