"""Checks of environments: the tasks, tools and states of one, what it costs, and what it does to the process."""
