"""Stands in for cuda-bindings where it comes first on sys.path."""
