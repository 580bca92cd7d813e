"""A taskset of the environment of `served`, and a harness that plays its scripts by the servers' tools."""

from __future__ import annotations

import verifiers.v1 as vf
from verifiers.v1.harnesses.utils.mcp import mcp_client

from offline_agent.envs.serving.verifiers_taskset import ServedConfig, ServedTask, ServedTaskset
from tests.helpers.served import SCRIPTS

__all__ = ["DeskTaskset", "Scripted"]


class DeskConfig(ServedConfig):
    env: str = "tests.helpers.served:Desk"


class DeskTaskset(ServedTaskset, vf.Taskset[ServedTask, DeskConfig]):
    pass


class ScriptedConfig(vf.HarnessConfig):
    pass


class Scripted(vf.Harness[ScriptedConfig]):
    SUPPORTS_MCP, NEEDS_CONTAINER, EXECUTES_CODE, APPENDS_SYSTEM_PROMPT = True, False, False, True

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        (url,) = mcp_urls.values()
        texts = trace.info["texts"] = [data.prompt]
        async with mcp_client({"url": url}) as client:
            trace.info["tools"] = [tool.name for tool in (await client.list_tools()).tools]
            for turn in SCRIPTS.get(data.task_args["goal"], [("take", {"n": 99})]):
                assert not trace.state.over
                answer = await client.call_tool(*(("answer", {"text": turn}) if isinstance(turn, str) else turn))
                texts.append(answer.content[0].text)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
