"""Lists what `bench/learning.py` trains: tasks, settings of each system, published references."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from peers._job import Settings


@dataclass(frozen=True)
class Task:
    """One task; `ours` may differ from `sb3` in settings, never in `steps`.

    `sb3` is None where no peer is run. `algorithm` holds fields of the config's algorithm section
    that `Settings` lacks.
    """

    env: str
    steps: int
    ours: Settings
    algorithm: dict[str, Any]
    reference: str  # published, with its source
    sb3: Settings | None = None
    wrappers: tuple[Any, ...] = ()
    gmis: int = 1  # of several the last only trains; environments are divided among the others
    # Fields of other sections, by section, and `mode`.
    sections: dict[str, Any] = field(default_factory=dict)
    # The class of `gmi_drl.rl` that trains it from Python; its evaluators are then the agents.
    rl: str | None = None

    @property
    def agents(self) -> int:
        """Returns the number of GMIs that sample."""
        return max(1, self.gmis - 1)


def _task(env: str, steps: int, algorithm: dict[str, Any], reference: str, **changes: Any) -> Task:
    """Returns a task; `changes` are of `Task`, and of the `Settings` of ours."""
    own = {name: changes.pop(name) for name in Task.__annotations__ if name in changes}
    ours = Settings(env=env, warmup=0, evaluate=20, **changes)
    return Task(env, steps, ours, algorithm, reference, **own)


def _on_policy(
    env: str, steps: int, algorithm: dict[str, Any], reference: str, **changes: Any
) -> Task:
    """Returns a task that is trained by batches of fresh samples, by default as A2C is."""
    settings: dict[str, Any] = {
        "n_envs": 8, "horizon": 8, "learning_rate": 1e-3, "net": "64:64", "activation": "tanh",
        "lam": 1.0, "schedule": "linear", "max_grad_norm": 0.5, "minibatch": 64, "epochs": 1,
    }  # fmt: skip
    return _task(env, steps, algorithm, reference, **(settings | changes))


def _cartpole(algorithm: dict[str, Any], reference: str, **changes: Any) -> Task:
    """Returns CartPole by an algorithm that takes one step for each batch, as A2C does."""
    steps = changes.pop("steps", 200_000)
    return _on_policy("CartPole-v1", steps, algorithm, reference, **changes)


def _mujoco(env: str, init_log_std: float, reference: str) -> Task:
    """Returns a MuJoCo task by PPO: with the paper's network and larger minibatches than SB3's.

    SB3 has the well-known recipe (CleanRL's, and rl-zoo's defaults): 2,048 samples an iteration,
    minibatches of 64, 10 epochs, two layers of 64 tanh units.
    """
    sb3 = Settings(
        env=env, steps=1_000_000, warmup=0, n_envs=8, horizon=256, minibatch=64, epochs=10,
        net="64:64", trunk="separate", activation="tanh", learning_rate=3e-4, schedule="linear",
        max_grad_norm=0.5, evaluate=20,
    )  # fmt: skip
    return _task(
        env, 1_000_000, {"init_log_std": init_log_std}, reference, sb3=sb3, n_envs=16, horizon=128,
        minibatch=512, epochs=8, learning_rate=5e-4, schedule="linear",
    )  # fmt: skip


def _dqn(env: str, steps: int, algorithm: dict[str, Any], reference: str, **changes: Any) -> Task:
    """Returns a task that is trained by DQN."""
    settings: dict[str, Any] = {
        "n_envs": 8, "horizon": 16, "activation": "relu", "learning_rate": 1e-3,
        "schedule": "linear", "max_grad_norm": 10.0, "normalize_observation": False,
    }  # fmt: skip
    return _task(env, steps, {"name": "dqn", **algorithm}, reference, **(settings | changes))


def _cartpole_dqn(algorithm: dict[str, Any], reference: str) -> Task:
    """Returns CartPole by DQN: examples/dqn_cartpole.yaml."""
    settings = {
        "batch_size": 64, "replay_capacity": 100_000, "replay_start": 1_000,
        "updates_per_row": 0.5, "target_every": 128, "n_step": 5, "epsilon_steps": 16_000,
    }  # fmt: skip
    return _dqn("CartPole-v1", 100_000, settings | algorithm, reference, horizon=32, net="128:128")


def _off_policy(
    env: str, steps: int, algorithm: dict[str, Any], reference: str, **changes: Any
) -> Task:
    """Returns a task with an update for each step of its environments, by default four."""
    settings: dict[str, Any] = {"n_envs": 4, "activation": "relu", "normalize_observation": False}
    every = {"max_grad_norm": None, "batch_size": 256, "updates_per_row": 1.0}
    return _task(env, steps, every | algorithm, reference, **(settings | changes))


def _off_policy_pendulum(algorithm: dict[str, Any], reference: str) -> Task:
    """Returns Pendulum by an actor and critics: examples/sac_pendulum.yaml, td3_pendulum.yaml."""
    return _off_policy(
        "Pendulum-v1", 20_000,
        {"replay_capacity": 20_000, "replay_start": 1_000, "random_steps": 1_000, **algorithm},
        reference, net="64:64", learning_rate=1e-3, horizon=16,
    )  # fmt: skip


def _off_policy_half_cheetah(algorithm: dict[str, Any], reference: str) -> Task:
    """Returns HalfCheetah by what examples/sac_halfcheetah.yaml says, in one GMI of one core."""
    return _off_policy(
        "HalfCheetah-v5", 1_000_000,
        {"random_steps": 10_000, "replay_capacity": 1_000_000, "replay_start": 10_000, **algorithm},
        reference, n_envs=8, net="256:256", learning_rate=3e-4, horizon=8,
    )  # fmt: skip


def _model_pendulum(algorithm: dict[str, Any], steps: int, **changes: Any) -> Task:
    """Returns Pendulum by a learned model: examples/mbpo_pendulum.yaml, cem_pendulum.yaml."""
    settings: dict[str, Any] = {
        "learning_rate": 1e-3, "net": "64:64", "normalize_observation": False, **changes,
    }  # fmt: skip
    every = {
        "max_grad_norm": None, "batch_size": 128, "replay_capacity": 10_000, "replay_start": 500,
        "random_steps": 500,
    }  # fmt: skip
    reference = "-157 ± 89 (SB3 zoo, SAC, 20 k, one run)"
    return _task("Pendulum-v1", steps, every | algorithm, reference, **settings)


def _evolution(
    env: str, steps: int, algorithm: dict[str, Any], reference: str, **changes: Any
) -> Task:
    """Returns a task by evolution, without a discount."""
    every = {"activation": "tanh", "max_grad_norm": None}
    return _task(env, steps, algorithm | every, reference, gamma=1.0, **changes)


# Two GMIs sample, and one trains; or two hold an agent, and one a shard of the parameters.
_TDG_EX = {"gmis": 3, "sections": {"layout": {"template": "tdg_ex", "gmi_per_gpu": 3}}}
_PARAMETER_SERVER = {
    "gmis": 3, "n_envs": 16,
    "sections": {"layout": {"template": "parameter_server", "gmi_per_gpu": 3}},
}  # fmt: skip
_DECOUPLED = {
    "mode": "async",
    "hardware": {"num_gpus": 2},
    "layout": {"template": "decoupled", "gmi_per_gpu": 1},
}
_ASYNC_CARTPOLE = {
    "n_envs": 16, "horizon": 20, "max_grad_norm": 1.0, "gmis": 2, "sections": _DECOUPLED,
}  # fmt: skip
_PG = {"horizon": 64, "learning_rate": 5e-3, "minibatch": 512}
_PPO = {"steps": 100_000, "n_envs": 16, "horizon": 64, "minibatch": 256, "epochs": 10, "lam": 0.95}
_HIDDEN = ({"keep_numbers": {"places": [0, 2]}},)  # without velocities
_UNSCALED = {"normalize_value": False, "reward_scale": 0.1}  # the head is split among shards
_PPO_REFERENCE = "500 (SB3 zoo, 100 k) / 490 ± 6 (CleanRL, 500 k)"
_A2C_REFERENCE = "496.7 (SLM Lab, 200 k); 500 (SB3 zoo, 500 k, one run)"
_PG_REFERENCE = "483 (SLM Lab, REINFORCE, 200 k)"
_SAC_REFERENCE = "-157 ± 89 (SB3 zoo, 20 k, one run)"

TASKS = {
    "CartPole-v1": _cartpole(
        {"value_coef": 1.0}, _PPO_REFERENCE,
        sb3=Settings(  # rl-zoo's tuned settings
            env="CartPole-v1", warmup=0, n_envs=8, horizon=32, minibatch=256, epochs=20,
            net="64:64", trunk="separate", activation="tanh", gamma=0.98, lam=0.8,
            learning_rate=1e-3, schedule="linear", clip_schedule="linear", max_grad_norm=0.5,
            normalize_observation=False, normalize_reward=False, evaluate=20,
        ),
        **_PPO,
    ),
    "CartPole-v1-hidden": _cartpole(  # examples/lstm_cartpole.yaml
        {"value_coef": 0.5, "recurrent": {"cell": "lstm", "size": 64}},
        "500 (SB3 zoo, RecurrentPPO, 100 k, one run)", wrappers=_HIDDEN,
        **_PPO | {"n_envs": 8, "horizon": 32, "epochs": 20, "net": "64"},
    ),
    # examples/a2c_cartpole.yaml, for longer
    "CartPole-v1-a2c": _cartpole({"name": "a2c"}, _A2C_REFERENCE),
    "CartPole-v1-pg": _cartpole({"name": "pg"}, _PG_REFERENCE, **_PG),
    "CartPole-v1-ppo-local": _cartpole(  # examples/tdg_ex.yaml, with two agents
        {"value_coef": 1.0, "optimizer": "local"}, _PPO_REFERENCE, **_PPO, **_TDG_EX,
    ),
    "CartPole-v1-a2c-local": _cartpole(
        {"name": "a2c", "optimizer": "local"}, _A2C_REFERENCE, **_TDG_EX,
    ),
    "CartPole-v1-a3c": _cartpole(
        {"name": "a3c", "optimizer": "async_gradients"}, _A2C_REFERENCE, n_envs=16, **_TDG_EX,
    ),
    "CartPole-v1-a3c-parameter_server": _cartpole(
        {"name": "a3c", "optimizer": "parameter_server", **_UNSCALED}, _A2C_REFERENCE,
        **_PARAMETER_SERVER,
    ),
    "CartPole-v1-pg-local": _cartpole(
        {"name": "pg", "optimizer": "local"}, _PG_REFERENCE, **_TDG_EX, **_PG,
    ),
    "CartPole-v1-pg-async_gradients": _cartpole(
        {"name": "pg", "optimizer": "async_gradients"}, _PG_REFERENCE, n_envs=16, **_TDG_EX, **_PG,
    ),
    "CartPole-v1-pg-parameter_server": _cartpole(
        {"name": "pg", "optimizer": "parameter_server", **_UNSCALED}, _PG_REFERENCE,
        **_PARAMETER_SERVER, **_PG,
    ),
    "CartPole-v1-impala": _cartpole(  # examples/async_cartpole.yaml
        {"name": "impala"}, "500 (SB3 zoo's PPO, 100 k)", **_ASYNC_CARTPOLE,
    ),
    "CartPole-v1-appo": _cartpole(
        {"name": "appo"}, "500 (SB3 zoo's PPO, 100 k)", **_ASYNC_CARTPOLE,
    ),
    "CartPole-v1-es": _evolution(  # examples/es_cartpole.yaml
        "CartPole-v1", 50_000, {"name": "es", "population": 16, "noise": 0.1}, "500 at best",
        n_envs=8, horizon=625, net="32", learning_rate=0.05,
    ),
    "LunarLander-v3": _on_policy(
        "LunarLander-v3", 1_000_000, {"value_coef": 0.5}, "v2: 242 ± 32 (SB3 zoo, one run)",
        n_envs=16, horizon=128, minibatch=512, epochs=4, gamma=0.999, lam=0.98, entropy_coef=0.01,
    ),
    "MinAtar-Breakout": _on_policy(
        "MinAtar/Breakout-v1", 500_000, {"value_coef": 0.5, "network": "impala"},
        "DQN 5.8 ± 1.7 at 500 k, 11.1 ± 2.4 at 1 M (MinAtar's, rerun by a user)",
        n_envs=32, horizon=64, minibatch=512, epochs=4, net="256", activation="relu", lam=0.95,
        learning_rate=5e-4, entropy_coef=0.01, normalize_observation=False,
    ),
    "popgym-RepeatPreviousEasy": _on_policy(
        "popgym-RepeatPreviousEasy-v0", 500_000,
        {"value_coef": 0.5, "recurrent": {"cell": "gru", "size": 64}},
        "1 at best; -0.5 without memory",
        n_envs=32, horizon=48, minibatch=384, epochs=8, net="64", gamma=0.9, lam=0.9,
        learning_rate=2e-3,
    ),
    "CartPole-v1-dqn": _cartpole_dqn({"reward_scale": 0.1}, "500 (SB3 zoo, 50 k, one run)"),
    "CartPole-v1-c51": _cartpole_dqn(
        {"distributional": "c51", "value_range": (0.0, 100.0)}, "481 (CleanRL, 500 k)",
    ),
    "CartPole-v1-qr": _cartpole_dqn(
        {"reward_scale": 0.1, "distributional": "qr", "quantiles": 51}, "500 at best",
    ),
    "CartPole-v1-hidden-r2d2": _dqn(  # examples/r2d2_cartpole.yaml
        "CartPole-v1", 100_000,
        {
            "recurrent": {"cell": "lstm", "size": 64}, "reward_scale": 0.1,
            "batch_size": 16, "replay_capacity": 100_000, "replay_start": 2_000,
            "updates_per_row": 0.0625, "target_every": 64, "n_step": 3, "sampler": "prioritized",
            "epsilon": 0.02, "epsilon_steps": 16_000,
        },
        "500 (SB3 zoo, RecurrentPPO, 100 k, one run)",
        net="128", normalize_observation=True, wrappers=_HIDDEN,
    ),
    "CartPole-v1-rl-apex": _dqn(  # examples/rl/apex.py
        "CartPole-v1", 80_000,
        {
            "reward_scale": 0.1, "batch_size": 64, "updates_per_row": 0.25,
            "target_every": 128, "n_step": 3, "sampler": "prioritized", "epsilon": 0.4,
            "epsilon_alpha": 7.0, "epsilon_steps": 10_000,
        },
        "500 (SB3 zoo's DQN, 50 k, one run)",
        n_envs=16, net="128:128", normalize_observation=True, rl="Apex",
        gmis=3,  # two evaluators, and the trainer
    ),
    "LunarLander-v3-dqn": _dqn(
        "LunarLander-v3", 300_000,
        {
            "reward_scale": 0.1, "batch_size": 128, "replay_capacity": 100_000,
            "replay_start": 2_000, "updates_per_row": 0.25, "target_every": 250, "n_step": 3,
            "sampler": "prioritized", "epsilon": 0.02, "epsilon_steps": 40_000,
        },
        "266 (SLM Lab, double + PER, 300 k, 4 seeds)",
        horizon=8, net="256:256", learning_rate=6.3e-4,
    ),
    "MinAtar-Breakout-dqn": _dqn(  # examples/dqn_minatar.yaml
        "MinAtar/Breakout-v1", 500_000,
        {
            "batch_size": 64, "replay_capacity": 100_000, "replay_start": 2_000,
            "updates_per_row": 0.25, "target_every": 250, "epsilon": 0.01, "epsilon_steps": 50_000,
            "double": True, "dueling": True, "n_step": 3, "distributional": "c51", "atoms": 51,
            "value_range": [0, 20],
        },
        "5.8 ± 1.7 (MinAtar's DQN at 500 k, rerun by a user)",
        net="256", learning_rate=3e-4, schedule="constant",
    ),
    "FrankaCabinet-v0": _task(
        "FrankaCabinet-v0", 2_000_000,
        {"schedule": "adaptive", "kl_target": 0.012, "reward_scale": 0.1, "value_coef": 1.0},
        "no return; 864 by keeping still, 429 at random",
        n_envs=64, horizon=32, minibatch=256, net="128:64", learning_rate=5e-4, init_log_std=-0.5,
    ),
    "Pendulum-v1": _on_policy(
        "Pendulum-v1", 200_000, {}, "-172 ± 104 (SB3 zoo, 100 k)",
        sb3=Settings(  # rl-zoo's tuned settings
            env="Pendulum-v1", warmup=0, n_envs=4, horizon=1024, minibatch=64, epochs=10,
            net="64:64", trunk="separate", activation="tanh", gamma=0.9, lam=0.95,
            learning_rate=1e-3, max_grad_norm=0.5, sde=4, normalize_observation=False,
            normalize_reward=False, evaluate=20,
        ),
        n_envs=16, horizon=64, minibatch=256, epochs=10, gamma=0.95, lam=0.95, learning_rate=2e-3,
        max_grad_norm=1.0,
    ),
    "Pendulum-v1-mbpo": _model_pendulum(
        {
            "name": "mbpo", "updates_per_row": 4.0, "ensemble": 5, "elites": 3,
            "model_network": [128, 128], "model_batch_size": 64, "model_epochs": 40,
            "rollouts": 5_000, "rollout_length": 2,
        },
        steps=5_000, n_envs=1, horizon=25, activation="relu",
    ),
    "Pendulum-v1-cem": _model_pendulum(
        {
            "name": "cem", "updates_per_row": 2.0, "ensemble": 3, "candidates": 100,
            "plan_elites": 10,
        },
        steps=3_000, n_envs=5, horizon=10, activation="elu", normalize_observation=True,
    ),
    "Pendulum-v1-sac": _off_policy_pendulum({"name": "sac"}, _SAC_REFERENCE),
    "Pendulum-v1-sac-bf16": _off_policy_pendulum(
        {"name": "sac", "precision": "bf16"}, _SAC_REFERENCE,
    ),
    "Pendulum-v1-td3": _off_policy_pendulum(
        {"name": "td3"}, "-152 ± 90 (SB3 zoo, 20 k, one run)",
    ),
    "Pendulum-v1-ddpg": _off_policy_pendulum(
        {"name": "ddpg"}, "-152 ± 94 (SB3 zoo, 20 k, one run)",
    ),
    # An update takes eight episodes of 1,000 steps: four environments in both directions.
    "Swimmer-v5-ars": _evolution(  # examples/ars_swimmer.yaml
        "Swimmer-v5", 2_000_000, {"name": "ars", "population": 8, "noise": 0.02},
        "v3: 355 ± 13 (SB3 zoo, one run)", n_envs=4, horizon=2_000, net="", learning_rate=0.03,
    ),
    # An update is of 64 episodes of 1,000 steps.
    "HalfCheetah-v5-ars": _evolution(  # directions, noise and step size of SB3's zoo
        "HalfCheetah-v5", 12_000_000,
        {"name": "ars", "population": 64, "top_directions": 4, "noise": 0.03},
        "v3: 4,815 ± 1,341 (SB3 zoo, 12 M, one run)",
        n_envs=16, horizon=4_000, net="", learning_rate=0.02,
    ),
    "HalfCheetah-v5-sac": _off_policy_half_cheetah(
        {"name": "sac"}, "v4: 9,635 ± 1,424 (CleanRL, while training)",
    ),
    "HalfCheetah-v5-td3": _off_policy_half_cheetah(
        {"name": "td3"}, "v1: 9,637 ± 859 (TD3's paper)",
    ),
    "HalfCheetah-v5": _mujoco(
        "HalfCheetah-v5", -0.5, "v4: 1443 ± 46 (CleanRL; another set of its runs: 2637 ± 1068)",
    ),
    "HalfCheetah-v5-appo": _task(  # examples/async_halfcheetah.yaml by APPO, for longer
        "HalfCheetah-v5", 1_000_000,
        {
            "name": "appo", "minibatches": 4, "epochs": 2, "bounds_coef": 1.0, "init_log_std": -0.5,
        },
        "none; PPO, v4: 1443 ± 46 (CleanRL)",
        n_envs=16, horizon=32, learning_rate=5e-4, schedule="linear", gmis=2,
        sections={**_DECOUPLED, "experience": {"max_policy_lag": 8}},
    ),
    "HalfCheetah-v5-a2c": _task(
        "HalfCheetah-v5", 1_000_000,
        {
            "name": "a2c", "lam": 0.95, "bounds_coef": 1.0, "init_log_std": -0.5,
            "share_layers": False,
        },
        "v3: 3,041 ± 157 (SB3 zoo, one run)",
        n_envs=16, horizon=16, learning_rate=1e-3, schedule="linear",
        sb3=Settings(  # rl-zoo's settings: SB3's defaults, with VecNormalize
            env="HalfCheetah-v5", method="a2c", descent="rmsprop", warmup=0, n_envs=1, horizon=5,
            minibatch=5, epochs=1, net="64:64", trunk="separate", activation="tanh", gamma=0.99,
            lam=1.0, learning_rate=7e-4, max_grad_norm=0.5, evaluate=20,
        ),
    ),
    "Ant-v5": _mujoco("Ant-v5", -1.0, "v4: 1824 ± 906 (CleanRL)"),
}  # fmt: skip
