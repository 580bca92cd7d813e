#!/bin/bash
# Each part of the tests is worth its share.
cd /app || exit 1
passed=0
for part in units order refused; do
    if timeout 20 python3 /tests/hidden.py "$part"; then
        passed=$((passed + 1))
    fi
done
python3 -I -c "print($passed / 3)" > /logs/verifier/reward.txt
