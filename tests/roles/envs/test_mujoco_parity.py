"""Equal to Gymnasium's MuJoCo environments, step by step, on one installation."""

import inspect
from pathlib import Path

import gymnasium
import pytest
import torch
from gymnasium.envs.registration import load_env_creator

import bodies_envs
from gmi_drl.roles.envs import make_env
from gmi_drl.roles.envs.adapters import MUJOCO_IDS, RENDERING, ROBOT_IDS
from gmi_drl.roles.envs.mujoco.tasks import TASKS
from gmi_drl.roles.envs.options import parse_options

# Everything is bit-equal but these rewards: Gymnasium sums the squares of a distance through BLAS,
# or squares single numbers by pow().
LAST_BIT = {"InvertedDoublePendulum-v5", "Pusher-v5", "Reacher-v5"}

LOCOMOTION = {
    "forward_reward_weight": 0.7,
    "ctrl_cost_weight": 0.3,
    "reset_noise_scale": 0.02,
    "exclude_current_positions_from_observation": False,
    "frame_skip": 3,
}
HEALTH = {"healthy_reward": 0.4, "terminate_when_unhealthy": False}
HUMANOID_PARTS = {"include_cinert_in_observation": False, "include_cvel_in_observation": False}
OTHER_OPTIONS = {
    "Ant-v5": [
        {**LOCOMOTION, **HEALTH, "contact_force_range": (-0.5, 0.2), "contact_cost_weight": 0.01},
        {"healthy_z_range": (0.4, 0.9), "main_body": 3, "include_cfrc_ext_in_observation": False},
        {"main_body": "torso", "include_cfrc_ext_in_observation": False, "contact_cost_weight": 0},
        {"xml_file": "ant.xml", "reset_noise_scale": 0.3},
    ],
    "HalfCheetah-v5": [LOCOMOTION, {"reset_noise_scale": 0.5}],
    "Hopper-v5": [
        {**LOCOMOTION, **HEALTH},
        {"healthy_state_range": (-3, 3), "healthy_z_range": (0.8, 1.4)},
        {"healthy_angle_range": (-0.05, 0.1)},
    ],
    "Humanoid-v5": [
        {**LOCOMOTION, **HEALTH, "contact_cost_range": (-1.0, 0.001)},
        {**HUMANOID_PARTS, "healthy_z_range": (1.2, 1.45), "contact_cost_weight": 1e-4},
        {"include_qfrc_actuator_in_observation": False, "include_cfrc_ext_in_observation": False},
    ],
    "HumanoidStandup-v5": [
        {"impact_cost_weight": 1e-3, "impact_cost_range": (0.1, 0.2), "uph_cost_weight": 2},
        {**HUMANOID_PARTS, "exclude_current_positions_from_observation": False},
    ],
    "InvertedDoublePendulum-v5": [{"healthy_reward": 3.0, "reset_noise_scale": 0.3}],
    "InvertedPendulum-v5": [{"reset_noise_scale": 0.2, "frame_skip": 1}],
    "Pusher-v5": [{"reward_near_weight": 2, "reward_dist_weight": 0.1, "reward_control_weight": 1}],
    "Reacher-v5": [{"reward_dist_weight": 3, "reward_control_weight": 0.2, "frame_skip": 4}],
    "Swimmer-v5": [LOCOMOTION],
    "Walker2d-v5": [{**LOCOMOTION, **HEALTH}, {"healthy_z_range": (1.0, 1.5)}],
}


def assert_equal(env_id, **how):
    observation, reward, ended = bodies_envs.largest_difference(env_id, **how)
    assert observation == 0
    assert reward <= (1e-12 if env_id in LAST_BIT else 0)
    return ended


@pytest.mark.parametrize("env_id", MUJOCO_IDS)
def test_batch_equals_gymnasium_through_resets(env_id):
    assert assert_equal(env_id, steps=60, seed=11, limit=25) >= 3


@pytest.mark.parametrize("env_id", MUJOCO_IDS)
def test_first_other_options_equal_gymnasium(env_id):
    assert_equal(env_id, steps=25, seed=5, limit=15, options=OTHER_OPTIONS[env_id][0])


def test_two_threads_equal_gymnasium():
    assert_equal("Ant-v5", steps=40, seed=2, num_env=5, threads=2)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("env_id", MUJOCO_IDS)
def test_batch_equals_gymnasium_for_1000_steps(env_id):
    ended = assert_equal(env_id, steps=1000, seed=100, threads=2)
    assert ended >= 3  # the registered limits are at most 1000


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("env_id", "options"),
    [(env_id, options) for env_id, sets in OTHER_OPTIONS.items() for options in sets],
    ids=lambda value: value if isinstance(value, str) else "-".join(value)[:60],
)
def test_options_equal_gymnasium_for_1000_steps(env_id, options):
    assert_equal(env_id, steps=1000, seed=7, options=options)


@pytest.mark.slow
def test_custom_model_equals_gymnasium(tmp_path):
    asset = Path(gymnasium.__file__).parent / "envs/mujoco/assets/half_cheetah.xml"
    model = tmp_path / "heavy.xml"
    model.write_text(asset.read_text().replace('settotalmass="14"', 'settotalmass="20"'))
    assert_equal("HalfCheetah-v5", steps=200, seed=7, options={"xml_file": str(model)})


@pytest.mark.parametrize("env_id", MUJOCO_IDS)
def test_float32_is_the_float64_numbers_rounded(env_id):
    made = [make_env(env_id, 2, seed=4, dtype=d) for d in (torch.float32, torch.float64)]
    single, double = (env.reset() for env in made)
    assert torch.equal(single, double.float())
    action = torch.full((2, *made[0].action_space.shape), 0.1)
    for _ in range(3):
        single, double = (env.step(action) for env in made)
        assert single.observation.dtype == single.reward.dtype == torch.float32
        assert torch.equal(single.observation, double.observation.float())
        assert torch.equal(single.reward, double.reward.float())


@pytest.mark.parametrize("env_id", MUJOCO_IDS)
def test_options_are_gymnasiums_arguments_with_its_defaults(env_id):
    creator = load_env_creator(gymnasium.spec(env_id).entry_point)
    theirs = {
        name: parameter.default
        for name, parameter in inspect.signature(creator).parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD and name not in RENDERING
    }
    ours = vars(parse_options(TASKS[env_id].Options, {}, "")[0])
    assert {k: v for k, v in ours.items() if k not in ("integrator", "on_unstable")} == theirs


@pytest.mark.parametrize("env_id", MUJOCO_IDS)
def test_spaces_and_time_limit_are_gymnasiums(env_id):
    ours, ref = make_env(env_id, 1, dtype=torch.float64), gymnasium.make(env_id)
    assert ours.observation_space == ref.observation_space
    assert ours.action_space == ref.action_space
    assert ours.max_episode_steps == gymnasium.spec(env_id).max_episode_steps


def test_our_list_of_tasks_is_the_check_modules():
    assert tuple(TASKS) == (*MUJOCO_IDS, *ROBOT_IDS)
