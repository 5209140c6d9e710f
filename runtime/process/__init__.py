"""Starts processes by a fork server, and runs calls inside of them."""
