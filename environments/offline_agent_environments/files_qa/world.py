"""Folders of made-up trading houses: tables of several kinds, a log; and questions of three levels over them."""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from offline_agent.seeding import derive_seed
from offline_agent_environments.files_qa.rules import calculated

Call = tuple[str, dict[str, Any]]
Asked = tuple[str, list[Call], str]  # the question, the expert's calls, the answer

_FIRST = ("Ada", "Boris", "Carla", "Dario", "Edda", "Fritz", "Greta", "Hugo", "Ines", "Jonas", "Kira", "Levi")
_LAST = ("Abel", "Berg", "Conti", "Dahl", "Engel", "Falk", "Graf", "Holm", "Iversen", "Jansen", "Koch", "Lund")
_START = ("Nor", "Sil", "Bran", "Hol", "Vel", "Ost", "Mar", "Fen", "Gra", "Tor", "Lin", "Kal")
_END = ("haven", "burg", "mond", "field", "stad", "vik", "ton", "berg")
_MAKES = ("Works", "Tools", "Supply", "Metal", "Parts", "Forge")


class Folder(NamedTuple):
    """A folder, a question about it, and the calls that answer it.

    Attributes:
        files: Name → text.
        question, gold: The question and its answer.
        plan: Names and arguments of the expert's calls; the last one answers.
    """

    files: Mapping[str, str]
    question: str
    gold: str
    plan: tuple[Call, ...]


@lru_cache(maxsize=256)
def make(seed: int, level: int) -> Folder:
    """Return the folder of a seed with a question of a level: 1 (one file), 2 (two), 3 (three or four)."""
    house = _House(random.Random(derive_seed(seed, "files_qa")))
    asked, steps, gold = house.rng.choice(list((_level_1, _level_2, _level_3)[level - 1](house)))
    question = f"The folder has files of the trading house {house.name}, register number {seed}. {asked}"
    return Folder(house.files, question, gold, (("list_files", {}), *steps, ("answer", {"text": gold})))


class _House:
    """A trading house: its tables by the value of their first column, and as files, each of a kind drawn by chance."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        towns = rng.sample([a + b for a in _START for b in _END], 19)
        people = rng.sample([f"{a} {b}" for a in _FIRST for b in _LAST], 12)
        sizes = rng.sample(range(200, 2000, 10), 6)
        firms = [f"{town} {rng.choice(_MAKES)}" for town in towns[:6]]
        self.name = f"{towns[18]} & {rng.choice(_LAST)}"
        self.tables: dict[str, dict[str, dict[str, Any]]] = {
            "suppliers": {name: {"city": city, "contact": person, "contract_until": _day(rng.randrange(212, 1100))}
                          for name, city, person in zip(firms, towns[6:], people, strict=False)},
            "sites": {name: {"manager": person, "capacity": size}
                      for name, person, size in zip(towns[12:], people[6:], sizes, strict=False)},
            "items": {f"PK-{number}": {"supplier": rng.choice(firms), "price_usd": rng.randrange(150, 9000) / 100,
                                       "weight_g": rng.randrange(40, 4000)}
                      for number in rng.sample(range(100, 1000), 24)},
            "rates": {f"2026-0{month}": {"eur_per_usd": rng.randrange(8501, 9500, 2) / 10000} for month in range(1, 7)},
        }  # fmt: skip
        kinds = rng.sample([".csv", ".json", ".md", ".csv"], 4)
        self.paths = {name: name + kind for name, kind in zip(self.tables, kinds, strict=True)}
        self.files = {path: _written(self.tables[name], name, path) for name, path in self.paths.items()}
        self.tables["deliveries"] = {
            f"D-{1000 + 3 * n}": {"day": _day(4 * n + rng.randrange(4)), "count": rng.randrange(2, 90),
                                  "item": rng.choice(list(self.tables["items"])), "site": rng.choice(towns[12:18])}
            for n in range(44)
        }  # fmt: skip
        self.files["deliveries.log"] = "".join(
            f"{row['day']} 05:30 INFO scanner {rng.randrange(1, 6)} restarted\n"
            f"{row['day']} 1{rng.randrange(10)}:{rng.randrange(10, 60)} INFO delivery {name}: {row['count']} x "
            f"{row['item']} to {row['site']}\n" for name, row in self.tables["deliveries"].items()
        )  # fmt: skip

    def draw(self, table: str) -> tuple[str, dict[str, Any]]:
        """Return the name and the values of a row drawn by chance."""
        return self.rng.choice(list(self.tables[table].items()))

    def look(self, table: str, *words: str) -> list[Call]:
        """Return the calls that show a table's columns, and its rows with each of the words."""
        head = [("read_file", {"path": self.paths[table], "from_line": 1, "lines": 6})] if table in self.paths else []
        return [*head, *(("search", {"words": word}) for word in words)]

    def supplied(self, firm: str) -> tuple[list[str], list[dict[str, Any]]]:
        """Return the items of a supplier, and the deliveries of them."""
        codes = [code for code, item in self.tables["items"].items() if item["supplier"] == firm]
        return codes, [row for row in self.tables["deliveries"].values() if row["item"] in codes]


def _day(number: int) -> str:
    return str(datetime.date(2026, 1, 1) + datetime.timedelta(number))


def _written(table: Mapping[str, Mapping[str, Any]], name: str, path: str) -> str:
    rows = [{name.removesuffix("s"): key, **row} for key, row in table.items()]
    if path.endswith(".json"):
        return "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n"
    cells = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    if path.endswith(".csv"):
        return "".join(",".join(row) + "\n" for row in cells)
    cells.insert(1, ["---"] * len(cells[0]))
    return f"# {name.title()}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in cells)


def _level_1(house: _House) -> Iterator[Asked]:
    (item, of), (firm, supplier), (name, delivery) = map(house.draw, ("items", "suppliers", "deliveries"))
    sites = house.tables["sites"]
    yield f"What is the weight of the item {item} in grams?", house.look("items", item), str(of["weight_g"])
    yield f"Who is the contact at the supplier {firm}?", house.look("suppliers", firm), supplier["contact"]
    yield ("Which site has the largest capacity?", [("read_file", {"path": house.paths["sites"], "lines": 20})],
           max(sites, key=lambda site: int(sites[site]["capacity"])))  # fmt: skip
    yield (f"On which day did the delivery {name} arrive? Answer as YYYY-MM-DD.", house.look("deliveries", name),
           delivery["day"])  # fmt: skip


def _level_2(house: _House) -> Iterator[Asked]:
    (code, of), (name, delivery) = map(house.draw, ("items", "deliveries"))
    sent, way = house.tables["items"][delivery["item"]], house.look("deliveries", name)
    yield (f"In which city is the supplier of the item {code}?",
           [*house.look("items", code), *house.look("suppliers", of["supplier"])],
           house.tables["suppliers"][of["supplier"]]["city"])  # fmt: skip
    yield (f"Who manages the site to which the delivery {name} went?", [*way, *house.look("sites", delivery["site"])],
           house.tables["sites"][delivery["site"]]["manager"])  # fmt: skip
    yield (f"How many kilograms did the delivery {name} weigh in all?",
           *_computed([*way, *house.look("items", delivery["item"])],
                      f"{delivery['count']} * {sent['weight_g']} / 1000"))  # fmt: skip
    codes, rows = house.supplied(sent["supplier"])
    yield (f"How many units of all items of the supplier {sent['supplier']} were delivered in all?",
           *_computed(house.look("items", sent["supplier"], *codes),
                      " + ".join(str(row["count"]) for row in rows)))  # fmt: skip


def _level_3(house: _House) -> Iterator[Asked]:
    name, row = house.draw("deliveries")
    item, rate = house.tables["items"][row["item"]], house.tables["rates"][row["day"][:7]]["eur_per_usd"]
    firm, supplier = item["supplier"], house.tables["suppliers"][item["supplier"]]
    way = [*house.look("deliveries", name), *house.look("items", row["item"])]
    yield (f"What did the delivery {name} cost in euros, by the rate of its month, rounded to whole euros?",
           *_computed([*way, *house.look("rates", row["day"][:7])],
                      f"round({row['count']} * {item['price_usd']} * {rate})"))  # fmt: skip
    yield (f"How many days after the arrival of the delivery {name} does the contract with its supplier end?",
           *_computed([*way, *house.look("suppliers", firm)],
                      f'days("{supplier["contract_until"]}") - days("{row["day"]}")'))  # fmt: skip
    codes, rows = house.supplied(firm)
    sites = {one["site"]: house.tables["sites"][one["site"]]["manager"] for one in rows}
    yield (f"Who manages the sites that got items of the supplier in {supplier['city']}? Answer with the names in "
           "alphabetical order, separated by commas.",
           [*house.look("suppliers", supplier["city"]), *house.look("items", firm, *codes),
            *house.look("sites", *sites)], ", ".join(sorted(sites.values())))  # fmt: skip


def _computed(way: list[Call], expression: str) -> tuple[list[Call], str]:
    """Return the calls with a calculation at their end, and its value."""
    return [*way, ("calculate", {"expression": expression})], calculated(expression)
