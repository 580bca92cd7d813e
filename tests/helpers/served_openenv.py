"""Plays the scripts of `served` as sessions of one OpenEnv server, in turns; prints what each was shown and paid."""

from __future__ import annotations

import json
import socket
import sys
import threading

import uvicorn
from openenv.core.env_server.mcp_types import CallToolAction
from openenv.core.mcp_client import MCPToolClient

from offline_agent.envs.serving.openenv_server import app
from tests.helpers.served import SCRIPTS

listening = socket.create_server(("127.0.0.1", 0))
server = uvicorn.Server(uvicorn.Config(app("tests.helpers.served:Desk"), log_level="error"))
threading.Thread(target=server.run, args=([listening],), daemon=True).start()

sessions = []
for index, turns in enumerate(SCRIPTS.values()):
    client = MCPToolClient(base_url=f"http://127.0.0.1:{listening.getsockname()[1]}").sync().connect()
    begun = client.reset(split="test", index=index)
    told = {"task": begun.metadata["task_id"], "texts": [begun.observation.text], "paid": [], "done": False}
    sessions.append((client, list(turns), told))
told["tools"] = [tool.name for tool in client.list_tools()]
while any(turns for _, turns, _ in sessions):
    for client, turns, told in sessions:
        if turns:
            turn = turns.pop(0)
            name, arguments = ("answer", {"text": turn}) if isinstance(turn, str) else turn
            seen = client.step(CallToolAction(tool_name=name, arguments=arguments))
            assert not told["done"]
            told["done"] = seen.done
            told["texts"].append(seen.observation.error.message if seen.observation.error else seen.observation.result)
            told["paid"].append(seen.reward)
for client, _, _ in sessions:
    after = client.step(CallToolAction(tool_name="add", arguments={"n": 1}))
    assert after.done and after.reward == 0 and "over" in after.observation.error.message
    client.close()
json.dump([told for _, _, told in sessions], sys.stdout)
