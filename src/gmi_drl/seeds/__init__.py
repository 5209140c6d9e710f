"""Trains a config with several seeds, each in a launcher process of its own."""
