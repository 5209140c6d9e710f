"""mujoco_warp environments against MuJoCo's in C, on warp's CPU device: float32 against float64.

Differences are of |a - b| / (1 + |b|). The models are those of adapter mujoco, but for what
mujoco_warp does otherwise by design (docs/gpu-simulation.md): Humanoid's solver is Newton's in
both, Ant's friction cones are round, as mujoco_warp turns the pyramids of a steep capsule, and the
Shadow hand's palm is of balls, as two boxes touch in other points there.
"""

from pathlib import Path

import gymnasium
import pytest
import torch

import warp_cache  # noqa: F401
from gmi_drl.roles.envs import make_env
from gmi_drl.roles.envs.adapters import ROBOT_IDS
from gmi_drl.roles.envs.mujoco.tasks import TASKS
from gmi_drl.roles.envs.mujoco.vec import MujocoVecEnv
from gmi_drl.roles.envs.on_device.ball_balance import BallBalanceTask
from gmi_drl.roles.envs.protocol import VecEnvSpec

N = 4
LIMIT = 8  # steps of an episode
# A few times the largest differences seen: of observations, of rewards.
STEP = {
    "Ant-v5": (1e-3, 2e-5),
    "HalfCheetah-v5": (1e-3, 2e-5),
    "Humanoid-v5": (4e-3, 2e-5),
    "BallBalance-v0": (1e-3, 2e-5),
    "Barkour-v0": (2e-5, 1e-6),
    "FrankaCabinet-v0": (3e-4, 1e-6),
    "ShadowHand-v0": (1e-3, 1e-4),
}
RUN = {
    "Ant-v5": 5e-4,
    "HalfCheetah-v5": 5e-3,
    "Humanoid-v5": 5e-4,
    "BallBalance-v0": 5e-3,
    "Barkour-v0": 5e-5,
    "FrankaCabinet-v0": 2e-6,
    "ShadowHand-v0": 5e-3,
}  # in 8 steps of its own
# The first kernels of a fresh cache take some 25 s to compile.
pytestmark = pytest.mark.timeout(300)


def hand_without_boxes(folder):
    original = Path(TASKS["ShadowHand-v0"].Options().xml_file)
    text = original.read_text().replace('type="box"', 'type="sphere"')
    path = folder / "hand.xml"
    path.write_text(text.replace('meshdir="assets"', f'meshdir="{original.parent / "assets"}"'))
    return path


def difference(ours, theirs):
    return float(((ours.double() - theirs).abs() / (1 + theirs.abs())).max())


@pytest.fixture(scope="module", params=sorted(STEP))
def pair(request, tmp_path_factory):
    """The same model for both adapters: (ours, theirs)."""
    how = {"options": {}, "max_episode_steps": LIMIT, "seed": 5}
    if request.param == "BallBalance-v0":  # a task that adapter mujoco has not by itself
        spec = VecEnvSpec(env_id=request.param, num_env=N, dtype=torch.float64, **how)
        theirs = MujocoVecEnv(spec, BallBalanceTask)
        yield make_env(request.param, N, adapter="warp", **how), theirs
        theirs.close()
        return
    if request.param in ROBOT_IDS:
        if request.param == "ShadowHand-v0":
            how["options"] = {"xml_file": str(hand_without_boxes(tmp_path_factory.mktemp("hand")))}
        ours = make_env(request.param, N, adapter="warp", **how)
        theirs = make_env(request.param, N, adapter="mujoco", dtype=torch.float64, **how)
        yield ours, theirs
        ours.close()
        theirs.close()
        return
    assets = Path(gymnasium.__file__).parent / "envs/mujoco/assets"
    name = {"Ant-v5": "ant.xml", "HalfCheetah-v5": "half_cheetah.xml"}
    text = (assets / name.get(request.param, "humanoid.xml")).read_text()
    text = text.replace('solver="PGS"', 'solver="Newton"')
    if request.param == "Ant-v5":
        text = text.replace('integrator="RK4"', 'integrator="RK4" cone="elliptic"')
    path = tmp_path_factory.mktemp("model") / "model.xml"
    path.write_text(text)
    how["options"] = {"xml_file": str(path)}
    ours = make_env(request.param, N, adapter="warp", **how)
    theirs = make_env(request.param, N, adapter="mujoco", dtype=torch.float64, **how)
    yield ours, theirs
    ours.close()
    theirs.close()


def start_together(ours, theirs):
    """Both reset, theirs from our first states; both first observations."""
    observation = ours.reset(seed=5).clone()
    states = iter(zip(ours._world.qpos.numpy(), ours._world.qvel.numpy(), strict=True))
    original = theirs._task.first_state
    theirs._task.first_state = lambda rng: next(states)
    memories = iter(ours._memory.numpy())
    draw, theirs._task.sample_memory = theirs._task.sample_memory, lambda rng: next(memories)
    expected = theirs.reset()
    theirs._task.first_state, theirs._task.sample_memory = original, draw
    return observation, expected


def put_back(ours, theirs):
    """Their states into our worlds."""
    for i, data in enumerate(theirs._datas):
        for name in ("qpos", "qvel", "qacc_warmstart", "act"):
            getattr(ours._world, name)[i] = torch.from_numpy(getattr(data, name))
    ours._memory.copy_(torch.from_numpy(theirs._memory))
    ours._before.copy_(torch.from_numpy(theirs._before))


def actions(env, steps):
    generator = torch.Generator().manual_seed(1)
    high = torch.from_numpy(env.action_space.high)
    return (torch.rand(steps, N, len(high), generator=generator) * 2 - 1) * high


@pytest.mark.slow
def test_every_step_from_their_state_equals_theirs(pair):
    ours, theirs = pair
    for_observation, for_reward = STEP[ours.env_id]
    assert difference(*start_together(ours, theirs)) < 1e-5  # what mj_forward derives, too
    ended = 0
    for action in actions(ours, 2 * LIMIT):
        put_back(ours, theirs)
        step, expected = ours.step(action), theirs.step(action)
        assert difference(step.final_observation, expected.final_observation) < for_observation
        assert difference(step.reward, expected.reward) < for_reward
        assert torch.equal(step.terminated, expected.terminated)
        assert torch.equal(step.truncated, expected.truncated)
        ended += int((step.terminated | step.truncated).sum())
    assert ended >= 2 * N
    assert ours.dropped_steps == ours.unstable_steps == 0


@pytest.mark.slow
def test_a_short_run_of_its_own_stays_near_theirs(pair):
    ours, theirs = pair
    start_together(ours, theirs)
    for action in actions(ours, 8):
        step, expected = ours.step(action), theirs.step(action)
        assert not expected.terminated.any()
        seen, wanted = step.final_observation, expected.final_observation
        assert difference(seen, wanted) < RUN[ours.env_id]
