"""Gymnasium's MuJoCo family and two robots more, as batches: `tasks.TASKS` names them,
`vec.MujocoVecEnv` steps them.

Everything in here needs the `mujoco` extra; only `vec` needs torch.
"""
