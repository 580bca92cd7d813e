"""Customer service under a written policy: a user who talks, tools that read and write a database."""

from offline_agent_environments.retail.env import Retail
from offline_agent_environments.retail.service import ServiceDesk

__all__ = ["Retail", "ServiceDesk"]
