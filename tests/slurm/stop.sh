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
daemons=$(cat "$folder"/node-*.pid "$folder/controller.pid" "$folder/munge/pid" 2>/dev/null)
kill $daemons 2>/dev/null
for _ in $(seq 80); do
    running=""
    for number in $daemons; do
        # one that has ended and that nobody has waited for counts as ended
        grep -qs "^State:[[:space:]]*[^Z]" "/proc/$number/status" && running=$number
    done
    [ -z "$running" ] && break
    sleep 0.25
done
rm -rf "$folder"
