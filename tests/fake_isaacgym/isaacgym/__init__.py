"""Stands in for NVIDIA's isaacgym, which nobody may redistribute."""

import os

if os.environ.get("FAKE_ISAACGYM_TORCH_FIRST"):
    raise ImportError("PyTorch was imported before isaacgym modules.")
