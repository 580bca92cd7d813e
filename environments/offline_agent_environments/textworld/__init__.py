"""Text games of TextWorldExpress (package `textworld-express`, which needs Java)."""

from offline_agent_environments.textworld.env import TextWorld

__all__ = ["TextWorld"]
