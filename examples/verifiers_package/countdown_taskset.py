"""A taskset of verifiers: any environment of offline_agent, by the name that env= takes.

vf-eval countdown-taskset --env.agent.harness.id null --env.taskset.n 20 -m MODEL
"""

import verifiers.v1 as vf

from offline_agent.envs.serving.verifiers_taskset import ServedConfig, ServedTask, ServedTaskset

__all__ = ["CountdownTaskset"]


class CountdownConfig(ServedConfig):
    env: str = "countdown"


class CountdownTaskset(ServedTaskset, vf.Taskset[ServedTask, CountdownConfig]):
    pass
