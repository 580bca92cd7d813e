#!/bin/bash

sed -i 's|^count=1$|count=0; mkdir -p /app/backup|' /app/backup.sh

sed -i 's|^for file in .*|for file in /app/notes/*.txt; do|' /app/backup.sh

sed -i 's|^    cp .*|    cp "$file" /app/backup/|' /app/backup.sh

bash /app/backup.sh
