"""Runs a whole PPO or A2C training job in Stable-Baselines3; prints one JSON line.

`--vec dummy` steps the environments in this process, `--vec subproc` each in its own. With
`--trunk shared` the hidden layers are a feature extractor that policy and value share, which is
the network the other systems of the benchmark train; `separate` is the library's own default.
"""

from __future__ import annotations

import warnings
from itertools import pairwise

from _job import Settings, Stopwatch, evaluation, limit_threads, parse

SETTINGS = parse(("dummy", "subproc"), __doc__)
limit_threads(SETTINGS.threads)

import gymnasium  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from stable_baselines3 import A2C, PPO  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402
from stable_baselines3.common.evaluation import evaluate_policy  # noqa: E402
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor  # noqa: E402
from stable_baselines3.common.vec_env import (  # noqa: E402
    DummyVecEnv,
    SubprocVecEnv,
    VecEnv,
    VecNormalize,
)

_ACTIVATIONS = {"elu": torch.nn.ELU, "tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}


class Trunk(BaseFeaturesExtractor):
    """Has the hidden layers that policy and value share."""

    def __init__(
        self,
        observation_space: gymnasium.spaces.Box,
        hidden: list[int],
        activation: type[torch.nn.Module],
    ) -> None:
        super().__init__(observation_space, hidden[-1])
        sizes = [int(np.prod(observation_space.shape)), *hidden]
        layers: list[torch.nn.Module] = [torch.nn.Flatten()]
        for inputs, outputs in pairwise(sizes):
            layers += [torch.nn.Linear(inputs, outputs), activation()]
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.layers(observations)


class Watch(BaseCallback):
    """Tells the stopwatch about iterations and episodes."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        super().__init__()
        self.stopwatch = stopwatch

    def _on_rollout_start(self) -> None:
        self.stopwatch.iteration(self.num_timesteps)

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self.stopwatch.episode(float(info["episode"]["r"]))
        return True


def make_env(settings: Settings, n_envs: int, seed: int, training: bool) -> VecEnv:
    """Returns a vector environment with monitors and, if asked for, normalisation."""
    kind = SubprocVecEnv if settings.vec == "subproc" and training else DummyVecEnv
    env: VecEnv = make_vec_env(settings.env, n_envs=n_envs, seed=seed, vec_env_cls=kind)
    if settings.normalize_observation or settings.normalize_reward:
        env = VecNormalize(
            env,
            training=training,
            norm_obs=settings.normalize_observation,
            norm_reward=settings.normalize_reward and training,
            gamma=settings.gamma,
        )
    return env


def _scheduled(value: float, schedule: str) -> object:
    return value if schedule == "constant" else (lambda remaining: remaining * value)


def make_model(settings: Settings, env: VecEnv) -> PPO | A2C:
    """Returns PPO or A2C with these settings."""
    activation = _ACTIVATIONS[settings.activation]
    if settings.trunk == "shared":
        policy = {
            "features_extractor_class": Trunk,
            "features_extractor_kwargs": {"hidden": settings.hidden, "activation": activation},
            "net_arch": [],
        }
    else:
        policy = {"net_arch": settings.hidden, "activation_fn": activation}
    shared = {
        "n_steps": settings.horizon, "gamma": settings.gamma, "gae_lambda": settings.lam,
        "learning_rate": _scheduled(settings.learning_rate, settings.schedule),
        "ent_coef": settings.entropy_coef, "vf_coef": settings.value_coef,
        "max_grad_norm": settings.max_grad_norm, "seed": settings.seed, "device": "cpu",
        "policy_kwargs": {**policy, "log_std_init": settings.init_log_std},
    }  # fmt: skip
    if settings.method == "a2c":
        return A2C("MlpPolicy", env, use_rms_prop=settings.descent == "rmsprop", **shared)
    return PPO(
        "MlpPolicy", env, batch_size=settings.minibatch, n_epochs=settings.epochs,
        clip_range=_scheduled(settings.clip, settings.clip_schedule),
        use_sde=settings.sde > 0, sde_sample_freq=settings.sde or -1, **shared,
    )  # fmt: skip


def main(settings: Settings) -> None:
    """Trains, evaluates if asked for, and prints the line."""
    torch.set_num_threads(settings.threads)
    env = make_env(settings, settings.n_envs, settings.seed, training=True)
    model = make_model(settings, env)
    stopwatch = Stopwatch(settings)
    model.learn(settings.iterations * settings.batch, callback=Watch(stopwatch))
    stopwatch.stop(model.num_timesteps)
    extra = {}
    if settings.evaluate:
        judge = make_env(settings, 1, settings.seed + 10_000, training=False)
        if isinstance(judge, VecNormalize) and isinstance(env, VecNormalize):
            judge.obs_rms = env.obs_rms
        returns, _ = evaluate_policy(
            model, judge, settings.evaluate, deterministic=True, return_episode_rewards=True
        )
        extra["evaluation"] = evaluation([float(value) for value in returns])
    env.close()
    stopwatch.print_result("sb3", "stable-baselines3", "gymnasium", "torch", **extra)


if __name__ == "__main__" and not SETTINGS.check:
    warnings.simplefilter("ignore")
    main(SETTINGS)
