"""Watches a run: hangs, restarts, promises, and what its GMIs report."""
