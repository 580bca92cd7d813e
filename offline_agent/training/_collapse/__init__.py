"""Parts of the collapse watch; import from `offline_agent.training.collapse`."""
