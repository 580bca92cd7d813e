"""Internals of `offline_agent.tracking`."""
