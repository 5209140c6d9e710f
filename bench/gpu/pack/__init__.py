"""Builds the pack that brings packages and compiled kernels to a node without a network."""
