"""Keeps what tuning and searches found, and tells it to people."""
