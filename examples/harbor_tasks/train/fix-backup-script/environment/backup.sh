#!/bin/bash
count=1
for file in $(ls notes/*.txt); do
    cp $file backup
    count=$((count + 1))
done
echo $count
