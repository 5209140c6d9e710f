"""Projects how a config would run on machines that are not here; nothing of it is measured."""
