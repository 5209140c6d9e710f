"""Implements adapter `warp`: mujoco_warp's physics under the batch of `on_device`."""
