# dates and names are fixed, so the commits have the same names each time
export GIT_AUTHOR_NAME=Ada GIT_AUTHOR_EMAIL=ada@example.org GIT_COMMITTER_NAME=Ada GIT_COMMITTER_EMAIL=ada@example.org
export GIT_AUTHOR_DATE=2024-01-01T00:00:00Z GIT_COMMITTER_DATE=2024-01-01T00:00:00Z
set -e
git init -q -b main /app/site
cd /app/site
echo "<h1>Shop</h1>" > index.html
git add . && git commit -q -m "Begin the site"
echo "<h1>About us</h1>" > about.html
git add . && git commit -q -m "Add a page about us"
echo "<h1>Prices</h1>" > prices.html
git add . && git commit -q -m "Add prices"
git reset -q --hard HEAD~2
