"""Implements adapter `mjx`: the physics of MJX (MuJoCo in JAX) under the batch of `on_device`."""
