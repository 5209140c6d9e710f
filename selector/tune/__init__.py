"""Finds `num_env` and GMIs per GPU by measuring: `gmi-drl tune`."""
