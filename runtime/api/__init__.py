"""Defines what users call: tasks, actors, references, options, and the runtime of a process."""
