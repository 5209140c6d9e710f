"""Checks in one command what of GMIs' ground holds on a GPU that nobody has tried."""
