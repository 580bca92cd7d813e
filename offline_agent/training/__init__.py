"""Training: rows to updates, updates to a better model; on transformers' Trainer."""
