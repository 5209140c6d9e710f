"""gmi-drl: deep-RL training on GPU multiplexing instances (GMIs)."""

__version__ = "0.1.0"
