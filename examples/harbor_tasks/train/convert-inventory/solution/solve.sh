#!/bin/bash

cat > convert.py <<'EOF'
import csv
import json

rows = {row["sku"]: row for row in csv.DictReader(open("inventory.csv"))}
items = [
    {"sku": row["sku"], "name": row["name"], "price": float(row["price"]), "stock": int(row["stock"])}
    for row in rows.values()
    if int(row["stock"]) > 0
]
items.sort(key=lambda item: item["sku"])
json.dump(items, open("inventory.json", "w"))
EOF

python3 convert.py

rm convert.py
