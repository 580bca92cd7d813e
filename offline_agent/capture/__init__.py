"""A proxy that keeps the model calls of an agent, with token ids, as a log that `import_logs` reads."""
