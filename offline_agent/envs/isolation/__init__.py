"""Environments in processes of their own: a crash is the environment's fault, and a snapshot is a fork.

`protocol` frames messages, `server` is the process that all of them are forked from, `worker` is the process of one
episode, `client` is an episode as the rest of the package sees it.
"""
