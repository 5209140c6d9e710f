"""Holds what is done with the policy of a run: to act by it, evaluate, film and export it."""
