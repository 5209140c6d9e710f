"""Short runs of every family of algorithms, made once for all modules that ask for them."""

import fcntl
import functools
import os
import shutil

import pytest
import yaml

import gmi_drl
from gmi_drl import runtime
from gmi_drl.launcher.start.preload import PRELOAD

TASKS = {
    "ppo": {"algorithm": {"horizon": 32}, "layout": {"gmi_per_gpu": 2}},
    "lstm": {"algorithm": {"horizon": 32, "recurrent": {"size": 16}}},
    "a2c": {"algorithm": {"name": "a2c", "horizon": 8}},
    "ant": {"env": {"id": "Ant-v5"}, "algorithm": {"horizon": 32}},
    "dqn": {
        "algorithm": {"name": "dqn", "replay_start": 64, "dueling": True},
        "layout": {"gmi_per_gpu": 2},
    },
    "c51": {
        "algorithm": {
            "name": "dqn",
            "replay_start": 64,
            "distributional": "c51",
            "value_range": [0, 100],
            "noisy": True,
        }
    },
    "td3": {
        "env": {"id": "Pendulum-v1"},
        "algorithm": {"name": "td3", "batch_size": 32, "replay_start": 64},
    },
    "ddpg": {
        "env": {"id": "Pendulum-v1"},
        "algorithm": {"name": "ddpg", "batch_size": 32, "replay_start": 64},
    },
    "r2d2": {
        "algorithm": {
            "name": "dqn",
            "batch_size": 8,
            "replay_start": 64,
            "recurrent": {"size": 16},
        },
    },
    "mbpo": {
        "env": {"id": "Pendulum-v1"},
        "algorithm": {
            "name": "mbpo",
            "batch_size": 32,
            "replay_start": 64,
            "ensemble": 2,
            "elites": 1,
            "model_network": [16],
            "model_epochs": 2,
            "rollouts": 64,
        },
    },
    "cem": {
        "env": {"id": "Pendulum-v1", "max_episode_steps": 50},  # each step is planned
        "algorithm": {
            "name": "cem",
            "horizon": 4,
            "batch_size": 32,
            "replay_start": 64,
            "ensemble": 2,
            "candidates": 16,
            "plan_elites": 4,
        },
    },
    "es": {"algorithm": {"name": "es", "population": 8, "horizon": 40}},
    "ars": {
        "env": {"id": "Pendulum-v1"},
        "algorithm": {"name": "ars", "population": 8, "horizon": 40, "network": []},
    },
    "alphazero": {
        "env": {"id": "TicTacToe-v0"},
        "algorithm": {
            "name": "alphazero",
            "blocks": 0,
            "games": 16,
            "simulations": 4,
            "play_simulations": 4,
            "gate_games": 0,
        },
    },
    "sac": {
        "env": {"id": "Pendulum-v1"},
        "algorithm": {
            "name": "sac",
            "batch_size": 32,
            "replay_start": 64,
            "normalize_observation": True,
        },
    },
    "images": {
        "env": {"id": "MinAtar/Breakout-v1", "wrappers": [{"frame_stack": {"count": 2}}]},
        "algorithm": {"network": "impala", "horizon": 16},
    },
    "warp": {
        "env": {
            "id": "HalfCheetah-v5",
            "adapter": "warp",
            "options": {"frame_skip": 1},
            "max_episode_steps": 20,
        },
        "algorithm": {"horizon": 16},
    },
    "envpool": {
        "env": {"id": "CartPole-v1", "adapter": "envpool", "max_episode_steps": 50},
        "algorithm": {"horizon": 16},
    },
    "isaacgym": {"env": {"id": "Ant", "adapter": "isaacgym"}, "algorithm": {"horizon": 16}},
    "torch": {"env": {"id": "BallBalance-v0"}, "algorithm": {"horizon": 16}},
    "structure": {"env": {"id": "bodies_spaces:ShowsShifted-v0"}, "algorithm": {"horizon": 16}},
    "mixed": {"env": {"id": "bodies_spaces:TakesMixed-v0"}, "algorithm": {"horizon": 16}},
    "numbers": {"env": {"id": "bodies_spaces:Numbers-v0"}, "algorithm": {"horizon": 16}},
    "async": {
        "mode": "async",
        "algorithm": {"name": "impala", "horizon": 16},
        "hardware": {"num_gpus": 2},
        "layout": {"template": "decoupled", "gmi_per_gpu": 1},
    },
}


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Returns the function that trains a task a little and gives a copy of its run's folder.

    A task is trained once in a test session, whichever process comes first.
    """
    kept = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        kept = kept.parent
    kept = kept / "trained"
    kept.mkdir(exist_ok=True)
    runtime.init(PRELOAD)  # importing torch takes seconds: once for all launches

    @functools.cache
    def trained(task):
        with open(kept / f"{task}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (kept / task).exists():
                _train(task, tmp_path_factory.mktemp(task)).parent.rename(kept / task)
        (run,) = (kept / task).iterdir()
        return shutil.copytree(run, tmp_path_factory.mktemp(task) / task / run.name)

    yield trained
    runtime.shutdown()


def _train(task, folder):
    sections = {
        "env": {"id": "CartPole-v1"},
        "algorithm": {},
        "hardware": {"num_gpus": 1},
        "layout": {"gmi_per_gpu": 1},
        **TASKS[task],
    }
    config = {
        "version": 1,
        **sections,
        "env": {"num_env": 4, **sections["env"]},
        "algorithm": {"network": [16], **sections["algorithm"]},
        "hardware": {"backend": "cpu", **sections["hardware"]},
        "run": {"folder": str(folder), "name": task, "total_steps": 512, "eval_episodes": 6},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return gmi_drl.launch(path, view="none").folder
