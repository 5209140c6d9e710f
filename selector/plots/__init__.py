"""Draws what tuning and searches found, with matplotlib."""
