"""Holds the command `gmi-drl`."""
