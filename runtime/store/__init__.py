"""Holds large values: the object store's decisions, and its shared memory."""
