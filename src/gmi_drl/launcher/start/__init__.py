"""Starts a run: the fork server's preload, the job, and the launch itself."""
