"""Programming problems with hidden unit tests: `Code` is the environment."""

from offline_agent_environments.code.env import Code

__all__ = ["Code"]
