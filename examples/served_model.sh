#!/usr/bin/env bash
# bash examples/served_model.sh http://localhost:8000/v1 Qwen/Qwen3-0.6B Qwen/Qwen3-0.6B policy.chat_template=qwen
# Searches and evaluates with a model behind an OpenAI-compatible server, such as one that `vllm serve Qwen/Qwen3-0.6B` starts.
# Arguments: the address, the served name, the tokenizer (with it, rows have the ids that were sampled), and keys of both
# commands. docs/tutorial_gpu.md goes on from here to a DPO checkpoint.
set -euo pipefail
served=(env="${ENVIRONMENT:-shop}" policy=server policy.url="$1" policy.model="$2" policy.tokenizer="$3")
python -m offline_agent.pipelines.build_prefs "${served[@]}" "${@:4}" run_dir=runs/served
python -m offline_agent.pipelines.evaluate "${served[@]}" "${@:4}" greedy=false run_dir=runs/served-evaluated
