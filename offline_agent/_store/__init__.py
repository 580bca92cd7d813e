"""The parts of `offline_agent.store`; import from there."""
