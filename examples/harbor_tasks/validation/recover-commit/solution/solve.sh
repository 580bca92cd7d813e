#!/bin/bash

git reflog

git checkout -q main

git reset -q --hard "$(git reflog --format=%H -n 2 | tail -n 1)"

git status
