"""Questions that need several passages: search, read, answer."""

from offline_agent_environments.search_qa.env import SearchQA

__all__ = ["SearchQA"]
