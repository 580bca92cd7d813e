"""Environments: the contract, its checks, and the environments shipped with the package."""
