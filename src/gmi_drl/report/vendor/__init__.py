"""Holds files of other projects that pages are made with, as they were published."""
