"""Runs the paper's experiments on this machine, as cells that a later command continues."""
