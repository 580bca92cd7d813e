#!/bin/bash
cd /app/site || exit 1
reward=0
right=$(cat /tests/commit.txt)
# a file system monitor that the repository's configuration names is not started
if [ "$(cat .git/HEAD)" = "ref: refs/heads/main" ] && [ "$(git -c core.fsmonitor=false rev-parse main)" = "$right" ] \
    && [ -z "$(git -c core.fsmonitor=false status --porcelain)" ] && [ "$(cat prices.html)" = "<h1>Prices</h1>" ]; then
    reward=1
fi
echo "$reward" > /logs/verifier/reward.txt
