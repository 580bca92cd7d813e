"""The embedded shop: `Shop` is the environment."""

from offline_agent.envs.shop.env import Shop

__all__ = ["Shop"]
