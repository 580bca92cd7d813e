"""The shop's seeded catalogue and its ranked search: built once per process, shared by every environment."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

CATALOGUE_SEED = 7
PRODUCTS_PER_KIND = 30
RESULTS_PER_PAGE = 5
MAX_PAGES = 5
MAX_QUERY_WORDS = 32

COLORS = ("red", "blue", "black", "green", "white", "gray")
SIZES = ("small", "medium", "large", "tall", "petite", "wide")


@dataclass(frozen=True, slots=True)
class Department:
    """One department: the attributes and options of its products.

    Attributes:
        kinds: Product types; two types that share their last word are easily taken for one another.
        attributes: Possible attributes of its products; each product has three of them.
        options: Option name → values; each product offers three or four of the values.
    """

    kinds: tuple[str, ...]
    attributes: tuple[str, ...]
    options: dict[str, tuple[str, ...]]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


DEPARTMENTS: dict[str, Department] = {
    "clothing": Department(
        ("rain jacket", "ski jacket", "shirt", "sweater", "scarf", "jeans", "dress", "hoodie"),
        _words("waterproof slim hooded cotton stretchy lined striped light"),
        {"color": COLORS, "size": SIZES},
    ),
    "kitchen": Department(
        ("frying pan", "sauce pan", "kettle", "toaster", "blender", "teapot", "knife", "mug"),
        _words("steel ceramic cordless compact quiet insulated washable nonstick"),
        {"color": COLORS, "finish": _words("matte glossy brushed satin rustic plain")},
    ),
    "home": Department(
        ("desk lamp", "floor lamp", "chair", "sofa", "shelf", "rug", "mirror", "curtain"),
        _words("wooden foldable adjustable padded sturdy modern vintage handmade"),
        {"color": COLORS, "shape": _words("round square oval long short curved")},
    ),
    "electronics": Department(
        ("phone case", "camera case", "headphones", "speaker", "keyboard", "mouse", "charger", "projector"),
        _words("wireless portable rechargeable silent rugged curvy backlit fast"),
        {"color": COLORS, "plug": _words("european british american swiss italian danish")},
    ),
    "food": Department(
        ("mint tea", "herb tea", "coffee", "chocolate", "granola", "almonds", "honey", "crackers"),
        _words("organic vegan sugarfree roasted fresh imported crunchy mild"),
        {
            "flavor": _words("vanilla lemon ginger caramel cinnamon coconut"),
            "pack": _words("single double family jumbo trial gift"),
        },
    ),
    "outdoor": Department(
        ("sleeping bag", "travel bag", "tent", "hammock", "bottle", "helmet", "gloves", "compass"),
        _words("durable inflatable breathable reflective windproof packable ventilated ergonomic"),
        {"color": COLORS, "size": SIZES},
    ),
}

DEPARTMENT_OF: dict[str, str] = {kind: name for name, department in DEPARTMENTS.items() for kind in department.kinds}


@dataclass(frozen=True, slots=True)
class Product:
    """One thing for sale.

    Attributes:
        number: Its place in the catalogue.
        kind: Its type, a key of `DEPARTMENT_OF`.
        attributes: str [3], in the order its page lists them.
        options: Option name → the values on offer.
        price: Whole dollars, 11 to 89, never a multiple of ten.
        title_attribute: The one attribute that the result pages show.
        keyword: An attribute that the product has not, and that its seller had indexed all the same.
    """

    number: int
    kind: str
    attributes: tuple[str, ...]
    options: dict[str, tuple[str, ...]]
    price: int
    title_attribute: str
    keyword: str

    @property
    def title(self) -> str:
        """The product's line on a result page, without the price."""
        return f"{self.title_attribute} {self.kind}"

    def option_of(self, value: str) -> str | None:
        """Return the option that offers `value`, or None."""
        return next((name for name, values in self.options.items() if value in values), None)


class Catalogue:
    """All products and a BM25 index over type, attributes and keyword.

    Attributes:
        products: Every product; a product's number is its place here.
    """

    def __init__(self) -> None:
        rng = random.Random(CATALOGUE_SEED)
        kinds = [kind for kind in DEPARTMENT_OF for _ in range(PRODUCTS_PER_KIND)]
        rng.shuffle(kinds)
        self.products: tuple[Product, ...] = tuple(_product(number, kind, rng) for number, kind in enumerate(kinds))
        self._index, self._vocabulary = _build_index(self.products)
        self.rank = lru_cache(maxsize=8192)(self._rank)

    def search(self, query: str) -> tuple[int, ...]:
        """Return the numbers of the products that match best, best first, at most `MAX_PAGES` pages of them.

        Equal scores are ordered by number, so the ranking is the same everywhere. Unknown words are ignored.
        """
        words = re.findall(r"[a-z]+", query[:2000].lower())[:MAX_QUERY_WORDS]
        known = tuple(sorted({word for word in words if word in self._vocabulary}))
        return self.rank(known) if known else ()

    def _rank(self, words: tuple[str, ...]) -> tuple[int, ...]:
        import numpy as np

        # Rounding keeps a last bit of float noise from ordering equal scores.
        scores = np.round(np.asarray(self._index.get_scores(list(words)), dtype=np.float64), 3)
        order = np.argsort(-scores, kind="stable")[: MAX_PAGES * RESULTS_PER_PAGE]
        return tuple(int(number) for number in order if scores[number] > 0)


def _product(number: int, kind: str, rng: random.Random) -> Product:
    department = DEPARTMENTS[DEPARTMENT_OF[kind]]
    attributes = tuple(rng.sample(department.attributes, 3))
    options = {
        name: tuple(sorted(rng.sample(values, rng.choice((3, 4))), key=values.index))
        for name, values in department.options.items()
    }
    price = rng.choice([dollars for dollars in range(11, 90) if dollars % 10])
    keyword = rng.choice([word for word in department.attributes if word not in attributes])
    return Product(number, kind, attributes, options, price, rng.choice(attributes), keyword)


def _build_index(products: tuple[Product, ...]) -> tuple[Any, frozenset[str]]:
    import bm25s

    corpus = [[*product.kind.split(), *product.attributes, product.keyword] for product in products]
    index = bm25s.BM25()
    index.index(corpus, show_progress=False)
    return index, frozenset(word for words in corpus for word in words)


@cache
def catalogue() -> Catalogue:
    """Return the process's one catalogue."""
    return Catalogue()


def vocabulary() -> list[str]:
    """Return every word the shop can show, sorted; tokenizers for the shop are built from them."""
    words: set[str] = set()
    for department in DEPARTMENTS.values():
        words.update(word for kind in department.kinds for word in kind.split())
        words.update(department.attributes)
        for name, values in department.options.items():
            words.update((name, *values))
    return sorted(words)
