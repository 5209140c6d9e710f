"""Environments in torch: equal to Gymnasium's, exact to save, and the ball obeys mechanics."""

import io
import math

import gymnasium
import numpy as np
import pytest
import torch

from device_only import RecordedPool
from gmi_drl.roles.envs import EnvActionError, EnvSpecError, make_env
from gmi_drl.roles.envs.counter_rng import stream_keys, uniform
from gmi_drl.roles.envs.errors import EnvStateError
from gmi_drl.roles.envs.torch_envs import ball_balance
from gmi_drl.roles.envs.torch_envs.options import MAX_EPISODE_STEPS

IDS = sorted(MAX_EPISODE_STEPS)


def actions(env, steps):
    generator = torch.Generator().manual_seed(0)
    if isinstance(env.action_space, gymnasium.spaces.Discrete):
        return torch.randint(0, 2, (steps, env.num_env), generator=generator)
    shape = (steps, env.num_env, *env.action_space.shape)
    return (torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1) * 3


def states(env):
    return env.state_dict()["state"].numpy()


@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        ("CartPole-v1", {}),
        ("CartPole-v1", {"sutton_barto_reward": True}),
        ("Pendulum-v1", {}),
        ("Pendulum-v1", {"g": 9.81}),
    ],
)
def test_equals_gymnasium_for_1000_steps_through_resets(env_id, options):
    ours = make_env(env_id, 4, options=options, seed=1, dtype=torch.float64)
    refs = [gymnasium.make(env_id, **options) for _ in range(4)]
    ours.reset()
    for ref, state in zip(refs, states(ours), strict=True):
        ref.reset()
        ref.unwrapped.state = state.copy()
    ended = 0
    for action in actions(ours, 1000):
        step = ours.step(action)
        for i, ref in enumerate(refs):
            observation, reward, terminated, truncated, _ = ref.step(action[i].numpy())
            np.testing.assert_allclose(step.final_observation[i], observation, atol=1e-6)
            assert step.reward[i].item() == pytest.approx(reward, abs=1e-12)
            assert (terminated, truncated) == (step.terminated[i].item(), step.truncated[i].item())
            if terminated or truncated:
                ended += 1
                ref.reset()
                ref.unwrapped.state = states(ours)[i].copy()
            else:
                np.testing.assert_allclose(states(ours)[i], ref.unwrapped.state, atol=1e-10)
    assert ended >= 20


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_spaces_and_time_limit_are_gymnasiums(env_id):
    ours, ref = make_env(env_id, 1), gymnasium.make(env_id)
    assert ours.observation_space == ref.observation_space
    assert ours.action_space == ref.action_space
    assert ours.max_episode_steps == gymnasium.spec(env_id).max_episode_steps


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_first_states_have_gymnasiums_range_and_fill_it(env_id):
    first = make_env(env_id, 20000)
    first.reset()
    high = torch.tensor([0.05] * 4 if env_id == "CartPole-v1" else [math.pi, 1.0])
    share = first.state_dict()["state"] / high
    assert share.abs().max() <= 1
    assert (share.mean(0).abs() < 0.03).all()
    assert ((share.std(0) - 1 / math.sqrt(3)).abs() < 0.01).all()


@pytest.mark.parametrize("env_id", IDS)
def test_saved_state_goes_on_bit_for_bit_through_resets(env_id):
    first = make_env(env_id, 3, seed=1, max_episode_steps=15)
    acts = actions(first, 60)
    first.reset()
    for action in acts[:20]:
        first.step(action)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = make_env(env_id, 3, seed=7, max_episode_steps=15)
    second.load_state_dict(torch.load(file, weights_only=True))
    for action in acts[20:]:
        for mine, theirs in zip(second.step(action), first.step(action), strict=True):
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize("env_id", IDS)
def test_the_step_of_other_devices_gives_what_the_hosts_gives(env_id):
    host, other = (make_env(env_id, 4, seed=3, max_episode_steps=7) for _ in range(2))
    other._on_host = False
    assert torch.equal(host.reset(), other.reset())
    for action in actions(host, 40):
        for one, two in zip(host.step(action), other.step(action), strict=True):
            assert torch.equal(one, two)
    assert all(
        torch.equal(a, b)
        for a, b in zip(host.state_dict().values(), other.state_dict().values(), strict=True)
        if isinstance(a, torch.Tensor)
    )


@pytest.mark.parametrize("env_id", IDS)
def test_two_batches_of_half_the_size_are_one_batch(env_id):
    whole = make_env(env_id, 4, seed=10, max_episode_steps=15)
    halves = [make_env(env_id, 2, seed=s, max_episode_steps=15) for s in (10, 12)]
    assert torch.equal(whole.reset(), torch.cat([h.reset() for h in halves]))
    for action in actions(whole, 40):
        parts = [h.step(a) for h, a in zip(halves, action.split(2), strict=True)]
        for one, two in zip(whole.step(action), zip(*parts, strict=True), strict=True):
            assert torch.equal(one, torch.cat(two))


@pytest.mark.parametrize("env_id", IDS)
def test_time_limit_truncates_and_keeps_the_final_observation(env_id):
    env = make_env(env_id, 2, max_episode_steps=4)
    env.reset()
    steps = [env.step(action) for action in actions(env, 5)]
    assert [bool(s.truncated.all()) for s in steps] == [False, False, False, True, False]
    assert not any(s.terminated.any() for s in steps)
    assert not torch.equal(steps[3].observation, steps[3].final_observation)
    assert torch.equal(steps[2].observation, steps[2].final_observation)


@pytest.mark.parametrize("env_id", IDS)
def test_reset_with_a_seed_repeats_and_without_goes_on(env_id):
    env = make_env(env_id, 2, seed=5)
    first, second = env.reset().clone(), env.reset().clone()
    assert not torch.equal(first, second)
    assert torch.equal(env.reset(seed=5), first)
    assert torch.equal(env.reset(), second)


def test_draws_are_uniform_and_streams_apart():
    key, count = stream_keys(0, 1000, torch.device("cpu")), torch.arange(1000)
    draws = uniform(key, count, 100, torch.float64)
    assert draws.min() >= 0
    assert draws.max() < 1
    assert len(draws.unique()) == draws.numel()
    share = torch.histc(draws, 20, 0, 1) / draws.numel()
    assert (share - 0.05).abs().max() < 0.003
    correlation = torch.corrcoef(draws[:50])
    assert (correlation - torch.eye(50)).abs().max() < 0.5


def test_saved_state_of_others_is_refused():
    one, two = make_env("CartPole-v1", 1), make_env("CartPole-v1", 2)
    with pytest.raises(EnvStateError, match="1 x CartPole-v1, these are 2 x"):
        two.load_state_dict(one.state_dict())


def test_bad_actions_are_refused():
    cart, ball = make_env("CartPole-v1", 2), make_env("BallBalance-v0", 2)
    with pytest.raises(EnvActionError, match=r"\[0, 2\]; must be whole numbers from 0 to 1"):
        cart.step(torch.tensor([0, 2]))
    with pytest.raises(EnvActionError, match=r"shape \[2, 2\]; must be \[2, 3\]"):
        ball.step(torch.zeros(2, 2))
    with pytest.raises(EnvActionError, match="environment 1"):
        ball.step(torch.tensor([[0, 0, 0], [0, float("inf"), 0]]))


def test_unknown_option_names_the_known():
    with pytest.raises(EnvSpecError, match=r"'gravity'.* Known: g\."):
        make_env("Pendulum-v1", 1, options={"gravity": 3})


# ---- the ball on its table ----


def ball_env(**options):
    env = make_env("BallBalance-v0", 1, options=options, dtype=torch.float64)
    env.reset()
    return env


def put(env, *, legs=(0, 0, 0), ball=(0, 0), speed=(0, 0)):
    """At rest, legs where their targets are."""
    state = env.state_dict()
    values = [*legs, 0, 0, 0, *legs, *ball, *speed]
    state["state"] = torch.tensor([values], dtype=torch.float64)
    env.load_state_dict(state)
    return env.observe(state["state"])[0]


def test_ball_rolls_down_as_a_rolling_sphere_does():
    env = ball_env()
    legs = (0.05, -0.025, -0.025)  # up towards +x: slope 0.05 / 0.35
    observation = put(env, legs=legs)
    slope = 0.05 / ball_balance.LEG_RADIUS
    assert observation[15].item() == pytest.approx(slope)
    assert observation[16].item() == pytest.approx(0, abs=1e-12)
    after = env.step(torch.zeros(1, 3, dtype=torch.float64)).observation[0]
    expected = -5 / 7 * 9.81 * slope / (1 + slope**2) * ball_balance.TIME_STEP_S
    assert after[9].item() == pytest.approx(expected, rel=2e-3)  # but for the rolling friction
    assert after[10].item() == pytest.approx(0, abs=1e-12)


def test_legs_carry_the_ball_and_the_nearest_the_most():
    env = ball_env()
    weight = ball_balance.BALL_MASS * ball_balance.GRAVITY
    centred = put(env)[12:15]
    torch.testing.assert_close(centred, torch.full((3,), weight / 3, dtype=torch.float64))
    over_leg = put(env, ball=(ball_balance.LEG_RADIUS, 0))[12:15]
    expected = torch.tensor([weight, 0, 0], dtype=torch.float64)
    torch.testing.assert_close(over_leg, expected, atol=1e-9, rtol=0)


def test_three_legs_turned_by_a_third_turn_the_motion():
    env = ball_env()
    third = 2 * math.pi / 3
    ends = []
    for k in range(3):
        legs = np.roll([0.06, 0.01, -0.03], k)
        put(env, legs=tuple(legs), ball=(0.1 * math.cos(k * third), 0.1 * math.sin(k * third)))
        after = env.step(torch.zeros(1, 3, dtype=torch.float64)).observation[0]
        x, y = after[9].item(), after[10].item()
        c, s = math.cos(-k * third), math.sin(-k * third)
        ends.append((c * x - s * y, s * x + c * y))
    np.testing.assert_allclose(ends, [ends[0]] * 3, atol=1e-12)


def test_reward_is_best_at_rest_in_the_middle_and_falling_off_ends():
    env = ball_env()
    put(env)
    still = env.step(torch.zeros(1, 3, dtype=torch.float64))
    assert still.reward.item() == 1
    put(env, ball=(0.499, 0), speed=(1.0, 0))
    off = env.step(torch.zeros(1, 3, dtype=torch.float64))
    assert off.terminated.item()
    assert off.reward.item() < 0.4
    assert off.final_observation[0, 6] > ball_balance.TABLE_RADIUS


def test_legs_stay_within_their_stroke_and_reach_their_target():
    env = ball_env(stroke_m=0.05)
    for _ in range(100):
        put_back = env.state_dict()
        put_back["state"][0, 9:] = 0  # hold the ball in the middle
        env.load_state_dict(put_back)
        step = env.step(torch.ones(1, 3, dtype=torch.float64))
    torch.testing.assert_close(
        step.observation[0, :3], torch.full((3,), 0.05, dtype=torch.float64), rtol=1e-3, atol=0
    )


def test_a_simple_controller_keeps_the_ball_that_no_control_loses():
    angles = torch.tensor([2 * math.pi * k / 3 for k in range(3)])
    fallen = {}
    for controlled in (True, False):
        env = make_env("BallBalance-v0", 64)
        seen = env.reset()
        fallen[controlled] = 0
        for _ in range(300):
            lean = 0.6 * seen[:, 6:8] + 0.5 * seen[:, 9:11]
            want = 0.35 * (lean[:, :1] * torch.cos(angles) + lean[:, 1:] * torch.sin(angles))
            step = env.step((want - seen[:, 21:]) * 50 * controlled)
            seen = step.observation
            fallen[controlled] += int(step.terminated.sum())
    assert fallen[True] == 0
    assert fallen[False] > 30


@pytest.mark.gpu
@pytest.mark.parametrize("env_id", IDS)
def test_gpu_draws_the_same_episodes(env_id):
    on = {d: make_env(env_id, 8, device=d, max_episode_steps=20) for d in ("cpu", "cuda")}
    firsts = {d: env.reset() for d, env in on.items()}
    torch.testing.assert_close(firsts["cuda"].cpu(), firsts["cpu"])
    for action in actions(on["cpu"], 30):
        steps = {d: env.step(action.to(d)) for d, env in on.items()}
        assert steps["cuda"].observation.device.type == "cuda"
        assert torch.equal(steps["cuda"].truncated.cpu(), steps["cpu"].truncated)


@pytest.mark.parametrize("env_id", IDS)
def test_a_captured_step_gives_what_the_hosts_gives(env_id):
    host, other = (make_env(env_id, 4, seed=3, max_episode_steps=7) for _ in range(2))
    other._on_host = False
    assert torch.equal(host.reset(), other.reset())
    pool = RecordedPool()
    other.capture(pool)
    acts = actions(host, 30)
    for action in acts[:15]:
        for one, two in zip(host.step(action), other.step(action), strict=True):
            assert torch.equal(one, two)
    assert pool.graphs[0].replays == 15
    other.load_state_dict(host.state_dict())
    for action in acts[15:]:
        for one, two in zip(host.step(action), other.step(action), strict=True):
            assert torch.equal(one, two)
    assert other.step(acts[0]) is other.step(acts[1])
    other.close()


@pytest.mark.gpu
@pytest.mark.parametrize("env_id", IDS)
def test_a_captured_step_equals_an_eager_one_on_a_gpu(env_id):
    from gmi_drl.roles.graphs import Pool

    device = torch.device("cuda", torch.cuda.current_device())
    eager, captured = (
        make_env(env_id, 64, adapter="torch", device=device, seed=3, max_episode_steps=7)
        for _ in range(2)
    )
    assert torch.equal(eager.reset(), captured.reset())
    captured.capture(Pool(device))
    for action in actions(eager, 30).to(device):
        for one, two in zip(eager.step(action), captured.step(action), strict=True):
            torch.testing.assert_close(one, two)
    captured.close()
