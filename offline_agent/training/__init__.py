"""Training: rows to updates, updates to a better model; thin on TRL."""
