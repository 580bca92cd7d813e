"""Search, judge and learn from tool-call trajectories, offline first."""

__version__ = "0.1.0"
