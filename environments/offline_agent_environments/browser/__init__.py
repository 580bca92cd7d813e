"""Web pages in a headless browser: MiniWoB++'s levels, and the shop as a site."""

from offline_agent_environments.browser.env import Browser

__all__ = ["Browser"]
