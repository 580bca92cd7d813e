"""Search trees in, preference pairs and filtered trajectories out."""
