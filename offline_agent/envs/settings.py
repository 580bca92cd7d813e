"""Keys of environments."""

from __future__ import annotations

DEFAULT_STEPS = 15
"""Actions of an episode where neither the user nor the environment says how many it may have."""
OWN_STEPS = f"0 = the environment's own: its attribute max_steps, or twice what its expert needs, else {DEFAULT_STEPS}"
