"""Sends messages between processes, and turns values into bytes."""
