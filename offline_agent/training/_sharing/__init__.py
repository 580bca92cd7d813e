"""Parts of `prefix_sharing`."""
