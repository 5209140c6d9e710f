"""Our own robots in adapter mujoco: equal to their equations written a second time."""

import io
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

from gmi_drl.roles.envs import EnvSpecError, check_env, choose_adapter, make_env
from gmi_drl.roles.envs.mujoco.robots import MODELS
from gmi_drl.roles.envs.mujoco.tasks import TASKS
from robot_references import BarkourReference, FrankaCabinetReference, ShadowHandReference

# Half of the goals are reached at once, and cubes fall soon.
OFTEN = {"success_tolerance": 2.0, "fall_distance": 0.08}
OF_MJX = {"Barkour-v0": BarkourReference, "ShadowHand-v0": ShadowHandReference}
KINDS = OF_MJX | {"FrankaCabinet-v0": FrankaCabinetReference}
# Arm and fingers about the drawer's handle.
AT_HANDLE = (1.827, -1.197, -1.021, -1.836, -2.206, 2.328, 0.244, 0.035, 0.035)
LIMIT = 30


def actions(env, steps, seed=1):
    generator = torch.Generator().manual_seed(seed)
    shape = (steps, env.num_env, *env.action_space.shape)
    return (torch.rand(shape, generator=generator) * 2 - 1) * 1.2  # beyond the bounds as well


def compiled(env_id):
    options = TASKS[env_id].Options()
    return options.compile(Path(options.xml_file)), options


@pytest.mark.parametrize("env_id", KINDS)
def test_batch_equals_its_equations_through_ends_and_goals(env_id):
    n, options = 3, OFTEN if env_id == "ShadowHand-v0" else {}
    env = make_env(env_id, n, seed=7, options=options, max_episode_steps=LIMIT, dtype=torch.float64)
    model, defaults = compiled(env_id)
    references = [
        KINDS[env_id](model, np.random.Generator(np.random.PCG64(7 + i)), defaults.frame_skip)
        for i in range(n)
    ]

    def begin(i):
        references[i].begin(env._datas[i].qpos, env._datas[i].qvel)

    def assert_seen(observation, reference):
        np.testing.assert_allclose(observation, reference.observe(), rtol=1e-9, atol=1e-9)

    first, ended, goals = env.reset(), [0, 0], 0
    for i, reference in enumerate(references):
        reference.tolerance, reference.fallen = OFTEN.values()
        begin(i)
        assert_seen(first[i], reference)
    for action in actions(env, 3 * LIMIT):
        step = env.step(action)
        for i, reference in enumerate(references):
            goal = getattr(reference, "goal", None)
            reward, terminated, truncated = reference.step(action[i].numpy(), LIMIT)
            goals += goal is not getattr(reference, "goal", None)
            assert float(step.reward[i]) == pytest.approx(reward, abs=1e-9)
            assert (bool(step.terminated[i]), bool(step.truncated[i])) == (terminated, truncated)
            assert_seen(step.final_observation[i], reference)
            if terminated or truncated:
                begin(i)
                ended[truncated] += 1
            assert_seen(step.observation[i], reference)
    assert sum(ended) >= 2 * n
    if env_id == "ShadowHand-v0":
        assert ended[0] >= 3
        assert goals >= 10


@pytest.mark.parametrize("env_id", OF_MJX)
def test_a_servo_pulls_to_its_action_as_the_robots_own_servo_to_that_angle(env_id):
    theirs = mujoco.MjModel.from_xml_path(TASKS[env_id].Options().xml_file)
    ours, options = compiled(env_id)
    data, rng = mujoco.MjData(ours), np.random.default_rng(0)
    data.qpos[-24:] = 0.3
    data.qvel[:] = rng.normal(size=ours.nv)
    data.ctrl[:] = rng.uniform(-1, 1, ours.nu)
    mujoco.mj_forward(ours, data)
    for k in range(ours.nu):
        name = ours.actuator(k).name
        known = theirs.actuator(name.replace("J0", "J2"))  # of a finger's coupled joints
        if env_id == "Barkour-v0":
            target = BarkourReference.standing[k] + options.action_scale * data.ctrl[k]
        else:
            target = known.ctrlrange @ [1 - data.ctrl[k], 1 + data.ctrl[k]] / 2
        angle, speed = data.actuator_length[k], data.actuator_velocity[k]
        if name.endswith("J0"):
            outer = [data.joint(f"{name.replace('A_', '')[:-1]}{j}") for j in (1, 2)]
            assert angle == pytest.approx(sum(joint.qpos[0] for joint in outer))
        force = known.gainprm[0] * target + known.biasprm[1] * angle + known.biasprm[2] * speed
        force = np.clip(force, *known.forcerange)
        assert data.actuator_force[k] == pytest.approx(force, abs=1e-12)
    assert ours.body_mass.sum() == pytest.approx(
        theirs.body_mass.sum() + (0.1 if env_id == "ShadowHand-v0" else 0)
    )


@pytest.mark.parametrize("env_id", KINDS)
def test_saved_state_goes_on_bit_for_bit_with_goals_and_commands(env_id):
    def made(seed):
        options = OFTEN if env_id == "ShadowHand-v0" else {}
        return make_env(env_id, 2, seed=seed, options=options, max_episode_steps=8)

    def follow(env, acts):
        return torch.stack([torch.cat([t.double().flatten() for t in env.step(a)]) for a in acts])

    first, second, file = made(1), made(99), io.BytesIO()
    acts = actions(first, 24)
    first.reset()
    follow(first, acts[:5])
    torch.save(first.state_dict(), file)
    expected = follow(first, acts[5:])
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(follow(second, acts[5:]), expected)


def test_no_cube_begins_in_the_hand():
    env = make_env("ShadowHand-v0", 64, seed=3)
    env.reset()
    cube = env._model.body("cube").id
    for data in env._datas:
        contacts = data.contact[: data.ncon]
        deep = [c.dist for c in contacts if cube in env._model.geom_bodyid[list(c.geom)]]
        assert min(deep, default=0) > -2e-3


def test_cubes_stay_on_hands_that_hold_still_and_goals_stay_as_they_are():
    env = make_env("ShadowHand-v0", 8, seed=3, options={"success_tolerance": 1e-3})
    goals = env.reset()[:, 88:92].clone()
    fallen = torch.zeros(8, dtype=torch.bool)
    for _ in range(60):
        step = env.step(torch.zeros(8, 20))
        fallen |= step.terminated
    assert fallen.sum() <= 2
    assert torch.equal(step.observation[~fallen, 88:92], goals[~fallen])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("lies on its back", {2: 0.1, 3: 0.0, 4: 1.0}),
        ("stands too low", {2: -0.01}),
        ("kneels", {8: 1.5, 9: 0.0, 2: 0.1}),  # a leg stretched forward, near the floor
    ],
)
def test_a_trunk_or_knee_on_the_floor_ends_the_episode(name, change):
    env = make_env("Barkour-v0", 2, seed=3)
    env.reset()
    for place, value in change.items():
        env._datas[1].qpos[place] = value
    assert env.step(torch.zeros(2, 12)).terminated.tolist() == [False, True], name


def at_the_handle(opened, moved=()):
    """An environment whose hand holds the handle of a drawer that is open so far."""
    env = make_env("FrankaCabinet-v0", 1, dtype=torch.float64)
    env.reset()
    data = env._datas[0]
    data.qpos[:] = [*AT_HANDLE, opened]
    for place, value in moved:
        data.qpos[place] += value
    data.act[:] = env._task.first_activation(data.qpos)
    mujoco.mj_forward(env._model, data)
    return env, data


@pytest.mark.parametrize("opened", [0.005, 0.05, 0.25, 0.395])
@pytest.mark.parametrize(
    ("name", "moved"),
    [
        ("about it", ()),
        ("beside it", ((5, 0.3),)),
        ("upside down", ((6, 2.0),)),
        ("in", ((3, 0.2),)),
    ],
)
def test_a_drawer_pays_by_how_far_it_is_open_and_where_the_fingers_are(opened, name, moved):
    env, data = at_the_handle(opened, moved)
    reference = FrankaCabinetReference(env._model, None, 4)
    reference.data.qpos[:], reference.data.act[:] = data.qpos, data.act
    reference.targets = data.qpos[:9].copy()
    mujoco.mj_forward(env._model, reference.data)
    action = np.linspace(-1.2, 1.2, 9)
    reward, ended, _ = reference.step(action, LIMIT)
    step = env.step(torch.from_numpy(action)[None])
    assert float(step.reward[0]) == pytest.approx(reward, abs=1e-9), name
    assert bool(step.terminated[0]) == ended
    assert ended == (opened > 0.39) or name != "about it"  # else what is in its way moves it


def test_the_arm_is_the_manufacturers():
    """All joints at 0: the flange is where its data sheet says."""
    env = make_env("FrankaCabinet-v0", 1)
    data = mujoco.MjData(env._model)
    data.qpos[:] = 0
    mujoco.mj_forward(env._model, data)
    place = data.body("hand").xpos - data.body("link0").xpos
    np.testing.assert_allclose(place, [-0.088, 0, 0.333 + 0.316 + 0.384 - 0.107], atol=1e-9)


def test_a_hand_that_grips_the_handle_and_goes_back_opens_the_drawer():
    env, data = at_the_handle(0.0)
    hand, nv = env._model.body("hand").id, env._model.nv
    action = torch.zeros(1, 9)
    action[0, 7:] = -1
    for _ in range(15):
        held = float(env.step(action).reward[0])
    assert held > 2.5
    jacobian = np.zeros((2, 3, nv))
    for _ in range(60):
        mujoco.mj_jacBody(env._model, data, jacobian[0], jacobian[1], hand)
        back, *_ = np.linalg.lstsq(jacobian.reshape(6, nv)[:, :7], [0.2, 0, 0, 0, 0, 0])
        action[0, :7] = torch.from_numpy(back / 7.5).clip(-1, 1)
        step = env.step(action)
    assert data.qpos[9] > 0.1
    assert float(step.reward[0]) > held + 1


def test_commands_differ_between_episodes_and_keep_to_their_ranges():
    options = {"command_x_range": [0.2, 0.4], "command_yaw_range": [0, 0]}
    env = make_env("Barkour-v0", 64, options=options, dtype=torch.float64)
    first, second = env.reset()[:, 9:12].clone(), env.reset()[:, 9:12]
    assert not torch.isclose(first[:, 0], second[:, 0]).any()
    x, y, yaw = (torch.cat([first, second]) / torch.tensor([2, 2, 0.25])).T
    assert (x.min(), x.max()) == (pytest.approx(0.2, abs=0.02), pytest.approx(0.4, abs=0.02))
    assert (y.min(), y.max()) == (pytest.approx(-0.5, abs=0.04), pytest.approx(0.5, abs=0.04))
    assert not yaw.any()


def test_limits_and_adapter_are_known():
    limits = {env_id: make_env(env_id, 1).max_episode_steps for env_id in KINDS}
    assert limits == {"Barkour-v0": 2500, "FrankaCabinet-v0": 500, "ShadowHand-v0": 600}
    assert {choose_adapter(env_id) for env_id in KINDS} == {"mujoco"}


@pytest.mark.parametrize("adapter", ["mujoco", "warp"])
@pytest.mark.parametrize("env_id", OF_MJX)
def test_a_missing_model_names_the_extra(env_id, adapter, monkeypatch):
    monkeypatch.setattr(Path, "is_file", lambda path: not path.is_relative_to(MODELS))
    (fault,) = check_env(env_id, adapter)
    assert "pip install -e '.[mjx]' in the clone" in fault
    with pytest.raises(EnvSpecError, match="needs the package mujoco-mjx"):
        make_env(env_id, 1, adapter=adapter)


def test_faults_in_options_are_told():
    (fault,) = check_env("Barkour-v0", "mujoco", {"clip_observation": 0})
    assert "clip_observation=0.0; must be above 0" in fault
    (fault,) = check_env("ShadowHand-v0", "warp", {"fall_distence": 1})
    assert "Did you mean fall_distance?" in fault
