#!/usr/bin/env bash
# Ends what start.sh began in the folder it printed, and removes the folder.
set -uo pipefail
folder=$1
export SLURM_CONF="$folder/slurm.conf"
scancel --state=PENDING --user=root 2>/dev/null
scancel --user=root 2>/dev/null
for _ in $(seq 40); do # slurmstepd would outlive the daemons
    [ -z "$(squeue --noheader 2>/dev/null)" ] && break
    sleep 0.25
done
for pid in "$folder/node.pid" "$folder/controller.pid" "$folder/munge/pid"; do
    [ -e "$pid" ] && number=$(cat "$pid") && kill "$number" 2>/dev/null
done
for _ in $(seq 40); do
    ls "$folder"/*.pid "$folder"/munge/pid >/dev/null 2>&1 || break
    sleep 0.25
done
rm -rf "$folder"
