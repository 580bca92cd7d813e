"""The parts of `offline_agent.rendering`: parsing of turns, token tables, templates, certificates."""
