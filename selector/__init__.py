"""Measures and proposes: `tune` finds a layout, `search` finds hyper-parameters."""
