"""Checks in one command which assumptions of GMIs hold on a GPU that nobody has tried."""
