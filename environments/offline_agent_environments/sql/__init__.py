"""SQL: questions about SQLite databases, answered by a query."""

from offline_agent_environments.sql.env import SQL

__all__ = ["SQL"]
