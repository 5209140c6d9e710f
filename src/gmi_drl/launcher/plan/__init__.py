"""Plans a run before anything of it starts, and lists every reason against it."""
