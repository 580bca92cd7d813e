"""Folders of made-up trading houses: tables of several kinds, a log, notes; and questions of three levels over them."""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from offline_agent.seeding import derive_seed
from offline_agent_environments.files_qa.rules import calculated

Call = tuple[str, dict[str, Any]]
Row = dict[str, Any]

_FIRST = ("Ada", "Boris", "Carla", "Dario", "Edda", "Fritz", "Greta", "Hugo", "Ines", "Jonas", "Kira", "Levi")
_LAST = ("Abel", "Berg", "Conti", "Dahl", "Engel", "Falk", "Graf", "Holm", "Iversen", "Jansen", "Koch", "Lund")
_START = ("Nor", "Sil", "Bran", "Hol", "Vel", "Ost", "Mar", "Fen", "Gra", "Tor", "Lin", "Kal")
_END = ("haven", "burg", "mond", "field", "stad", "vik", "ton", "berg")
_THINGS = ("valve", "bracket", "sensor", "hinge", "filter", "pulley", "gasket", "spindle", "clamp", "relay")
_MAKES = ("Works", "Tools", "Supply", "Metal", "Parts", "Forge")
_LB = 0.45359237  # kg; the exact value by the agreement of 1959
_MONTHS = range(1, 7)  # of 2026


@dataclass(frozen=True)
class Folder:
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
    asked, steps, gold = house.rng.choice(list(_QUESTIONS[level](house)))
    question = f"The folder has files of the trading house {house.name}, register number {seed}. {asked}"
    return Folder(house.files, question, gold, (("list_files", {}), *steps, ("answer", {"text": gold})))


class _House:
    """A trading house: its tables as rows, and as files; how each kind of table is written depends on the seed."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        towns = rng.sample([a + b for a in _START for b in _END], 16)
        people = rng.sample([f"{a} {b}" for a in _FIRST for b in _LAST], 14)
        self.name = f"{towns[15]} & {rng.choice(_LAST)}"
        self.suppliers = [
            {"supplier": f"{town} {rng.choice(_MAKES)}", "city": city, "contact": person,
             "contract_until": str(datetime.date(2026, 8, 1) + datetime.timedelta(rng.randrange(900)))}
            for town, city, person in zip(towns, rng.sample(towns[6:12], 6), people, strict=False)
        ]  # fmt: skip
        self.items: list[Row] = [
            {"item": f"PK-{number}", "name": rng.choice(_THINGS), "supplier": rng.choice(self.suppliers)["supplier"],
             "price_usd": f"{rng.randrange(150, 9000) / 100:.2f}", "weight_g": rng.randrange(40, 4000)}
            for number in rng.sample(range(100, 1000), 24)
        ]  # fmt: skip
        capacities = rng.sample(range(200, 2000, 10), 6)
        self.sites: list[Row] = [
            {"site": town, "manager": person, "capacity": size}
            for town, person, size in zip(towns[9:15], people[8:], capacities, strict=True)
        ]
        self.rates: list[Row] = [
            {"month": f"2026-{month:02}", "eur_per_usd": f"0.{rng.randrange(8500, 9500)}"} for month in _MONTHS
        ]
        days = sorted(rng.choices(range(1, 29), k=40))
        self.deliveries: list[Row] = [
            {"delivery": f"D-{1000 + 3 * n}", "day": f"2026-{1 + n * len(_MONTHS) // 40:02}-{day:02}",
             "count": rng.randrange(2, 90), "item": rng.choice(self.items)["item"],
             "site": rng.choice(self.sites)["site"]}
            for n, day in enumerate(days)
        ]  # fmt: skip
        self.tables = {"items": self.items, "suppliers": self.suppliers, "sites": self.sites, "rates": self.rates}
        kinds = rng.sample(["csv", "json", "md", rng.choice(["csv", "json", "md"])], 4)
        self.paths = {name: f"{name}.{kind}" for name, kind in zip(self.tables, kinds, strict=True)}
        self.files = {self.paths[name]: _written(name, rows, self.paths[name]) for name, rows in self.tables.items()}
        self.files["deliveries.log"] = self._log()
        self.files["notes.txt"] = f"Weights in the tables are net.\nFor customs in pounds: 1 lb = {_LB} kg.\n"

    def find(self, table: str, **known: Any) -> Row:
        """Return the one row with these values."""
        rows = self.deliveries if table == "deliveries" else self.tables[table]
        return next(row for row in rows if known.items() <= row.items())

    def look(self, table: str, *words: str) -> list[Call]:
        """Return the calls that show a table's columns, and its rows with each of the words."""
        calls: list[Call] = []
        if table != "deliveries":
            calls.append(("read_file", {"path": self.paths[table], "from_line": 1, "lines": 6}))
        return [*calls, *(("search", {"words": word}) for word in words)]

    def _log(self) -> str:
        lines = []
        for one in self.deliveries:
            hour = f"{self.rng.randrange(6, 19):02}:{self.rng.randrange(60):02}"
            if self.rng.random() < 0.3:
                lines.append(f"{one['day']} 05:30 WARN scanner {self.rng.randrange(1, 6)} restarted")
            lines.append(
                f"{one['day']} {hour} INFO delivery {one['delivery']}: {one['count']} x {one['item']} to {one['site']}"
            )
        return "\n".join(lines) + "\n"


def _written(name: str, rows: Sequence[Row], path: str) -> str:
    names = list(rows[0])
    if path.endswith(".json"):
        return "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"
    cells = [names, *([str(value) for value in row.values()] for row in rows)]
    if path.endswith(".csv"):
        return "".join(",".join(row) + "\n" for row in cells)
    cells.insert(1, ["---"] * len(names))
    return f"# {name.title()}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in cells)


Asked = tuple[str, list[Call], str]  # the question, the expert's calls, the answer


def _level_1(house: _House) -> Iterator[Asked]:
    item, supplier = house.rng.choice(house.items), house.rng.choice(house.suppliers)
    delivery, largest = house.rng.choice(house.deliveries), max(house.sites, key=lambda one: int(one["capacity"]))
    yield (f"What is the weight of the item {item['item']} in grams?", house.look("items", item["item"]),
           str(item["weight_g"]))  # fmt: skip
    yield (f"Who is the contact at the supplier {supplier['supplier']}?",
           house.look("suppliers", supplier["supplier"]), supplier["contact"])  # fmt: skip
    yield ("Which site has the largest capacity?",
           [("read_file", {"path": house.paths["sites"], "from_line": 1, "lines": 20})], largest["site"])  # fmt: skip
    yield (f"On which day did the delivery {delivery['delivery']} arrive? Answer as YYYY-MM-DD.",
           house.look("deliveries", delivery["delivery"]), delivery["day"])  # fmt: skip


def _level_2(house: _House) -> Iterator[Asked]:
    item, delivery = house.rng.choice(house.items), house.rng.choice(house.deliveries)
    supplier = house.find("suppliers", supplier=item["supplier"])
    yield (f"In which city is the supplier of the item {item['item']}?",
           [*house.look("items", item["item"]), *house.look("suppliers", item["supplier"])],
           supplier["city"])  # fmt: skip
    yield (f"Who manages the site to which the delivery {delivery['delivery']} went?",
           [*house.look("deliveries", delivery["delivery"]), *house.look("sites", delivery["site"])],
           house.find("sites", site=delivery["site"])["manager"])  # fmt: skip
    sent = house.find("items", item=delivery["item"])
    way = [*house.look("deliveries", delivery["delivery"]), *house.look("items", delivery["item"])]
    yield (f"How many kilograms did the delivery {delivery['delivery']} weigh in all?",
           *_computed(way, f"{delivery['count']} * {sent['weight_g']} / 1000"))  # fmt: skip
    codes = [one["item"] for one in house.items if one["supplier"] == item["supplier"]]
    counts = [str(one["count"]) for one in house.deliveries if one["item"] in codes]
    if counts:
        yield (f"How many units of all items of the supplier {item['supplier']} were delivered in all?",
               *_computed(house.look("items", item["supplier"], *codes), " + ".join(counts)))  # fmt: skip


def _level_3(house: _House) -> Iterator[Asked]:
    for delivery in house.rng.sample(house.deliveries, 3):
        name, item = delivery["delivery"], house.find("items", item=delivery["item"])
        rate = house.find("rates", month=delivery["day"][:7])
        supplier = house.find("suppliers", supplier=item["supplier"])
        way = [*house.look("deliveries", name), *house.look("items", item["item"])]
        cost = f"{delivery['count']} * {item['price_usd']} * {rate['eur_per_usd']}"
        if abs(float(calculated(cost)) % 1 - 0.5) > 1e-6:  # how a half is rounded is no part of the question
            yield (f"What did the delivery {name} cost in euros, by the rate of its month, rounded to whole euros?",
                   *_computed([*way, *house.look("rates", rate["month"])], f"round({cost})"))  # fmt: skip
        yield (f"How many days after the arrival of the delivery {name} does the contract with its supplier end?",
               *_computed([*way, *house.look("suppliers", item["supplier"])],
                          f'days("{supplier["contract_until"]}") - days("{delivery["day"]}")'))  # fmt: skip
        weight = f"round({delivery['count']} * {item['weight_g']} / 1000 / {_LB}, 1)"
        yield (f"How heavy was the delivery {name} in pounds, by the factor of the notes, rounded to one decimal?",
               *_computed([*way, ("read_file", {"path": "notes.txt", "from_line": 1, "lines": 6})],
                          weight))  # fmt: skip
        codes = [one["item"] for one in house.items if one["supplier"] == item["supplier"]]
        sites = {one["site"] for one in house.deliveries if one["item"] in codes}
        managers = sorted(one["manager"] for one in house.sites if one["site"] in sites)
        if len(managers) > 1:
            yield (f"Who manages the sites to which items of the supplier in {supplier['city']} were delivered? "
                   "Answer with the names in alphabetical order, separated by commas.",
                   [*house.look("suppliers", supplier["city"]), *house.look("items", supplier["supplier"], *codes),
                    *house.look("sites", *sorted(sites))], ", ".join(managers))  # fmt: skip


_QUESTIONS = {1: _level_1, 2: _level_2, 3: _level_3}


def _computed(way: list[Call], expression: str) -> tuple[list[Call], str]:
    """Return the calls with a calculation at their end, and its value."""
    return [*way, ("calculate", {"expression": expression})], calculated(expression)
