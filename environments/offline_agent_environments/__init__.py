"""Task families and adapters of other projects' environments, for `offline_agent`."""
