"""Export of a run's rows to the files of other trainers."""
