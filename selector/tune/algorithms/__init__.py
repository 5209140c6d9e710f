"""Holds the searches of tuning: pure, they ask for measurements and choose by the answers."""
