"""Lays runs side by side: tables for a terminal, and a page of its own with curves."""
