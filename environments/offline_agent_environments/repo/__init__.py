"""Repositories with a bug to mend: `Repo` is the environment."""

from offline_agent_environments.repo.env import Repo

__all__ = ["Repo"]
