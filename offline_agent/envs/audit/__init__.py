"""Audit of an environment and its verifier before training: what it leaks and what it pays for, with the evidence."""
