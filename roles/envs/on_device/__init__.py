"""Steps MuJoCo tasks wholly on one device: everything but physics is in torch.

Adapters `warp` and `mjx` bring the physics, as a `World`. `tasks` imports no torch.
"""
