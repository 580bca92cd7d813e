"""Checks of an environment and its verifier: those of the conformance suite and of the audit, with the evidence."""
