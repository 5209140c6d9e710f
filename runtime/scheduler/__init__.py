"""Decides where and when tasks and actors run: events in, instructions out, no processes."""
