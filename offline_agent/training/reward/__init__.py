"""Reward models: sequence classifiers of trajectories, trained on verdicts, read by `judge=reward_model`."""
