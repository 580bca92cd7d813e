#!/bin/bash
# The repository's configuration is the agent's and may name hooks, filters and monitors, which `git status` would start.
# So files are compared, and git only says which commit a name stands for.
cd /app/site || exit 1
reward=0
right=$(cat /tests/commit.txt)
files="about.html
index.html
prices.html"
if [ "$(cat .git/HEAD)" = "ref: refs/heads/main" ] && [ "$(git rev-parse --verify refs/heads/main)" = "$right" ] \
    && [ "$(ls -A -I .git)" = "$files" ] && [ "$(cat index.html)" = "<h1>Shop</h1>" ] \
    && [ "$(cat about.html)" = "<h1>About us</h1>" ] && [ "$(cat prices.html)" = "<h1>Prices</h1>" ]; then
    reward=1
fi
echo "$reward" > /logs/verifier/reward.txt
