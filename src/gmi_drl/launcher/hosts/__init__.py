"""Runs a launch on several hosts: agents on a Ray cluster, and a launcher of ours on each host."""
