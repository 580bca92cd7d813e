"""Plays the scripts of `served` in Inspect, two epochs at once, and prints what each sample was shown and scored."""

from __future__ import annotations

import json
import sys

from inspect_ai import eval
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.solver import generate

from offline_agent.envs.serving.inspect_task import environment
from tests.helpers.served import SCRIPTS


def act(messages, *_):
    first = next(message for message in messages if message.role == "user").text
    turns = SCRIPTS[int(first.split()[-1].rstrip("."))]
    done = sum(message.role == "assistant" for message in messages)
    turn = turns[done] if done < len(turns) else "Done."
    if isinstance(turn, str):
        out = ModelOutput.from_content("mockllm/model", turn)
    else:
        out = ModelOutput.for_tool_call("mockllm/model", *turn)
    out.usage = ModelUsage()  # else it is counted with a tokenizer that is downloaded
    return out


def played(**keys):
    task = environment("tests.helpers.served:Desk")
    (log,) = eval(task, model=get_model("mockllm/model", custom_outputs=act), display="none", **keys)
    assert log.status == "success", log.error
    for sample in log.samples:
        shown = [one for one in sample.messages if one.role in ("user", "tool")]
        texts = [one.error.message if getattr(one, "error", None) else one.text for one in shown]
        yield {
            "task": sample.id, "texts": texts,
            **{name: score.as_float() for name, score in sample.scores.items()}, "system": sample.messages[0].text,
        }  # fmt: skip


json.dump({"own": list(played(epochs=2)), "other": list(played(solver=generate()))}, sys.stdout)
