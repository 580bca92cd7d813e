import json
from pathlib import Path

RIGHT = [
    {"sku": "A-01", "name": "chair", "price": 39.0, "stock": 10},
    {"sku": "A-02", "name": "table", "price": 120.0, "stock": 3},
    {"sku": "C-09", "name": "curtain", "price": 25.25, "stock": 7},
    {"sku": "D-11", "name": "shelf", "price": 58.0, "stock": 5},
]


def test_the_items_are_right_and_in_order() -> None:
    found = json.loads(Path("/app/inventory.json").read_text())
    assert found == RIGHT
    assert all(type(item["stock"]) is int for item in found)
