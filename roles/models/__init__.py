"""Models of environments, learned or known."""
