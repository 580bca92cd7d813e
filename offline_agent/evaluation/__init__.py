"""Evaluation of policies: attempts at held-out tasks, rates with intervals, comparisons and the gate."""
