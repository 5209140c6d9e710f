"""Prints and draws plans, layouts, and what runs have recorded."""
