"""examples/paper: the experiments of the paper's Table 6, as far as their tasks are there."""

from pathlib import Path

import pytest

import gmi_drl
import warp_cache  # noqa: F401
from gmi_drl import runtime
from gmi_drl.launcher.start.preload import preload_of
from gmi_drl.placement import Topology, check, hidden_sizes, layout_of, load_config, simplest

FOLDER = Path(__file__).parents[2] / "examples" / "paper"
# Task: its observations and actions in the paper and here, the paper's network, environments,
# minibatch, and gamma, lambda, clip, learning rate, KL target, horizon, epochs, critic coefficient,
# reward scale, bounds loss, gradient clip, bootstrap at time limits of IsaacGymEnvs 1.5.1.
TABLE = {
    "ant": ((60, 8), (105, 8), (256, 128, 64), 4096, 32768,
            (0.99, 0.95, 0.2, 3e-4, 0.008, 16, 4, 2, 0.01, 1e-4, None, True)),
    "anymal": ((48, 12), (48, 12), (256, 128, 64), 4096, 32768,
               (0.99, 0.95, 0.2, 3e-4, 0.008, 24, 5, 2, 1, 1e-3, 1, True)),
    "ball_balance": ((24, 3), (24, 3), (256, 128, 64), 4096, 8192,
                     (0.99, 0.95, 0.2, 3e-4, 0.008, 16, 8, 4, 0.1, 1e-4, 1, False)),
    "franka_cabinet": ((23, 9), (23, 9), (256, 128, 64), 4096, 8192,
                       (0.99, 0.95, 0.2, 5e-4, 0.008, 16, 8, 4, 0.01, 1e-4, 1, False)),
    "humanoid": ((108, 21), (348, 17), (200, 400, 100), 4096, 32768,
                 (0.99, 0.95, 0.2, 5e-4, 0.008, 32, 5, 4, 0.01, 1e-4, 1, True)),
    "shadow_hand": ((211, 20), (211, 20), (512, 512, 512, 256), 16384, 32768,
                    (0.99, 0.95, 0.2, 5e-4, 0.016, 8, 5, 4, 0.01, 1e-4, 1, True)),
}  # fmt: skip
COMMON = {
    "activation": "elu",
    "schedule": "adaptive",
    "entropy_coef": 0,
    "clip_value_loss": True,
    "normalize_observation": True,
    "normalize_value": True,
    "normalize_advantage": True,
    "init_log_std": 0,
}


def test_every_task_of_the_paper_is_there():
    assert {path.stem for path in FOLDER.iterdir()} == set(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_a_config_is_the_papers_and_can_run(name):
    from gmi_drl.roles.envs import check_env

    config = load_config(FOLDER / f"{name}.yaml")
    _, _, network, num_env, minibatch, settings = TABLE[name]
    a = config.algorithm
    assert hidden_sizes(a.network) == network
    assert config.env.num_env == num_env
    assert num_env * a.horizon == minibatch * a.minibatches
    assert settings == (
        a.gamma, a.lam, a.clip, a.learning_rate, a.kl_target, a.horizon, a.epochs, a.value_coef,
        a.reward_scale, a.bounds_coef, a.max_grad_norm, a.bootstrap_time_limit,
    )  # fmt: skip
    assert {key: getattr(a, key) for key in COMMON} == COMMON
    assert check_env(config.env.id, config.env.adapter, config.env.options) == []
    topology = Topology.from_cores([0, 1], 1)
    assert check(config, topology) == []
    assert layout_of(simplest(config), topology).gmis


@pytest.fixture(scope="module")
def warm_warp():
    """One fork server for all launches of adapter warp."""
    runtime.init(preload_of({"env": {"adapter": "warp"}}))
    yield
    runtime.shutdown()


@pytest.mark.slow
@pytest.mark.usefixtures("warm_warp")
@pytest.mark.timeout(300)  # a fresh cache compiles kernels first
@pytest.mark.parametrize("name", ["anymal", "franka_cabinet", "shadow_hand"])
def test_a_config_trains_on_cores_when_it_is_made_small(name, tmp_path):
    small = ("env.num_env=4", "run.eval_episodes=0", "algorithm.minibatches=1")
    small += ("algorithm.epochs=1", "algorithm.network=[16]")
    steps = 2 * 4 * load_config(FOLDER / f"{name}.yaml").algorithm.horizon
    result = gmi_drl.launch(
        FOLDER / f"{name}.yaml",
        overrides=(f"run.folder={tmp_path}", f"run.total_steps={steps}", *small),
        view="none",
    )
    assert result.steps == steps


@pytest.mark.parametrize("name", TABLE)
def test_sizes_are_those_of_the_docs(name):
    from gmi_drl.roles.envs.mujoco.tasks import TASKS
    from gmi_drl.roles.envs.mujoco.vec import load_model
    from gmi_drl.roles.envs.on_device.tasks import DEVICE_TASKS

    config = load_config(FOLDER / f"{name}.yaml")
    kind = TASKS.get(config.env.id) or DEVICE_TASKS[config.env.id]
    options = kind.Options()
    model = load_model(options)
    papers, ours, *_ = TABLE[name]
    assert (kind(model, options).observation_size, model.nu) == ours
    page = (FOLDER.parents[1] / "docs" / "gpu-simulation.md").read_text()
    (row,) = [
        line for line in page.splitlines() if line.startswith("|") and f"paper/{name}.yaml" in line
    ]
    cells = [cell.strip() for cell in row.split("|")]
    assert cells[2:4] == [f"{papers[0]}, {papers[1]}", f"{ours[0]}, {ours[1]}"]
