"""Measures GMIs on a GPU: first checks, the paper's experiments, and a pack for offline nodes."""
