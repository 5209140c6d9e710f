"""An update as a GPU does it: nothing waits, what is captured equals what is done anew.

Without a GPU: modes that refuse what would wait and replay what was recorded (tests/device_only.py
has tests of its own, in test_graphs.py).
"""

import io
from types import SimpleNamespace

import pytest
import torch

from device_only import DeviceOnly, RecordedPool, nothing_waits, on_the_host
from gmi_drl.comm import solo_group
from gmi_drl.placement import ALGORITHMS, PPOConfig
from gmi_drl.roles.algorithms.ppo import Learner, ppo_loss
from gmi_drl.roles.errors import CaptureError
from gmi_drl.roles.graphs import Pool
from gmi_drl.roles.holistic import Holistic
from gmi_drl.roles.optimizers.async_learner import AsyncLearner
from gmi_drl.roles.optimizers.descent import (
    DeviceDescent,
    HostDescent,
    adapt_learning_rate,
    adapt_learning_rate_,
)
from gmi_drl.roles.policies.distributions import Categorical, Normal
from gmi_drl.roles.policies.normalize import Normalizers, RunningNormalizer
from gmi_drl.roles.policies.policy import ActorCritic
from gmi_drl.roles.returns.targets import Targets
from gmi_drl.roles.samples.rollout import Rollout
from gmi_drl.roles.samples.segments import Segments

OBS, HORIZON, ENVS = 5, 8, 12
CPU = torch.device("cpu")


def settings(**changes):
    base = {
        "network": [16, 8], "horizon": HORIZON, "minibatches": 3, "epochs": 2, "kl_target": 0.01,
        "max_grad_norm": 0.5, "entropy_coef": 0.01,
    }  # fmt: skip
    return PPOConfig(**(base | changes))


def a_policy(distribution, device=CPU, precision="fp32"):
    generator = torch.Generator().manual_seed(0)
    policy = ActorCritic(OBS, distribution, [16, 8], "elu", -0.3, generator, precision)
    with torch.no_grad():
        policy.head.weight.normal_(0, 0.8, generator=generator)
    return policy.to(device)


def experience(policy, seed=0):
    """A rollout as if an older policy had sampled it."""
    g = torch.Generator().manual_seed(seed)
    device, dist = policy.log_std.device, policy.distribution
    rollout = Rollout(HORIZON, ENVS, OBS, policy, device)
    rollout.rows.copy_(torch.randn(rollout.rows.shape, generator=g))
    rollout.raw_observation.copy_(3 * torch.randn(HORIZON, ENVS, OBS, generator=g) + 1)
    rollout.reward.copy_(torch.randn(HORIZON, ENVS, generator=g))
    rollout.last_value.copy_(torch.randn(ENVS, generator=g))
    if isinstance(dist, Categorical):
        picks = torch.randint(0, dist.parameters, (HORIZON, ENVS, 1), generator=g)
        rollout["action"].copy_(picks)
    flat, c = rollout.flat, rollout.columns
    with torch.no_grad():
        flat[:, c.parameters] = policy(flat[:, c.observation])[:, :-1]
        flat[:, c.log_prob] = dist.log_prob(
            flat[:, c.parameters], rollout.log_std, flat[:, c.action]
        )
    return rollout


class Two:
    """A group as of two ranks, of which the other brings nothing and takes the same steps."""

    size, rank = 2, 1

    def bucket(self, *args):
        reducer = solo_group().bucket(*args)
        reducer.size = 2
        return reducer


GROUPS = {"alone": solo_group, "with another": Two}


def a_learner(policy, rollout, changes=(), group=None, device=CPU, **how):
    learner = Learner(
        policy, rollout.columns, HORIZON * ENVS, settings(**dict(changes)),
        torch.Generator(device).manual_seed(1), **how,
    )  # fmt: skip
    learner.connect(group or solo_group())
    return learner


def trained(
    iterations, distribution=None, group=None, device=CPU, between=None, precision="fp32", **how
):
    """Parameters, moments and statistics after some iterations on the same experience."""
    policy = a_policy(distribution or Normal(3), device, precision)
    rollout = experience(policy)
    learner = a_learner(policy, rollout, group=group, device=device, **how)
    values = RunningNormalizer(1, clip=1e9, device=device)
    given = {key: how[key] for key in ("pool", "static") if key in how}
    targets = Targets(rollout, settings(), values, **given)
    targets.connect(group or solo_group())
    found = []
    for iteration in range(iterations):
        targets.fill()
        learner.update(rollout.flat, rollout.log_std)
        found.append(learner.stats())
        if between is not None and iteration == 0:
            between(learner)
    state = learner.state_dict()
    return state["parameters"].clone(), state["optimizer"]["state"][0], found


def assert_same(mine, its, **tolerance):
    close = torch.equal if not tolerance else lambda a, b: torch.allclose(a, b, **tolerance)
    assert close(mine[0], its[0])
    for name, moment in mine[1].items():
        assert close(moment, its[1][name]), name
    for a, b in zip(mine[2], its[2], strict=True):
        assert a == (pytest.approx(b, rel=1e-4, abs=1e-6) if tolerance else b)


@pytest.mark.parametrize("distribution", [Normal(3), Categorical(4)], ids=["normal", "categorical"])
@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
def test_an_update_waits_for_nothing(distribution, group):
    policy = a_policy(distribution)
    rollout = experience(policy)
    values, seen = RunningNormalizer(1, clip=1e9), RunningNormalizer(OBS, clip=10.0)
    targets = Targets(rollout, settings(), values, static=True)
    targets.connect(group())
    learner = a_learner(policy, rollout, group=group(), static=True)
    with DeviceOnly():
        learner.learning_rate = 1e-3
        moments = targets.fill()
        learner.update(rollout.flat, rollout.log_std)
        seen.update(moments)
    with pytest.raises(AssertionError), DeviceOnly():
        learner.stats()  # this is where the device is waited for


@pytest.mark.parametrize("name", ["impala", "a3c"])
def test_an_async_update_waits_for_nothing_before_its_losses_are_read(name, monkeypatch):
    policy, how = a_policy(Normal(3)), ALGORITHMS[name](network=[16, 8], minibatches=3)
    rollout, normalizers = experience(policy), Normalizers.of(how, OBS)
    segments = Segments(
        rollout.raw_observation, rollout["action"], rollout["log_prob"], rollout.reward,
        rollout.done, torch.zeros(ENVS, OBS),
    )  # fmt: skip
    learner = AsyncLearner(policy, normalizers, how, torch.Generator().manual_seed(0), static=True)
    learner.connect(solo_group())
    means, read = learner._step.means, []

    def at_the_end():
        with on_the_host():
            read.append(means())
        return read[-1]

    monkeypatch.setattr(learner._step, "means", at_the_end)
    with DeviceOnly():
        learner.update(segments)
    assert len(read) == 1


def test_numbers_that_stay_on_the_device_train_as_those_of_the_host():
    assert_same(trained(4, static=True), trained(4), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("distribution", [Normal(3), Categorical(4)], ids=["normal", "categorical"])
def test_what_is_captured_equals_what_is_done_anew(distribution, group):
    pool = RecordedPool()
    captured = trained(3, distribution, group(), static=True, pool=pool)
    assert_same(captured, trained(3, distribution, group(), static=True))
    graphs = 1 if group is solo_group else 2
    replays = [graph.replays for graph in pool.graphs]
    assert replays == [3] * graphs + [18] * graphs  # of the targets, and of the update


def test_a_loaded_state_and_new_buckets_reach_what_is_captured():
    def between(learner):
        state = learner.state_dict()
        kept = {"parameters": state["parameters"] * 0.5, "optimizer": state["optimizer"]}
        learner.load_state_dict(kept)
        learner.update(torch.ones_like(rows), log_std)  # given up, as when a group is re-formed
        learner.connect(solo_group())
        learner.load_state_dict(kept)
        learner.learning_rate = 2e-4

    rollout = experience(a_policy(Normal(3)))
    rows, log_std = rollout.flat, rollout.log_std
    pool = RecordedPool()
    captured = trained(3, between=between, static=True, pool=pool)
    assert_same(captured, trained(3, between=between, static=True))
    assert len(pool.graphs) == 3  # one of the targets, and of the update one and another


def test_a_loss_that_cannot_be_captured_is_named():
    with pytest.raises(CaptureError, match="a minibatch's loss cannot be captured"):
        trained(1, static=True, pool=RecordedPool(refuses=1))  # 0 is the targets'


@pytest.mark.parametrize("declared", [None, False, True])
def test_a_users_loss_is_captured_when_its_class_says_that_it_can_be(declared):
    class Mine(Holistic):
        def loss(self, *args):
            return ppo_loss(*args)

    told = []
    role = Holistic.__new__(Holistic if declared is None else Mine)
    role.capturable_loss = bool(declared)
    device, run = torch.device("cuda"), SimpleNamespace(capture=True)
    role.mgr = SimpleNamespace(
        context=SimpleNamespace(device=device), config=SimpleNamespace(run=run),
        report=lambda record: told.append(record["message"]),
    )  # fmt: skip
    assert role._loss_is_capturable() is (declared is not False)
    if declared is False:
        assert "Mine.loss may depend on more than its arguments" in told.pop()
        run.capture = False
        assert not role._loss_is_capturable()  # and nobody asked for it
    assert not told


def test_capturing_leaves_the_random_numbers_of_a_users_loss_alone():
    def noisy(policy, rows, *rest):
        return ppo_loss(policy, rows + 0.1 * torch.randn_like(rows), *rest)

    outcomes = []
    for pool in (None, RecordedPool()):
        torch.manual_seed(3)
        outcomes.append(trained(2, static=True, loss=noisy, pool=pool))
    assert_same(*outcomes)


def test_the_learning_rate_on_a_device_follows_the_kl():
    for rate in (3e-4, 1e-6, 1e-2, 1.2e-6, 9e-3, 0.05):
        for kl in (-1e-3, 0.0, 0.003, 0.004, 0.008, 0.016, 0.02, 1.0):
            tensor = torch.tensor(rate, dtype=torch.float64)
            adapt_learning_rate_(tensor, torch.tensor(kl, dtype=torch.float64), 0.008)
            assert float(tensor) == adapt_learning_rate(rate, kl, 0.008), (rate, kl)


def saved(state):
    stream = io.BytesIO()
    torch.save(state, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=True)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_a_checkpoint_goes_from_device_to_host_and_back(before, after):
    rollout = experience(a_policy(Normal(3)))
    first = a_learner(a_policy(Normal(3)), rollout, static=before)
    first.update(rollout.flat, rollout.log_std)
    second = a_learner(a_policy(Normal(3)), rollout, static=after)
    state = saved(first.state_dict())
    second.load_state_dict(state)
    assert second.learning_rate == pytest.approx(first.learning_rate, rel=1e-6)
    mine, its = first.state_dict(), second.state_dict()
    assert torch.equal(mine["parameters"], its["parameters"])
    for name, moment in mine["optimizer"]["state"][0].items():
        assert torch.equal(moment, its["optimizer"]["state"][0][name])


@pytest.mark.parametrize("static", [False, True])
def test_checkpoints_of_torchs_own_adam_are_read(static):
    rollout = experience(a_policy(Normal(3)))
    learner = a_learner(a_policy(Normal(3)), rollout, static=static)
    learner.update(rollout.flat, rollout.log_std)
    # End to end, as before parameters were padded.
    flat = torch.nn.Parameter(torch.zeros(len(learner.state_dict()["parameters"])))
    adam = torch.optim.Adam([flat], lr=0.02, eps=1e-5, fused=True)
    state = {"parameters": flat.detach(), "optimizer": adam.state_dict()}
    learner.load_state_dict(saved(state))  # of before the first step
    found = learner.state_dict()["optimizer"]["state"][0]
    assert not any(moment.any() for moment in found.values())
    assert learner.learning_rate == pytest.approx(0.02)
    flat.grad = torch.ones_like(flat)
    adam.step()
    learner.load_state_dict(saved({"parameters": flat.detach(), "optimizer": adam.state_dict()}))
    found = learner.state_dict()["optimizer"]["state"][0]
    assert found["step"] == 1
    assert torch.equal(found["exp_avg"], adam.state[flat]["exp_avg"])


def test_the_way_of_the_host_is_for_the_cpu_alone():
    rollout = experience(a_policy(Normal(3)))
    assert isinstance(a_learner(a_policy(Normal(3)), rollout)._step.descent, HostDescent)
    assert isinstance(
        a_learner(a_policy(Normal(3)), rollout, static=True)._step.descent, DeviceDescent
    )


@pytest.mark.gpu
@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_captured_equals_eager_on_hardware(precision, group):
    device = torch.device("cuda", torch.cuda.current_device())
    how = {"device": device, "precision": precision}
    captured = trained(3, group=group(), pool=Pool(device), **how)
    assert_same(captured, trained(3, group=group(), **how), rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_an_update_waits_for_nothing_on_hardware():
    device = torch.device("cuda", torch.cuda.current_device())
    policy = a_policy(Normal(3), device)
    rollout = experience(policy)
    values = RunningNormalizer(1, clip=1e9, device=device)
    pool = Pool(device)
    targets = Targets(rollout, settings(), values, pool=pool)
    targets.connect(solo_group())
    learner = a_learner(policy, rollout, device=device, pool=pool)
    targets.fill()
    learner.update(rollout.flat, rollout.log_std)  # the first ones capture
    with nothing_waits():
        targets.fill()
        learner.update(rollout.flat, rollout.log_std)
    assert learner.stats()["kl"] > 0
