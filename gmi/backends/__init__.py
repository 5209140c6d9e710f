"""Holds the backends, a file or folder for each way of giving a process a share of a device."""
