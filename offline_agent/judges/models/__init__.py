"""Judges that ask a model: rubrics, planned subgoals, and what their answers are checked and kept with."""
