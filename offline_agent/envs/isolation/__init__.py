"""Environments in processes of their own: a crash is the environment's fault, and a snapshot is a fork.

`protocol` frames messages and describes an environment of another interpreter, `server` is the process that all of them
are forked from and, in a fork, that of one episode, `client` is an episode as the rest of the package sees it.
"""
