"""The parts of `offline_agent.config`; import from there."""
