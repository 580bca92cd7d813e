"""Many episodes in flight over one engine: what `evaluation` measures and `training` refines is played here."""
