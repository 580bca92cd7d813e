"""The server policy against llama.cpp's server: its ids, and their log-probs as transformers computes them."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("gguf")
pytest.importorskip("xllamacpp")
import torch
from transformers import AutoModelForCausalLM

from offline_agent.errors import ContextFull
from offline_agent.policies.base import ProposeRequest
from offline_agent.policies.hf.gguf import plain_folder
from offline_agent.policies.server.policy import ServerPolicy
from offline_agent.rendering.columns import trajectory_columns
from offline_agent.rendering.styles import template_text
from tests.helpers import gguf_files
from tests.helpers import rendering as kit

SERVE = """
import sys, threading, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port, params.n_ctx, params.n_parallel = sys.argv[1], 0, 4096, 4
params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
threading.Event().wait()
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return gguf_files.llama(tmp_path_factory.mktemp("model") / "tiny.gguf", template_text("qwen"))


@pytest.fixture(scope="module")
def url(file):
    command = [sys.executable, "-c", SERVE, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        yield f"{process.stdout.readline().strip()}/v1"
        process.kill()


@pytest.fixture
def folder(file, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return plain_folder(str(file), "policy.model")


def test_ids_are_those_it_sampled_and_log_probs_are_known_where_it_gives_them(url, folder):
    served = ServerPolicy(url, tokenizer=folder, temperature=0.7, max_tokens=3, retries=0)
    context = kit.root("An <|im_end|> in the task.")
    answer = served.propose([ProposeRequest(context, tuple(range(24)))])[0]
    served.close()
    assert answer.usage.generated == sum(len(action.token_ids) for action in answer.actions)
    known = [action for action in answer.actions if action.logps is not None]
    assert 0 < len(known) < len(answer.actions)  # none of an answer with a part of a character
    model, prompt = AutoModelForCausalLM.from_pretrained(folder), served.renderer.context_ids(context)
    for action in known:
        with torch.inference_mode():
            logps = model(torch.tensor([[*prompt, *action.token_ids]])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        own = logps.gather(-1, torch.tensor([action.token_ids]).T)[:, 0].tolist()
        assert list(action.logps) == pytest.approx(own, abs=0.02)  # it computes in part in float16
        row = trajectory_columns(served.renderer, context.child(action, None))
        assert json.loads(row["certificate"])["sampled"] is True and row["logps"] is not None


def test_a_prompt_that_is_longer_than_its_context(url, folder):
    served = ServerPolicy(url, tokenizer=folder, retries=0)
    answer = served.propose([ProposeRequest(kit.root("word " * 4000), (0,))])[0]
    served.close()
    assert isinstance(answer, ContextFull)
