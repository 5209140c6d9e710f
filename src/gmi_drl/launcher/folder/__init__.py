"""Keeps a run's folder: its files, its lock and its learning curve."""
