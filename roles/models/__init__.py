"""Models of environments: those that are learned, and those that are known."""
