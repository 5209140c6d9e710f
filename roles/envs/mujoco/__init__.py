"""Steps Gymnasium's MuJoCo family and two more robots as batches.

`tasks.TASKS` names them, `vec.MujocoVecEnv` steps them.

Everything in here needs the `mujoco` extra; only `vec` needs torch.
"""
