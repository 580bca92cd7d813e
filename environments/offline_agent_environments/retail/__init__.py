"""Customer service under a written policy: a user who talks, tools that read and write a database."""

from offline_agent_environments.retail.env import Retail

__all__ = ["Retail"]
