"""Scorers: programmatic verifiers, and the rewards composed of what they say."""
