"""Runs a whole PPO training job in rl_games; prints one JSON line.

`--vec sync` steps Gymnasium's environments one after the other in this process, `--vec envpool`
steps EnvPool's on all cores. The library normalises values rather than rewards, and its
torch.compile is off: on CPU cores it costs minutes and a C++ compiler for these small networks.
This job cannot evaluate.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import warnings
from typing import Any

from _job import Settings, Stopwatch, limit_threads, parse, vector_env

SETTINGS = parse(("sync", "envpool"), __doc__)
limit_threads(SETTINGS.threads)

import gymnasium  # noqa: E402
import numpy as np  # noqa: E402

with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from rl_games.common import env_configurations, experience, vecenv
    from rl_games.common.ivecenv import IVecEnv
    from rl_games.torch_runner import Runner

if SETTINGS.vec == "envpool":
    import envpool  # noqa: F401 - else --check says so


class Environments(IVecEnv):
    """Wraps the environments of either library; their steps drive the stopwatch."""

    def __init__(self, settings: Settings, stopwatch: Stopwatch) -> None:
        self.settings, self.stopwatch = settings, stopwatch
        self.env, self.first, self.observation_space, self.action_space = vector_env(
            settings, settings.n_envs, settings.seed
        )
        self.running = np.zeros(settings.n_envs)
        self.taken = 0

    def reset(self) -> np.ndarray:
        return self.first

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict]:
        if self.taken % self.settings.horizon == 0:
            self.stopwatch.iteration(self.taken * self.settings.n_envs)
        self.taken += 1
        actions = np.asarray(actions, self.action_space.dtype)
        observation, reward, terminated, truncated, _ = self.env.step(actions)
        done = np.logical_or(terminated, truncated)
        self.running += reward
        for episode_return in self.running[done].tolist():
            self.stopwatch.episode(episode_return)
        self.running[done] = 0.0
        return observation, reward, done, {"time_outs": truncated}

    def get_env_info(self) -> dict[str, Any]:
        return {
            "observation_space": _space_of_rl_games(self.observation_space),
            "action_space": _space_of_rl_games(self.action_space),
        }


def _space_of_rl_games(space: gymnasium.Space) -> Any:
    """Converts a space to the classes of rl_games: gym's before 1.6, then Gymnasium's."""
    spaces = experience.gym.spaces
    if isinstance(space, gymnasium.spaces.Discrete):
        return spaces.Discrete(int(space.n))
    return spaces.Box(space.low, space.high, dtype=space.dtype)


def config(settings: Settings, discrete: bool, folder: str) -> dict[str, Any]:
    """Returns these settings in the library's own form."""
    gaussian = {
        "mu_activation": "None",
        "sigma_activation": "None",
        "mu_init": {"name": "default"},
        "sigma_init": {"name": "const_initializer", "val": settings.init_log_std},
        "fixed_sigma": True,
    }
    return {
        "seed": settings.seed + 1,  # it takes 0 for "by the clock"
        "torch_threads": settings.threads,
        "algo": {"name": "a2c_discrete" if discrete else "a2c_continuous"},
        "model": {"name": "discrete_a2c" if discrete else "continuous_a2c_logstd"},
        "network": {
            "name": "actor_critic",
            "separate": settings.trunk == "separate",
            "space": {"discrete": None} if discrete else {"continuous": gaussian},
            "mlp": {
                "units": settings.hidden,
                "activation": settings.activation,
                "initializer": {"name": "default"},
            },
        },
        "config": {
            "name": "peer",
            "env_name": "peer",
            "device": "cpu",
            "train_dir": folder,
            "print_stats": False,
            "torch_compile": False,
            "normalize_input": settings.normalize_observation,
            "normalize_value": True,
            "value_bootstrap": True,
            "normalize_advantage": True,
            "mixed_precision": False,
            "reward_shaper": {"scale_value": 1.0},
            "gamma": settings.gamma,
            "tau": settings.lam,
            "learning_rate": settings.learning_rate,
            "lr_schedule": None if settings.schedule == "constant" else settings.schedule,
            "kl_threshold": 0.008,
            "grad_norm": settings.max_grad_norm,
            "truncate_grads": settings.max_grad_norm > 0,
            "entropy_coef": settings.entropy_coef,
            "critic_coef": 2 * settings.value_coef,  # its value loss is halved
            "e_clip": settings.clip,
            "clip_value": True,
            "bounds_loss_coef": 0.0,
            "num_actors": settings.n_envs,
            "horizon_length": settings.horizon,
            "minibatch_size": settings.minibatch,
            "mini_epochs": settings.epochs,
            "max_epochs": settings.iterations,
            "score_to_win": 10**9,
            "save_best_after": 10**9,
            "save_frequency": 0,
        },
    }


def main(settings: Settings) -> None:
    """Trains, and prints the line."""
    if settings.evaluate:
        raise SystemExit("rl_games_job.py --evaluate: this job cannot evaluate; use sb3.py.")
    stopwatch = Stopwatch(settings)
    envs = Environments(settings, stopwatch)
    discrete = hasattr(envs.action_space, "n")
    vecenv.register("PEER", lambda config_name, num_actors, **kwargs: envs)
    env_configurations.register("peer", {"vecenv_type": "PEER", "env_creator": lambda **kwargs: 0})
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        runner = Runner()
        runner.load({"params": config(settings, discrete, folder)})
        runner.run({"train": True, "play": False})
        stopwatch.stop(envs.taken * settings.n_envs)
    packages = ["gymnasium", "torch", *(["envpool"] if settings.vec == "envpool" else [])]
    stopwatch.print_result("rl_games", "rl_games", *packages)


if __name__ == "__main__" and not SETTINGS.check:
    warnings.simplefilter("ignore")
    main(SETTINGS)
