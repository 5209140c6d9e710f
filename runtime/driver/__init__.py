"""Holds the driver: the tables of tasks, actors and objects, and the thread that keeps them."""
