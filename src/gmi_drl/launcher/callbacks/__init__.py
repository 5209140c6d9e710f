"""Tells objects of the user's, and loggers, what a run does: callbacks."""
