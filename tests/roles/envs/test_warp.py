"""mujoco_warp environments: episodes, seeds, saved state, and what cannot be, on warp's CPU device.

Physics itself is compared with MuJoCo's in test_warp_parity.py.
"""

import io
import logging
import math
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import warp as wp

import warp_cache  # noqa: F401
from device_only import DeviceOnly
from fake_graphs import FakeCuda, FakeStream
from gmi_drl.gmi.backends.green import Partition
from gmi_drl.roles.envs import EnvActionError, EnvSpecError, check_env, make_env
from gmi_drl.roles.envs.errors import EnvStateError
from gmi_drl.roles.envs.on_device.tasks import WARP_OPTIONS as OPTIONS
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.envs.warp import vec as capturing

# One Euler step of the cheapest model: these tests are about everything else.
QUICK = {"frame_skip": 1}
pytestmark = pytest.mark.timeout(300)  # a fresh cache compiles kernels first, for some 25 s


def make(num_env, env_id="HalfCheetah-v5", seed=0, limit=None, **options):
    return make_env(
        env_id, num_env, adapter="warp", seed=seed, max_episode_steps=limit,
        options={**QUICK, **options},
    )  # fmt: skip


def actions(env, steps, seed=1):
    generator = torch.Generator().manual_seed(seed)
    shape = (steps, env.num_env, *env.action_space.shape)
    return torch.rand(shape, generator=generator) * 2 - 1


def roll(env, acts):
    """Copies of all that the steps gave, stacked."""
    steps = [[t.clone() for t in env.step(a)] for a in acts]
    return [torch.stack(column) for column in zip(*steps, strict=True)]


def equal(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_time_limit_truncates_restarts_and_keeps_the_last_observation():
    env, free = make(2, limit=3), make(2)
    assert isinstance(env, VecEnv)
    start = env.reset().clone()
    assert torch.equal(start, free.reset())
    acts = actions(env, 4)
    first = env.step(acts[0])
    buffers = [t.data_ptr() for t in first]
    observation, _, terminated, truncated, final = roll(env, acts[1:])
    expected = roll(free, acts[:3])[0]
    assert truncated.tolist() == [[False] * 2, [True] * 2, [False] * 2]
    assert not terminated.any()
    assert torch.equal(final[:2], expected[1:])  # the episode as it would have gone on
    assert not torch.equal(observation[1], final[1])
    assert not torch.equal(observation[1], start)  # another episode
    assert [t.data_ptr() for t in env.step(acts[0])] == buffers  # where a captured step writes


def test_a_restarted_environment_leaves_the_others_as_they_were():
    """Also what lags behind: Ant's reward is the difference of a position that mj_forward moves."""
    how = {"integrator": "euler", "healthy_reward": 0, "reset_noise_scale": 0.02}
    never = make(2, "Ant-v5", seed=3, terminate_when_unhealthy=False, **how)
    some = make(2, "Ant-v5", seed=3, healthy_z_range=[0.5, 9], **how)
    assert torch.equal(never.reset(), some.reset())
    acts = actions(some, 6)
    for env in (never, some):
        env._world.qpos[1, 2] = 0.45  # one lies too low, the other does not
    plain, restarted = roll(never, acts), roll(some, acts)
    assert restarted[2][0].tolist() == [False, True]
    assert not restarted[2][:, 0].any()
    assert equal([t[:, 0] for t in plain[:2]], [t[:, 0] for t in restarted[:2]])
    assert not torch.equal(plain[0][0, 1], restarted[0][0, 1])
    assert torch.equal(restarted[0][1:], restarted[4][1:])
    height = restarted[0][0, 1, 0]
    assert abs(float(height) - 0.75) < 0.03  # of a first state


def test_seeds_give_every_environment_its_own_stream_wherever_it_is():
    env = make(3, seed=7, limit=2)
    acts = actions(env, 5)
    start = env.reset().clone()
    first = roll(env, acts)
    assert len({tuple(row.tolist()) for row in start}) == 3
    assert torch.equal(env.reset(seed=7), start)
    assert equal(roll(env, acts), first)
    alone = make(1, seed=9, limit=2)  # environment 2 of the batch
    assert torch.equal(alone.reset(), start[2:])
    assert equal(roll(alone, acts[:, 2:]), [t[:, 2:] for t in first])
    assert not torch.equal(env.reset(seed=8), start)


def test_first_velocities_are_normal_and_positions_uniform():
    env = make(4096)
    env.reset()
    qpos, qvel = env._world.qpos, env._world.qvel
    assert (qpos.abs() <= 0.1).all()
    assert abs(float(qpos.std()) - 0.2 / 12**0.5) < 1e-3
    assert abs(float(qvel.std()) - 0.1) < 1e-3
    assert abs(float((qvel.abs() > 0.2).float().mean()) - 0.0455) < 3e-3
    assert abs(float(torch.corrcoef(torch.stack([qpos[:, 1], qvel[:, 1]]))[0, 1])) < 0.05


def test_saved_state_goes_on_bit_for_bit():
    env = make(2, "Ant-v5", limit=4, integrator="euler")
    env.reset()
    acts = actions(env, 8)
    roll(env, acts[:3])
    file = io.BytesIO()
    torch.save(env.state_dict(), file)
    expected = roll(env, acts[3:])
    file.seek(0)
    other = make(2, "Ant-v5", seed=99, limit=4, integrator="euler")
    state = torch.load(file, weights_only=True)
    other.load_state_dict(state)
    assert torch.equal(other.state_dict()["observation"], state["observation"])
    assert equal(roll(other, acts[3:]), expected)
    with pytest.raises(EnvStateError, match="num_env=2"):
        make(3, "Ant-v5").load_state_dict(state)
    with pytest.raises(EnvStateError, match="adapter warp"):
        other.load_state_dict(make_env("Ant-v5", 1).state_dict())


def test_an_unstable_world_ends_its_episode_and_is_counted(caplog):
    env = make(3)
    before = env.reset().clone()
    env._world.qvel[1, 3] = float("nan")
    env._world.qpos[2, 1] = 3e10
    with caplog.at_level(logging.WARNING):
        step = env.step(actions(env, 1)[0])
    assert step.terminated.tolist() == [False, True, True]
    assert step.reward[1:].tolist() == [0, 0]
    assert torch.equal(step.final_observation[1:], before[1:])
    assert torch.isfinite(step.observation).all()
    assert env.unstable_steps == 2
    assert "2 environment steps became unstable" in caplog.text
    assert torch.isfinite(torch.cat(roll(env, actions(env, 3))[:2][0].unbind())).all()
    assert env.unstable_steps == 2


def test_contacts_without_room_are_told(caplog):
    env = make(2, njmax=1, nconmax=1)
    env.reset()
    env._world.qpos[:, 1] = -0.3  # in the floor
    with caplog.at_level(logging.WARNING):
        env.step(actions(env, 1)[0])
    assert env.dropped_steps == 2
    assert "nconmax=1, njmax=1" in caplog.text
    roomy = make(2)
    roomy.reset()
    roomy._world.qpos[:, 1] = -0.3
    roomy.step(actions(roomy, 1)[0])
    assert roomy.dropped_steps == 0


@pytest.mark.slow
def test_a_ball_is_kept_by_tilting_against_its_way_and_lost_by_tilting_with_it():
    angle = torch.arange(3) * (2 * math.pi / 3)
    legs = 0.35 * torch.stack([angle.cos(), angle.sin()])  # [2, 3]: where they stand
    returns = []
    for sign in (1, -1):
        env = make_env("BallBalance-v0", 3, adapter="warp", seed=2)
        seen, total, lost = env.reset(), torch.zeros(3), torch.zeros(3, dtype=torch.bool)
        for _ in range(90):
            slope = sign * (seen[:, 6:8] + 0.8 * seen[:, 9:11])  # up where it is and goes to
            step = env.step(((slope @ legs - seen[:, 21:]) * 20).clamp(-0.5, 0.5))
            lost |= step.terminated
            total += step.reward * ~lost
            seen = step.observation
        assert lost.all() if sign < 0 else not lost.any()
        returns.append(total)
    assert (returns[0] > 65).all()
    assert (returns[1] < 50).all()


def test_actions_that_cannot_be_are_refused():
    env = make(2)
    env.reset()
    with pytest.raises(EnvActionError, match=r"shape \[3, 6\]; must be \[2, 6\]"):
        env.step(torch.zeros(3, 6))
    with pytest.raises(EnvActionError, match="environment 1"):
        env.step(torch.tensor([[0.0] * 6, [float("inf")] * 6]))


@pytest.mark.parametrize(
    ("env_id", "options", "words"),
    [
        ("Hopper-v5", {}, ["adapter warp has Ant-v5, BallBalance-v0, Barkour-v0"]),
        ("Ant-v5", {"healty_reward": 1}, ["'healty_reward'", "healthy_reward?", "nconmax"]),
        ("Ant-v5", {"on_unstable": "raise"}, ["must be terminate", "adapter: mujoco"]),
        ("Ant-v5", {"njmax": 0}, ["njmax=0; must be at least 1"]),
        ("Ant-v5", {"solver_iterations": 0}, ["solver_iterations=0; must be at least 1"]),
        ("Ant-v5", {"render_mode": "human"}, ["rendering"]),
    ],
)
def test_faults_name_the_value_the_rule_and_the_remedy(env_id, options, words):
    (fault,) = check_env(env_id, "warp", options)
    for word in words:
        assert word in fault
    with pytest.raises(EnvSpecError):
        make_env(env_id, 1, adapter="warp", options=options)


def test_missing_packages_name_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    faults = check_env("Ant-v5", "warp")
    assert len(faults) == 3
    assert all("pip install -e '.[warp]' in the clone" in fault for fault in faults)


def test_a_model_that_mujoco_warp_has_not_is_refused(tmp_path):
    path = tmp_path / "model.xml"
    path.write_text(
        '<mujoco><option noslip_iterations="3" integrator="discrete"/><worldbody><body>'
        '<joint/><geom size=".1"/></body></worldbody></mujoco>'
    )
    with pytest.raises(EnvSpecError, match="mujoco_warp cannot simulate this model"):
        make(1, xml_file=str(path))


def test_options_are_gymnasiums_and_a_few_more():
    for kind in OPTIONS.values():
        assert {"xml_file", "frame_skip", "capture", "nconmax", "njmax"} <= set(vars(kind()))


@pytest.mark.parametrize("env_id", sorted(OPTIONS))
def test_the_torch_stages_of_a_step_can_be_captured(env_id):
    env = make(2, env_id, limit=1)
    env.reset()
    env.step(actions(env, 1)[0])  # as capturing does, too: makes the views
    with pytest.raises(AssertionError, match="_local_scalar"), DeviceOnly():
        bool(env._done.any())  # the double does refuse
    start = env._count.clone()
    with torch.no_grad(), DeviceOnly():
        env._conclude()
        env._begin()
    assert torch.equal(env._count, start + 1)
    assert env._step.truncated.all()


def launches(env, acts):
    """How many kernels of warp each step launches, and what the steps gave."""
    count, given = [], []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("launch", "launch_tiled"):
            launch = getattr(wp, name)
            patch.setattr(wp, name, lambda *a, _to=launch, **k: (count.append(1), _to(*a, **k))[1])
        for act in acts:
            given.append([t.clone() for t in env.step(act)])
    return len(count) / len(acts), given


@pytest.mark.parametrize("env_id", ["Ant-v5", "BallBalance-v0", "HalfCheetah-v5"])
def test_an_unrolled_solver_gives_the_same_and_launches_all_its_iterations(env_id):
    looping, unrolled = (make(3, env_id, solver_iterations=40) for _ in range(2))
    assert torch.equal(looping.reset(), unrolled.reset())
    acts = actions(looping, 8)
    each, expected = launches(looping, acts)
    with unrolled._warp.solver_unrolled():
        more, got = launches(unrolled, acts)
    assert all(equal(a, b) for a, b in zip(expected, got, strict=True))
    assert more > 2 * each
    assert unrolled._warp._model.opt.graph_conditional  # as it was


def test_fewer_iterations_are_fewer_launches_of_an_unrolled_solver():
    few, many = (make(2, "BallBalance-v0", solver_iterations=number) for number in (2, 12))
    counts = []
    for env in (few, many):
        env.reset()
        with env._warp.solver_unrolled():
            counts.append(launches(env, actions(env, 3))[0])
    solves = (counts[1] - counts[0]) / 10
    assert solves > 0
    assert solves == int(solves)  # so many kernels for each of the ten


@pytest.mark.parametrize("green", [False, True])
def test_on_a_green_stream_no_loop_is_captured(monkeypatch, green):
    """With a double of torch's graphs, and of warp's capture, which runs what it captures."""
    cuda = FakeCuda(monkeypatch)
    cuda.current = FakeStream(cuda, "the GMI's")
    cuda.current.cuda_stream = 0x1000
    monkeypatch.setattr(capturing, "is_green", lambda stream: green and stream == 0x1000)
    loops = []
    monkeypatch.setattr(wp, "capture_while", lambda *a, **k: loops.append(a))
    monkeypatch.setattr(wp, "ScopedCapture", lambda stream: nullcontext(SimpleNamespace(graph=1)))
    env = make(2, "BallBalance-v0", solver_iterations=3)
    stages = [
        capturing.CaptureStage("warp", env._physics),
        capturing.CaptureStage("torch", env._conclude),
    ]
    replay = capturing.CapturedStages(stages, env._warp)
    assert replay.unrolled == green
    assert bool(loops) != green
    assert len(replay._launches) == 2


@pytest.mark.gpu
def test_a_step_captured_on_a_green_stream_equals_an_eager_one():
    green = Partition(8).take(4)
    with torch.cuda.stream(torch.cuda.ExternalStream(green.stream)):
        captured, eager = (
            make_env(
                "Ant-v5", 64, adapter="warp", device="cuda", seed=3,
                options={"capture": capture, "solver_iterations": 16},
            )
            for capture in (True, False)
        )  # fmt: skip
        assert captured._replay.unrolled
        assert torch.equal(captured.reset(), eager.reset())
        for action in actions(eager, 5).cuda():
            got, expected = captured.step(action), eager.step(action)
            assert torch.allclose(got.final_observation, expected.final_observation, 0.05, 0.05)
        captured.close()
        eager.close()


@pytest.mark.gpu
@pytest.mark.parametrize("env_id", sorted(OPTIONS))
def test_a_captured_step_equals_an_eager_one(env_id):
    """To the order of sums on the device: contacts are found in any order there."""
    captured, eager = (
        make_env(
            env_id, 64, adapter="warp", device="cuda", seed=3, max_episode_steps=20,
            options={"capture": capture},
        )
        for capture in (True, False)
    )  # fmt: skip
    assert (captured.captured, eager.captured) == (True, False)
    assert torch.equal(captured.reset(), eager.reset())
    for action in actions(eager, 5).cuda():
        got, expected = captured.step(action), eager.step(action)
        assert torch.allclose(got.final_observation, expected.final_observation, 0.05, 0.05)
        assert torch.allclose(got.reward, expected.reward, atol=1e-2)
    for action in actions(eager, 20).cuda():
        got, expected = captured.step(action), eager.step(action)
        assert torch.equal(got.truncated, expected.truncated)
    assert captured.unstable_steps == captured.dropped_steps == 0
    captured.close()
    eager.close()
