"""Programmatic verifiers: plain functions of what was produced and what was wanted, each answering with a verdict.

A verifier that cannot score says so (`score=None` and an error); it never answers 0 for its own failure, and it never
raises. What the policy did wrong (an answer that is no number, a query that does not run) is a score of 0.
"""

from __future__ import annotations

import functools
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ParamSpec

from offline_agent.judges.symbolic import NotCompared, compare
from offline_agent.records import Verdict

P = ParamSpec("P")

_ARTICLES = re.compile(r"\b(a|an|the)\s+(?=\S)")
_PUNCTUATION = re.compile(
    r"[,;:?'\"()\[\]{}_`\\]|\*\*|\.(?!\d)|(?<!\d)!|(?<!\d)/|/(?!\d)|(?<!\w)-(?!\.?\d)|(?<=\w)-(?=\w)"
)
_SHOWN = 20
_ROUNDING = 1e-6  # of a sum of weights


class Unscorable(Exception):
    """Raised inside a verifier when it cannot score; becomes a verdict without a score."""


def verifier(version: str) -> Callable[[Callable[P, tuple[float, bool, dict[str, Any]]]], Callable[P, Verdict]]:
    """Return a decorator that turns a function giving (score, success, evidence) into a verifier that never raises.

    The verifier's attributes `verifier` and `version` are the name and the version of its verdicts. Its first parameter
    is what was produced, so that `judge=` can name it (`judge.AnswerJudge`).
    """

    def wrap(function: Callable[P, tuple[float, bool, dict[str, Any]]]) -> Callable[P, Verdict]:
        name = function.__name__

        @functools.wraps(function)
        def judge(*args: P.args, **kwargs: P.kwargs) -> Verdict:
            try:
                score, success, evidence = function(*args, **kwargs)
                facts = json.loads(json.dumps(evidence, default=str))
                if not -_ROUNDING <= float(score) <= 1 + _ROUNDING:
                    raise Unscorable(f"{name} gave the score {score!r}, allowed: from 0 to 1")
                return Verdict(min(1.0, max(0.0, float(score))), bool(success), name, version, facts)
            except Unscorable as error:
                return Verdict(None, None, name, version, error=str(error))
            except Exception as error:
                return Verdict(None, None, name, version, error=f"{name} raised {type(error).__name__}: {error}")

        judge.__annotations__["return"] = Verdict
        judge.verifier, judge.version = name, version  # type: ignore[attr-defined]
        return judge

    return wrap


def normalise(text: str) -> str:
    """Return an answer as SQuAD compares it (Rajpurkar et al. 2016): no case, punctuation, articles or extra space.

    What makes another answer stays: signs, the point of a decimal, symbols (C++, C#, 50%), an article with no word
    after it (plan A), and the text itself where nothing else would be left.
    """
    folded = unicodedata.normalize("NFKC", text).casefold().replace("\u2212", "-")
    return " ".join(_PUNCTUATION.sub(" ", _ARTICLES.sub(" ", folded)).split()) or " ".join(folded.split())


@verifier("2")
def exact_match(answer: str, gold: str | Sequence[str], normalised: bool = True) -> tuple[float, bool, dict[str, Any]]:
    """Judge an answer by equality with one of the accepted ones.

    Args:
        answer: The given answer.
        gold: The accepted answer, or several.
        normalised: Compare as `normalise` leaves them; False compares the texts themselves.
    """
    accepted = _golds(gold)
    form = normalise if normalised else str
    matched = next((text for text in accepted if form(text) == form(answer)), None)
    return float(matched is not None), matched is not None, {"answer": answer, "accepted": accepted, "matched": matched}


@verifier("2")
def f1(answer: str, gold: str | Sequence[str], threshold: float = 1.0) -> tuple[float, bool, dict[str, Any]]:
    """Judge an answer by the F1 of its words against the nearest accepted answer (SQuAD, Rajpurkar et al. 2016).

    Args:
        answer: The given answer.
        gold: The accepted answer, or several.
        threshold: The least F1 that is a success.
    """
    accepted = _golds(gold)
    scores = [_word_f1(normalise(answer).split(), normalise(text).split()) for text in accepted]
    best = max(range(len(scores)), key=lambda i: scores[i])
    evidence = {"answer": answer, "accepted": accepted, "nearest": accepted[best], "f1": scores[best]}
    return scores[best], scores[best] >= threshold, evidence


@verifier("2")
def symbolic(answer: str, gold: str, seconds: float = 3.0) -> tuple[float, bool, dict[str, Any]]:
    """Judge a mathematical answer by the equality of whole values, in a process that can be stopped.

    Args:
        answer: Text that holds the answer; LaTeX, or an expression. Units are not compared.
        gold: The right answer.
        seconds: Time of the processor. An answer that takes longer is wrong; without a score where the gold does.
    """
    try:
        found = compare(answer, gold, seconds)
    except NotCompared as error:
        raise Unscorable(str(error)) from error
    reason = {"reason": found["reason"]} if "reason" in found else {}
    evidence = {"answer": answer, "gold": gold, "parsed": found.get("answer", ""), "parsed_gold": found.get("gold", "")}
    return float(found["equal"]), found["equal"], {**evidence, **reason}


@verifier("1")
def rows(
    got: Sequence[Sequence[Any]], wanted: Sequence[Sequence[Any]], ordered: bool = False, digits: int = 9
) -> tuple[float, bool, dict[str, Any]]:
    """Judge result rows by equality; without an order the rows are a multiset.

    Args:
        got: Rows of values.
        wanted: The right rows.
        ordered: Whether the order of the rows counts.
        digits: Significant digits in which floats are compared; 1 equals 1.0, and integers are compared whole.
    """
    if isinstance(got, str | bytes | Mapping):
        return 0.0, False, {"got": f"{type(got).__name__}, not rows"}
    left = [tuple(_cell(value, digits) for value in row) for row in got]
    right = [tuple(_cell(value, digits) for value in row) for row in wanted]
    if ordered:
        at = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
        equal = left == right
        evidence: dict[str, Any] = {"rows": len(left), "wanted": len(right), "first_difference": None if equal else at}
        return float(equal), equal, evidence
    missing, extra = Counter(right) - Counter(left), Counter(left) - Counter(right)
    equal = not missing and not extra
    evidence = {"rows": len(left), "wanted": len(right), "missing": _shown(missing), "extra": _shown(extra)}
    return float(equal), equal, evidence


@verifier("1")
def goal_state(
    state: Mapping[str, Any],
    goal: Mapping[str, Any],
    ignore: Collection[str] = (),
    subset: bool = False,
    partial: bool = False,
) -> tuple[float, bool, dict[str, Any]]:
    """Judge the end state of stateful tools by equality with the goal state; the evidence is the difference.

    Args:
        state: Nested dicts and lists of values.
        goal: The state that was to be reached.
        ignore: Paths left out, as in `orders.0.updated_at`; a path leaves out all below it.
        subset: Only what the goal names counts; other entries of the state are free.
        partial: The score is the share of the goal's leaves that hold, not 0 or 1; success still needs them all.
    """
    have, want = _leaves(state, ignore), _leaves(goal, ignore)
    missing = {path: value for path, value in want.items() if path not in have}
    changed = {path: [have[path], want[path]] for path in want if path in have and not _equal(have[path], want[path])}
    extra = {} if subset else {path: value for path, value in have.items() if path not in want}
    success = not missing and not changed and not extra
    total = len(want) + len(extra)
    share = 1.0 if not total else (len(want) - len(missing) - len(changed)) / total
    evidence = {
        "missing": dict(list(missing.items())[:_SHOWN]),
        "changed": dict(list(changed.items())[:_SHOWN]),
        "extra": dict(list(extra.items())[:_SHOWN]),
        "differences": len(missing) + len(changed) + len(extra),
    }
    return (share if partial else float(success)), success, evidence


@verifier("1")
def purchase(bought: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> tuple[float, bool, dict[str, Any]]:
    """Judge a purchase by WebShop's reward; see `purchase_reward`.

    Args:
        bought: The product that was bought; None where none was.
        wanted: The requested product.
    """
    if bought is None:
        return 0.0, False, {"bought": None}
    score, evidence = purchase_reward(bought, wanted)
    return score, score == 1.0, {**evidence, "bought": dict(bought)}


def purchase_reward(bought: Mapping[str, Any], wanted: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
    """Return WebShop's reward in [0, 1] (Yao et al. 2022, eq. 1) and the facts it rests on.

    r = r_type · (|attributes matched| + |options matched| + [price ≤ limit]) / (|U_att| + |U_opt| + 1).

    Args:
        bought: `type`, `attributes`, `options` (name → chosen value), `price`, perhaps `category`.
        wanted: `type`, `attributes`, `options`, `max_price`, perhaps `category`; of several types allowed, a list.

    Returns:
        The reward, and `type` (r_type), `attributes` and `options` (those that match), `price_ok`.
    """
    has = {normalise(str(word)) for word in bought["attributes"]}
    chosen = {str(name): normalise(str(value)) for name, value in dict(bought["options"]).items()}
    options = dict(wanted["options"])
    attributes = [word for word in wanted["attributes"] if normalise(str(word)) in has]
    matched = {name: value for name, value in options.items() if chosen.get(str(name)) == normalise(str(value))}
    price_ok = float(bought["price"]) <= float(wanted["max_price"])
    kind = _type_reward(bought, wanted)
    score = kind * (len(attributes) + len(matched) + price_ok) / (len(wanted["attributes"]) + len(options) + 1)
    return score, {"type": kind, "attributes": attributes, "options": matched, "price_ok": price_ok}


def _type_reward(bought: Mapping[str, Any], wanted: Mapping[str, Any]) -> float:
    """Return WebShop's r_type: 1 for the type, 0.5 where more than a fifth of its words match, 0.1 where any does.

    WebShop (eq. 2) compares query, category and the nouns of long titles. Here the words of the type stand for the
    nouns; the same category alone, where both sides name one, is worth 0.1.
    """
    category = bought.get("category")
    best = 0.1 if category is not None and category == wanted.get("category") else 0.0
    got = set(normalise(str(bought["type"])).split())
    for kind in _golds(wanted["type"]):
        words = set(normalise(kind).split())
        share = len(words & got) / len(words) if words else 0.0
        best = max(best, 1.0 if share == 1.0 else 0.5 if share > 0.2 else 0.1 if share > 0 else 0.0)
    return best


def _golds(gold: str | Sequence[str]) -> list[str]:
    accepted = [gold] if isinstance(gold, str) else list(gold)
    if not accepted:
        raise Unscorable("there is no accepted answer to compare with")
    return accepted


def _word_f1(answer: list[str], gold: list[str]) -> float:
    if not answer or not gold:
        return float(answer == gold)
    common = sum((Counter(answer) & Counter(gold)).values())
    if not common:
        return 0.0
    precision, recall = common / len(answer), common / len(gold)
    return 2 * precision * recall / (precision + recall)


def _cell(value: Any, digits: int) -> Any:
    if isinstance(value, int):
        return int(value)  # True is 1 to a database
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        rounded = float(f"{value:.{digits}g}")  # near numbers become equal, and hashable alike
        return int(rounded) if rounded.is_integer() else rounded
    return value if value is None or isinstance(value, str | bytes) else str(value)


def _shown(counter: Counter[Any]) -> list[list[Any]]:
    return [[None if value is None else str(value) for value in row] for row in list(counter.elements())[:_SHOWN]]


def _leaves(value: Any, ignore: Collection[str], path: str = "") -> dict[str, Any]:
    """Flatten nested dicts and lists to path → value; empty ones are leaves, so that {} and absence differ.

    One whose every member is ignored is empty; of an empty whole there are no leaves.
    """
    if path and path in ignore:
        return {}
    items: list[tuple[Any, Any]] | None = None
    if isinstance(value, Mapping) and value:
        items = list(value.items())
    elif isinstance(value, list | tuple) and value:
        items = list(enumerate(value))
    if items is None:
        return {path: value} if path or not isinstance(value, Mapping | list | tuple) else {}
    out: dict[str, Any] = {}
    for key, item in items:
        out.update(_leaves(item, ignore, f"{path}.{key}" if path else str(key)))
    return out if out or not path else {path: {} if isinstance(value, Mapping) else []}


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, bool) != isinstance(b, bool):
        return False
    if isinstance(a, float) or isinstance(b, float):
        try:
            return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
        except (TypeError, OverflowError):  # an integer may be too large for a float
            return False
    return bool(a == b)
