"""Embedded world: people, cities, firms, universities, books and films with relations, a passage for each, questions.

Everything is drawn from one seed. A question names one thing and asks for another that is two or three relations away.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from offline_agent.judges.verifiers import normalise
from offline_agent.seeding import derive_seed
from offline_agent_environments.search_qa.passages import Collection, Passage

SEED = 11
_SIZES = {"country": 24, "city": 90, "university": 40, "person": 200, "firm": 60, "book": 90, "film": 70}


def _words(text: str) -> list[str]:
    return text.split()


_STARTS = _words("Ba Cor Del El Fa Gal Hir Ist Jo Kel Lor Mar Nev Or Pel Quin Ros Sel Tor Ul Ver Wil Yar Zan")
_MIDDLES = _words("ba de go li mo na ra si ta vo")
_PLACES = {
    "country": _words("land mark nia ria stan via"),
    "city": _words("berg burn dale ford haven holm mouth port stead ton"),
}
_FIRST = _words(
    "Agnes Bernard Clara Dorian Edith Felix Greta Henrik Irene Jasper Katrin Leon Marta Nikolai Odile Piet Rosa Stefan"
    " Teresa Viktor"
)
_LAST = _words(
    "Abel Brandt Castell Dorn Ekman Ferro Granger Holt Ilves Jarosz Kampf Lindqvist Moser Nyberg Ostrow Pardo Quist"
    " Reuter Sandor Thorne"
)
_BOOKS = (
    ("The", "A", "Beyond the", "Under the"),
    _words("Amber Broken Crimson Distant Empty Quiet Salt Winter"),
    _words("Bridge Canal Island Letter Orchard River Station Window"),
)
_FILMS = (
    _words("Night Day Return Song Ghost Summer Secret Last Train"),
    _words("Glass Iron Paper Silence Smoke Stone Thunder Velvet Ashes"),
)
_FIRMS = ("Works", "Group", "Press", "Mills", "Lines", "Labs")
_TRADES = ("chemist", "engineer", "journalist", "lawyer", "painter", "physician", "teacher")

_PATHS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("book", "author", "birthplace"), "In which city was the author of {0} born?"),
    (("book", "author", "employer"), "For which firm did the author of {0} work?"),
    (("book", "author", "university"), "At which university did the author of {0} study?"),
    (("book", "publisher", "founder"), "Who founded the firm that published {0}?"),
    (("film", "director", "birthplace"), "In which city was the director of {0} born?"),
    (("film", "director", "university"), "At which university did the director of {0} study?"),
    (("firm", "founder", "birthplace"), "In which city was the founder of {0} born?"),
    (("firm", "founder", "university"), "At which university did the founder of {0} study?"),
    (("person", "employer", "founder"), "Who founded the firm for which {0} worked?"),
    (("person", "employer", "seat"), "In which city is the firm for which {0} worked?"),
    (("person", "university", "place"), "In which city is the university at which {0} studied?"),
    (("film", "director", "birthplace", "country"), "In which country is the city where the director of {0} was born?"),
    (
        ("book", "publisher", "founder", "university"),
        "At which university did the founder of the publisher of {0} study?",
    ),
    (("book", "author", "employer", "seat"), "In which city is the firm for which the author of {0} worked?"),
    (
        ("person", "employer", "founder", "birthplace"),
        "In which city was the founder of the firm for which {0} worked born?",
    ),
    (
        ("firm", "founder", "university", "place"),
        "In which city is the university at which the founder of {0} studied?",
    ),
)


class Question(NamedTuple):
    """A question, its answer, and the titles of the passages that together hold it, in order."""

    text: str
    answer: str
    support: tuple[str, ...]


@cache
def collection() -> Collection:
    """Return the world's passages with their index."""
    facts = _facts()
    return Collection([Passage(name, _passage(name, kind, facts)) for kind in _SIZES for name in facts[kind]])


@cache
def questions() -> tuple[Question, ...]:
    """Return all questions, in an order drawn from the seed."""
    found = list(_questions(_facts()))
    random.Random(SEED).shuffle(found)
    return tuple(found)


@cache
def by_answer() -> dict[str, tuple[Question, ...]]:
    """Return normalised answer → the questions that it answers."""
    found: dict[str, list[Question]] = {}
    for question in questions():
        found.setdefault(normalise(question.answer), []).append(question)
    return {answer: tuple(listed) for answer, listed in found.items()}


def split_of(answer: str) -> str:
    """Return the split to which all questions with that answer belong."""
    lot = derive_seed(SEED, "search split", normalise(answer)) % 8
    return "validation" if lot == 0 else "test" if lot == 1 else "train"


def _questions(facts: Mapping[str, Any]) -> Iterator[Question]:
    for (kind, *relations), text in _PATHS:
        for name in facts[kind]:
            way = [name]
            for relation in relations:
                way.append(facts["relations"][way[-1]][relation])
            if len(set(way)) == len(way):  # no one founded the firm where he worked, in a question about it
                said = f'"{name}"' if kind in ("book", "film") else name
                yield Question(text.format(said), way[-1], tuple(way[:-1]))


@cache
def _facts() -> dict[str, Any]:
    """Return kind → names, and `relations`: name → relation → name."""
    rng = random.Random(SEED)
    facts: dict[str, Any] = {}
    for kind, size in _SIZES.items():
        names: dict[str, None] = {}
        while len(names) < size:
            names[_name(kind, facts, rng)] = None
        facts[kind] = list(names)
    relations: dict[str, dict[str, str]] = {}
    for kind in _SIZES:
        for name in facts[kind]:
            relations[name] = {relation: rng.choice(facts[target]) for relation, target in _RELATIONS[kind].items()}
            relations[name] |= {"year": str(rng.randint(1870, 1999)), "trade": rng.choice(_TRADES)}
    return {**facts, "relations": relations}


_RELATIONS: dict[str, dict[str, str]] = {
    "country": {"capital": "city"},
    "city": {"country": "country"},
    "university": {"place": "city"},
    "person": {"birthplace": "city", "employer": "firm", "university": "university"},
    "firm": {"founder": "person", "seat": "city"},
    "book": {"author": "person", "publisher": "firm"},
    "film": {"director": "person"},
}


def _name(kind: str, facts: Mapping[str, Any], rng: random.Random) -> str:
    if kind in _PLACES:
        return rng.choice(_STARTS) + rng.choice(_MIDDLES) * rng.randint(0, 1) + rng.choice(_PLACES[kind])
    if kind == "person":
        return f"{rng.choice(_FIRST)} {rng.choice(_LAST)}"
    if kind == "university":
        return f"{rng.choice(facts['city'])} {rng.choice(('University', 'Academy', 'Institute'))}"
    if kind == "firm":
        return f"{rng.choice(_LAST)} {rng.choice(_FIRMS)}"
    if kind == "book":
        return " ".join(rng.choice(part) for part in _BOOKS)
    return f"{rng.choice(_FILMS[0])} of {rng.choice(_FILMS[1])}"


def _passage(name: str, kind: str, facts: Mapping[str, Any]) -> str:
    about: dict[str, str] = facts["relations"][name]
    rng = random.Random(f"{SEED} {name}")
    other = rng.choice(facts["person"])
    if kind == "country":
        said = [f"{name} is a country.", f"Parliament first met in {about['year']}."]
    elif kind == "city":
        said = [f"{name} is a city in {about['country']}.", f"Its harbour opened in {about['year']}."]
    elif kind == "university":
        said = [f"{name} was founded in {about['year']}.", f"Its halls stand in the city of {about['place']}."]
    elif kind == "person":
        said = [
            f"{name} was a {about['trade']}, born in {about['birthplace']} in {about['year']}.",
            f"After studies at {about['university']}, {name.split()[0]} worked for {about['employer']}.",
        ]
    elif kind == "firm":
        said = [
            f"{name} was founded in {about['year']} by {about['founder']}.",
            f"The firm has its seat in {about['seat']}.",
        ]
    elif kind == "book":
        said = [
            f"{name} is a book by {about['author']}.",
            f"It was published in {about['year']} by {about['publisher']} and praised by {other}.",
        ]
    else:
        said = [
            f"{name} is a film of {about['year']}, directed by {about['director']}.",
            f"{other} was asked to play in it and refused.",
        ]
    return " ".join(said)
