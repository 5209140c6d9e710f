"""MuJoCo tasks on a GPU: physics by mujoco_warp, everything else by torch.

Needs the `warp` extra. `options` imports neither torch nor warp.
"""
