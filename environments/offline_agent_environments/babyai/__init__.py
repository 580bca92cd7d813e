"""BabyAI: missions in language on a grid, from the package `minigrid`."""

from offline_agent_environments.babyai.env import BabyAI

__all__ = ["BabyAI"]
