#!/bin/bash

git reflog

git reset -q --hard "$(git reflog --format='%H %s' | grep -m 1 'Add prices' | cut -d ' ' -f 1)"

git status
