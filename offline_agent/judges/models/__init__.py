"""Judges that ask a model: rubrics, comparisons of attempts, and what their answers are checked and kept with."""
