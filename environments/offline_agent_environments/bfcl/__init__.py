"""The multi-turn tasks of the Berkeley Function-Calling Leaderboard (package `bfcl-eval`)."""

from offline_agent_environments.bfcl.env import BFCL

__all__ = ["BFCL"]
