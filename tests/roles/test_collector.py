"""The way of a GPU through a horizon, on the CPU: the same experience, nothing waits, replays.

What both ways store is tested in test_rollout.py.
"""

import copy

import pytest
import torch

import warp_cache  # noqa: F401
from batches import collector_of
from device_only import DeviceOnly, RecordedPool, nothing_waits, on_the_host
from gmi_drl.placement import PPOConfig
from gmi_drl.roles.envs import make_env
from gmi_drl.roles.envs.protocol import Step
from gmi_drl.roles.errors import CaptureError, NotFiniteError
from gmi_drl.roles.policies.actor_critic import ActorCritic, distribution_for, observation_width
from gmi_drl.roles.policies.normalize import Normalizers, RunningNormalizer, batch_moments
from gmi_drl.roles.samples.episodes import EpisodeStats
from gmi_drl.roles.seeds import draw_on
from toy_env import ToyEnv


class OnTheHost:
    """Environments whose own step is not looked at. `in_place`: as a captured step gives it."""

    def __init__(self, env, in_place=False):
        self._env, self._step = env, None
        self._in_place = in_place

    def __getattr__(self, name):
        return getattr(self._env, name)

    def step(self, action):
        with on_the_host():
            step = self._env.step(action)
            if not self._in_place:
                return step
            if self._step is None:
                self._step = Step(*(part.clone() for part in step))
            for mine, given in zip(self._step, step, strict=True):
                mine.copy_(given)
            return self._step


def torch_env(env_id="CartPole-v1", limit=4):
    """Steps as on a GPU."""
    env = make_env(env_id, 4, adapter="torch", seed=2, max_episode_steps=limit)
    env._on_host = False
    return env


def warp_env():
    return OnTheHost(make_env("BallBalance-v0", 4, adapter="warp", seed=1, max_episode_steps=4))


ENVS = {
    "toy": lambda: OnTheHost(ToyEnv(3, 4)),
    "in place": lambda: OnTheHost(ToyEnv(3, 4), in_place=True),
    "ends": lambda: OnTheHost(ToyEnv(3, 4, terminates=True)),
    "discrete": torch_env,
    "bounded": lambda: torch_env("Pendulum-v1"),
    "warp": warp_env,
}


def collector(env, device="cpu", **changes):
    """With normalisers that have seen something, so that they do something."""
    width, generator = observation_width(env.observation_space), torch.Generator().manual_seed(0)
    policy = ActorCritic(width, distribution_for(env.action_space), [8], generator=generator)
    seen, value = (RunningNormalizer(n, clip=10.0, device=device) for n in (width, 1))
    for one in (seen, value):
        some = torch.randn(50, one.width, generator=generator) * 3 + 1
        one.update(batch_moments(some, torch.zeros(1 + 2 * one.width, dtype=torch.float64)))
    how = {
        "horizon": 5, "reward_scale": 0.3, "generator": torch.Generator(device).manual_seed(0),
    } | changes  # fmt: skip
    policy = policy.to(device)
    return collector_of(env, policy, PPOConfig(), Normalizers(seen, value), **how)


def horizons(c, number=4, check=True):
    """Everything that this many horizons gave, and the episodes that ended in each."""
    found, episodes = [], []
    for iteration in range(number):
        if check:
            with DeviceOnly():
                c.collect(iteration)
        else:
            c.collect(iteration)
        b = c.batch
        columns = (b[name] for name in ("raw_observation", "reward", "done"))
        parts = (b.rows, *columns, b.bootstrap["value"], c.observation)
        found.append([part.cpu().clone() for part in parts])
        (simulate_s, infer_s), seen = c.read()
        assert simulate_s >= 0 <= infer_s
        episodes.append(seen)
    return found, episodes


def assert_alike(one, other, **tolerance):
    (found, episodes), (expected, ended) = one, other
    assert sum(seen.episodes for seen in ended) > 0
    for mine, theirs in zip(episodes, ended, strict=True):
        assert mine == pytest.approx(theirs)
    for mine, theirs in zip(found, expected, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, **tolerance)


@pytest.mark.timeout(300)  # a fresh cache of warp compiles kernels first
@pytest.mark.parametrize("how", ENVS)
def test_a_gpus_way_does_not_wait_and_gives_what_the_hosts_gives(how):
    """To the order of sums in a matrix product: the host evaluates only states that were cut."""
    pool = RecordedPool()
    expected = horizons(collector(ENVS[how](), static=False), check=False)
    assert_alike(horizons(collector(ENVS[how](), static=True)), expected)
    captured = collector(ENVS[how](), static=True, pool=pool)
    assert_alike(horizons(captured, 1), (expected[0][:1], expected[1][:1]))
    assert_alike(horizons(captured, 1, check=False), (expected[0][1:2], expected[1][1:2]))
    captured._between = None  # from here on replays do it all
    assert_alike(horizons(captured, 2), (expected[0][2:], expected[1][2:]))
    steps = [graph.replays for graph in pool.graphs if graph.replays > 3]
    assert len(pool.graphs) - len(steps) == 6  # before and after 5 steps; else the environments'
    captured.close()


def test_captured_work_reads_a_policy_and_normalizers_that_learn():
    def run(**how):
        c = collector(OnTheHost(ToyEnv(3, 4)), **how)
        horizons(c, 2, check=False)
        c._policy.network.head.weight.data.mul_(1.7)
        c._normalizer.mean.add_(0.4)
        return horizons(c, 2, check=False)

    assert_alike(run(static=True, pool=RecordedPool()), run(static=False))


def test_a_collector_that_was_captured_goes_on_from_what_was_saved():
    first, second = (collector(torch_env(), static=True, pool=RecordedPool()) for _ in range(2))
    horizons(first, 3, check=False)
    horizons(second, 2, check=False)
    saved = copy.deepcopy(first.state_dict())
    assert second.load_state_dict(saved)
    assert_alike(horizons(second, 2), horizons(first, 2))


def test_numbers_are_drawn_anew_where_a_checkpoint_is_of_another_kind_of_device():
    generator = torch.Generator().manual_seed(5)
    saved, drawn = generator.get_state(), torch.rand(3, generator=generator)
    draw_on(generator, torch.zeros(16, dtype=torch.uint8))  # as that of a GPU is
    assert not torch.equal(torch.rand(3, generator=generator), drawn)
    draw_on(generator, saved)
    assert torch.equal(torch.rand(3, generator=generator), drawn)


def test_steps_that_move_after_all_are_captured_anew():
    env = OnTheHost(ToyEnv(3, 4), in_place=True)
    pool = RecordedPool()
    c = collector(env, static=True, pool=pool)
    found = horizons(c, 2, check=False)
    env._in_place = False
    more = horizons(c, 3, check=False)
    together = (found[0] + more[0], found[1] + more[1])
    assert_alike(together, horizons(collector(ToyEnv(3, 4), static=False), 5, check=False))
    assert len(pool.graphs) > 6


def test_a_step_that_cannot_be_captured_is_named():
    c = collector(OnTheHost(ToyEnv(3, 4)), static=True, pool=RecordedPool(refuses=2))
    with pytest.raises(CaptureError, match="the work before step 2 cannot be captured"):
        horizons(c, check=False)


@pytest.mark.parametrize("static", [False, True])
def test_episodes_of_a_horizon_that_was_given_up_are_not_counted(static):
    c = collector(OnTheHost(ToyEnv(3, 4)), static=static)
    c.collect(0)
    (_, episodes) = horizons(c, 1, check=False)
    other = collector(OnTheHost(ToyEnv(3, 4)), static=static)
    assert horizons(other, 2, check=False)[1][1] == episodes[0]
    assert episodes[0].episodes > 0


@pytest.mark.parametrize(
    ("nan_in", "nan_at", "what"),
    [
        ("reward", (3, 1), "reward"),
        ("observation", (4, 1), "observation"),
        ("final", (3, 1), "final observation"),
    ],
)
def test_nan_is_named_when_it_is_read(nan_in, nan_at, what):
    c = collector(OnTheHost(ToyEnv(3, 4, nan_at=nan_at, nan_in=nan_in)), static=True)
    with DeviceOnly():
        c.collect(8)
    with pytest.raises(NotFiniteError) as error:
        c.read()
    found = error.value
    assert (found.what, found.env_index, found.step, found.iteration) == (what, 1, nan_at[0], 8)


def test_episodes_are_summed_alike_on_both_ways():
    generator = torch.Generator().manual_seed(3)
    host, masked = EpisodeStats(5), EpisodeStats(5)
    for _ in range(40):
        reward = torch.randn(5, generator=generator)
        done = torch.rand(5, generator=generator) < 0.2
        assert host.add(reward, done) == bool(done.any())
        masked.add_masked(reward, done)
    one, other = host.take(), masked.take()
    assert (one.episodes, one.length_sum) == (other.episodes, other.length_sum)
    assert one.return_sum == pytest.approx(other.return_sum, abs=1e-9)
    assert torch.equal(host.state_dict()["return"], masked.state_dict()["return"])
    assert host.take() == masked.take()


@pytest.mark.gpu
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "BallBalance-v0"])
def test_a_captured_horizon_equals_an_eager_one_on_a_gpu(env_id):
    from gmi_drl.roles.graphs import Pool

    device = torch.device("cuda", torch.cuda.current_device())
    found = []
    for pool in (None, Pool(device)):
        limits = {"seed": 2, "max_episode_steps": 4}
        env = make_env(env_id, 64, adapter="torch", device=device, **limits)
        c = collector(env, device, pool=pool)
        found.append(horizons(c, check=False))
        assert len(c._graphs) == (0 if pool is None else 6)
        c.close()
        env.close()
    assert_alike(*found, atol=1e-5, rtol=1e-4)


@pytest.mark.gpu
def test_a_horizon_on_a_gpu_waits_for_nothing():
    device = torch.device("cuda", torch.cuda.current_device())
    c = collector(make_env("CartPole-v1", 64, adapter="torch", device=device), device)
    c.collect(0)
    c.read()
    with nothing_waits():
        c.collect(1)
    c.read()
