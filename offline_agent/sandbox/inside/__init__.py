"""The sandbox's own programs: they run in a process apart, from their source, with the standard library alone."""
