"""Joins the GMIs of a run: their classes, links and counters."""
