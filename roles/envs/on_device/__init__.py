"""Steps MuJoCo tasks on one device: a `World` of warp or mjx is its physics, torch the rest."""
