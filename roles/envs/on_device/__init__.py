"""MuJoCo tasks whose whole step runs on one device: everything but physics, in torch.

Adapters `warp` and `mjx` bring the physics, as a `World`. `tasks` and `options` import no torch.
"""
