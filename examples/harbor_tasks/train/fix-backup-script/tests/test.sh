#!/bin/bash
# A copy of the script's folder is used, so that what lies in /app/backup already does not count.
reward=0
cp /app/backup.sh /tmp/script-under-test.sh
rm -rf /app/backup
cd / || exit 1
printed=$(timeout 20 bash /app/backup.sh | tail -n 1)
expected="calls.txt
rent.txt
to buy.txt"
if [ "$(ls /app/backup 2>/dev/null)" = "$expected" ] && [ "$printed" = 3 ] \
    && cmp -s "/app/notes/to buy.txt" "/app/backup/to buy.txt"; then
    # a second run copies the same files again
    if [ "$(timeout 20 bash /app/backup.sh | tail -n 1)" = 3 ]; then
        reward=1
    fi
fi
echo "$reward" > /logs/verifier/reward.txt
