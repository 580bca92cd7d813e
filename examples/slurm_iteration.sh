#!/usr/bin/env bash
# bash examples/slurm_iteration.sh /shared/runs/loop policy.model=my/model
# One iteration on a Slurm cluster: search, fine-tune, evaluate, promote or not. The loop is a small job that submits its
# stages; this command returns at once and prints the job's id, and `python -m offline_agent.pipelines.status run_dir=…`
# says how far it is. Folders must be shared by the nodes (docs/cluster.md).
set -euo pipefail
python -m offline_agent.pipelines.iterate --config configs/cluster/nodes_iterate.yaml iterations=1 "${@:2}" run_dir="$1" --submit
