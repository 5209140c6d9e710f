"""Bodies of the tests of adapter mjx. Each runs in a process of its own: JAX has threads, and the
tests' process forks."""

import io
import os
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path

import gymnasium
import pytest
import torch

from ends import Ends
from gmi_drl.roles.envs import EnvSpecError, make_env
from gmi_drl.roles.envs.errors import EnvStateError
from gmi_drl.roles.envs.mujoco.vec import MujocoVecEnv
from gmi_drl.roles.envs.on_device.ball_balance import BallBalanceTask
from gmi_drl.roles.envs.protocol import VecEnvSpec

# The quickest model to compile that has constraints: a cart between two stops, with a pole.
CART = """
<mujoco>
  <worldbody>
    <body>
      <joint name="x" type="slide" axis="1 0 0" range="-.1 .1" limited="true"/>
      <geom size=".1" mass="1"/>
      <body>
        <joint type="hinge" axis="0 1 0" damping=".1"/>
        <geom type="capsule" fromto="0 0 0 0 0 -.5" size=".03"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor joint="x" ctrlrange="-1 1" gear="50"/></actuator>
</mujoco>
"""
N = 3
# These tests compile much and take few steps: quick to compile by XLA, and slower to run.
QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


def apart(body, *args, within_s=280):
    """Runs `body` in a process of its own, where warnings are errors."""
    with Ends() as ends:
        ends.start("mjx", _strictly, body, args)
        ends.join("mjx", within_s)


def _strictly(body, args):
    warnings.simplefilter("error")
    if body is not on_a_gpu:
        os.environ["XLA_FLAGS"] = QUICK
    body(*args)


def cart(folder, adapter="mjx", num_env=N, limit=4, **how):
    path = Path(folder, "cart.xml")
    path.write_text(CART)
    options = {"xml_file": str(path), "frame_skip": 2, **how.pop("options", {})}
    return make_env(
        "HalfCheetah-v5", num_env, adapter=adapter, options=options, max_episode_steps=limit, **how
    )


def actions(env, steps):
    generator = torch.Generator().manual_seed(1)
    high = torch.from_numpy(env.action_space.high)
    return (torch.rand(steps, env.num_env, len(high), generator=generator) * 2 - 1) * high


def roll(env, acts):
    steps = [[t.clone() for t in env.step(a)] for a in acts]
    return [torch.stack(column) for column in zip(*steps, strict=True)]


def equal(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def difference(ours, theirs):
    return float(((ours.double() - theirs).abs() / (1 + theirs.abs())).max())


def compare(ours, theirs, steps):
    """The largest differences of observations and of rewards, each step from C's state; and how
    many episodes ended, of which both must say the same."""
    start = ours.reset(seed=5).clone()
    states = iter(zip(ours._world.qpos.numpy(), ours._world.qvel.numpy(), strict=True))
    original = theirs._task.first_state
    theirs._task.first_state = lambda rng: next(states)
    assert difference(start, theirs.reset()) < 1e-5  # what mj_forward derives, too
    theirs._task.first_state = original
    observation, reward, ended = 0.0, 0.0, 0
    for action in actions(ours, steps):
        for i, data in enumerate(theirs._datas):
            for name in ("qpos", "qvel", "qacc_warmstart", "act"):
                getattr(ours._world, name)[i] = torch.from_numpy(getattr(data, name))
        ours._before.copy_(torch.from_numpy(theirs._before))
        step, expected = ours.step(action), theirs.step(action)
        observation = max(
            observation, difference(step.final_observation, expected.final_observation)
        )
        reward = max(reward, difference(step.reward, expected.reward))
        assert torch.equal(step.terminated, expected.terminated)
        assert torch.equal(step.truncated, expected.truncated)
        ended += int((step.terminated | step.truncated).sum())
    assert ours.unstable_steps == ours.dropped_steps == 0
    return observation, reward, ended


def a_cart(folder):
    """Everything of a batch that one compiled step can show."""
    env, entered = cart(folder), []
    assert env._world._compute._cache_size() == 0  # not for a batch that is asked for its spaces

    @contextmanager
    def compiling():
        entered.append(env._world._compute._cache_size())
        yield
        entered.append(env._world._compute._cache_size())

    env.compiling = compiling
    theirs = cart(folder, "mujoco", dtype=torch.float64)
    observation, reward, ended = compare(env, theirs, 24)
    assert observation < 1e-4, observation
    assert reward < 1e-4, reward
    assert ended == 6 * N
    assert entered == [0, env._world._compute._cache_size()]  # all of it, and once
    theirs.close()

    acts = actions(env, 7)
    start = env.reset(seed=7).clone()
    buffers = [t.data_ptr() for t in env.step(acts[0])]
    first = roll(env, acts[1:])
    assert [t.data_ptr() for t in env.step(acts[0])] == buffers
    assert torch.equal(env.reset(seed=7), start)
    env.step(acts[0])
    state = env.state_dict()
    assert equal(roll(env, acts[1:]), first)
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    env.reset(seed=99)
    env.load_state_dict(torch.load(file, weights_only=True))
    assert equal(roll(env, acts[1:]), first)  # bit for bit
    with pytest.raises(EnvStateError, match="adapter mjx"):
        env.load_state_dict(make_env("HalfCheetah-v5", 1).state_dict())
    assert torch.equal(env.reset(seed=8)[:-1], start[1:])  # streams of seed + i
    assert len({tuple(row.tolist()) for row in start}) == N

    before = env.reset().clone()
    env._world.qvel[1, 0] = float("nan")
    step = env.step(acts[0])
    assert step.terminated.tolist() == [False, True, False]
    assert float(step.reward[1]) == 0
    assert torch.equal(step.final_observation[1], before[1])
    assert torch.isfinite(step.observation).all()
    assert env.unstable_steps == 1
    assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert "JAX_PLATFORMS" not in os.environ
    assert sys.modules["jax"].config.jax_platforms == "cpu"


def refusals(folder):
    with pytest.raises(EnvSpecError, match=r"MJX cannot simulate this model: .*IMPLICIT"):
        cart(folder, options={"integrator": "implicit"})
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "true"  # the user's word
    with pytest.raises(
        EnvSpecError, match=r"mjx on cuda:0: JAX does not .* pip install 'jax\[cuda"
    ):
        cart(folder, device="cuda:0")
    assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "true"


def on_a_gpu(folder):
    """The same as on the CPU, behind torch's launches and before its next ones."""
    ours, theirs = (cart(folder, num_env=64, limit=9, device=d) for d in ("cuda", "cpu"))
    assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert torch.allclose(ours.reset().cpu(), theirs.reset(), atol=1e-5)
    seen = []
    for action in actions(theirs, 20):
        seen.append([t.clone() for t in ours.step(action.cuda())])
    for got, action in zip(seen, actions(theirs, 20), strict=True):
        expected = theirs.step(action)
        assert torch.equal(got[3].cpu(), expected.truncated)
        assert torch.allclose(got[4].cpu(), expected.final_observation, atol=0.05)
    assert ours.unstable_steps == 0


def parity(env_id, folder, for_observation, for_reward):
    """The models are Gymnasium's, but for what MJX does otherwise by design: Humanoid's solver is
    Newton's and Ant's friction cones are round, in both. Theirs integrate by RK4, which compiles
    four times as long: Euler's here."""
    how = {"options": {}, "max_episode_steps": 8, "seed": 5}
    if env_id == "BallBalance-v0":  # a task that adapter mujoco has not by itself
        spec = VecEnvSpec(env_id=env_id, num_env=N, dtype=torch.float64, **how)
        theirs = MujocoVecEnv(spec, BallBalanceTask)
    else:
        assets = Path(gymnasium.__file__).parent / "envs/mujoco/assets"
        name = {"Ant-v5": "ant.xml", "HalfCheetah-v5": "half_cheetah.xml"}
        text = (assets / name.get(env_id, "humanoid.xml")).read_text()
        text = text.replace('solver="PGS"', 'solver="Newton"').replace(' integrator="RK4"', "")
        if env_id == "Ant-v5":
            text = text.replace("<option ", '<option cone="elliptic" ')
        path = Path(folder, "model.xml")
        path.write_text(text)
        how["options"] = {"xml_file": str(path)}
        theirs = make_env(env_id, N, adapter="mujoco", dtype=torch.float64, **how)
    ours = make_env(env_id, N, adapter="mjx", **how)
    observation, reward, ended = compare(ours, theirs, 16)
    print(env_id, observation, reward)
    assert observation < for_observation, observation
    assert reward < for_reward, reward
    assert ended >= 2 * N
    theirs.close()
