"""Training: for now, the default model."""
