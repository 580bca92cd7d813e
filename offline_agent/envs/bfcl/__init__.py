"""The multi-turn tasks of the Berkeley Function-Calling Leaderboard (package `bfcl-eval`)."""

from offline_agent.envs.bfcl.env import BFCL

__all__ = ["BFCL"]
