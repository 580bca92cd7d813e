"""Training: rows to updates, updates to a better model; a plain loop on accelerate."""
