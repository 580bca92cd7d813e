"""BabyAI: missions in language on a grid, from the package `minigrid`."""

from offline_agent.envs.babyai.env import BabyAI

__all__ = ["BabyAI"]
