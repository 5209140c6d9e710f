"""Measures one candidate: launches it for some seconds and watches what it does."""
