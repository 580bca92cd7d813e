"""Mathematical answers by their whole values: what is right in another form, and what only lies near it."""

from __future__ import annotations

import random

import pytest

from offline_agent.envs.math.problems import problems
from offline_agent.judges.formulas import Gold, judged
from tests.helpers.near_misses import near_misses

GOLDS = {  # MATH's kinds of right answers, and other forms of each
    r"3\sqrt{2}": (r"\sqrt{18}", "3*sqrt(2)", r"\frac{6}{\sqrt2}", "4.24264069"),
    r"2^{10}": ("1024", "2**10", "2^10", "1,024"), "10!": ("3628800", r"3,\!628,\!800"),
    r"\sin x": ("sin(x)",), r"\ln 2": ("ln(2)",), "e^2": ("exp(2)",),
    r"4\pi": ("4pi", "4*pi", "4π", r"$4\pi$"), "x^2+2x+1": ("(x+1)^2", "1 + 2x + x²"),
    r"2\frac13": ("7/3", "2 1/3", r"\frac{7}{3}", r"2\tfrac{1}{3}", r"2.\overline{3}"),
    r"-\frac{3}{4}": ("-3/4", "-0.75", r"\frac{-3}{4}"), r"\frac13": ("0.333333", r"0.\overline{3}"),
    r"x \ge 3": ("x >= 3", r"3 \le x", r"[3, \infty)", "2x ≥ 6"), "1 < x < 2": ("2 > x > 1", "(1, 2)"),
    "(0, 1000)": (r"\left(0,1000\right)", "(0,10^3)"), r"\left(3, \frac{\pi}{2}\right)": ("(3, pi/2)", "(3, π/2)"),
    "2, 3": ("3, 2", r"\{2, 3\}", r"x = 2 \text{ or } x = 3", r"$2$ and $3$", "2;3"), r"\pm 2": ("2, -2",
    r"-2 \text{ and } 2"),
    r"1 + \sqrt{19}, 1 - \sqrt{19}": (r"1 \pm \sqrt{19}",),
    r"(-\infty, 3) \cup [5, \infty)": (r"[5,\infty) \cup (-\infty,3)",),
    "84": ("x = 84", "80 + 4 = 84", "$84", r"\$84", "84 dollars", "84 eggs per day", "84.", "**84**",
    r"\boxed{84}", "84.0",
           "The answer is 84.", "The answer is $84$.", "She sells 3 of 28. The answer: 84 dollars", r"84\text{ cm}^2"),
    "84000": ("84 thousand", "84,000", "84 000", "8.4e4"), "-7": ("−7", "-7.0"), "0": ("0.0", "-0"), "1": ("-i^2",),
    r"50\%": ("50", "0.5", "50 percent"), r"12\text{ cm}": ("12", "12 cm"), "2516_8": ("2516", "2516_{8}"),
    r"90^\circ": ("90", "90°"), "y = 2x+3": ("2x+3", "y - 2x - 3 = 0", "2x + 3 = y"), "x=84": ("84", "84 = x"),
    "6-5i": ("-5i+6",), r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}": (r"\begin{pmatrix} 1 \\ \frac42 \end{pmatrix}",),
    r"\text{even}": ("even", "Even.", "It is the answer: even"), r"\text{(B)}": ("B", "(B)", "The answer is (B)."),
    "x=1, y=2": ("y = 2, x = 1",), "(1,2), (3,4)": ("(3,4), (1,2)",), "5m": ("m5",), "3:2": ("3 : 2",),
    r"\infty": ("∞",),
    "2^{200}": ("1606938044258990275541962092341162602522202993782792835301376",), "k+2": ("2 + k",),
    r"x < -1 \text{ or } x > 5": ("x > 5 or x < -1",), r"\log_2 5": (r"\frac{\ln 5}{\ln 2}",), "10:30": ("10:30",),
}  # fmt: skip

WRONG = [
    ("2, 3", "5, 3"), ("2, 3", "2"), ("(1000, 0)", "(0, 1000)"), ("84", "8 4"), ("87", "84 3"), ("84", "83 = 84"),
    ("84", "y"),
    ("0.0000672", "0.0000670"), ("1234567", "1234568.0"), ("1/3", "0.33"), (r"\text{even}", "neve"), ("5m", "5"),
    ("5", "5x"),
    ("2^{200}", "1606938044258990275541962092341162602522202993782792835301377"), ("x=84", "y=84"), ("10:30", "1/3"),
    (r"5\text{ million}", "5"), (r"x < -1 \text{ or } x > 5", r"x < -1 \text{ and } x > 5"), ("1 < x < 2",
    r"1 < x \le 2"),
    ("84", "no idea"), ("84", ""), ("84", r"\boxed{83} or \boxed{84}"), ("84", "She eats 3 and sells 84."), ("x^2",
    "x = x^2"),
    (r"3 \text{ R } 2", "6R"), (r"\text{(B)}", "-B"), ("84", "not 84"), (r"\frac{1}{0}", "84"), ("50", "0.5"),
    ("-84", "minus 84 1"),
]  # fmt: skip


def right(answer: str, gold: str) -> bool:
    return judged(answer, Gold(gold))[0]


@pytest.mark.parametrize("gold", GOLDS)
def test_a_right_answer_is_paid_in_every_form_and_none_that_lies_near_it(gold: str) -> None:
    assert [form for form in (gold, *GOLDS[gold]) if not right(form, gold)] == []
    assert [miss for miss in near_misses(gold) if right(miss, gold)] == []


@pytest.mark.parametrize(("gold", "answer"), WRONG)
def test_a_wrong_answer(gold: str, answer: str) -> None:
    assert not right(answer, gold) and right(gold, gold)


def test_every_number_of_the_generated_problems_has_near_misses_that_are_not_paid() -> None:
    golds = random.Random(0).sample(sorted({row["gold"] for row in problems("test")}), 20)
    assert [(gold, miss) for gold in golds for miss in near_misses(gold) if right(miss, gold)] == []


def test_near_misses_have_the_other_relation_factor_sign_set_and_part() -> None:
    for gold, some in {
        r"3\sqrt{2}": ("3", r"\sqrt{2}", r"-3\sqrt{2}", "3{2}"), r"x \ge 3": (r"x \le 3",), "2, 3": ("2", "(2, 3)",
        "2, 3, 7919"),
        r"2\frac13": ("2", r"\frac13"), "84": (r"\pm 84", r"x \ge 84", "84.5", "84!"), "2^{10}": ("2",),
        "(0, 5)": ("0, 5", " 5"),
    }.items():  # fmt: skip
        assert set(some) <= set(near_misses(gold)), gold
