"""Word problems with a Python interpreter: `Math` is the environment."""

from offline_agent.envs.math.env import Math

__all__ = ["Math"]
