"""An update as a GPU does it: nothing waits, what is captured equals what is done anew.

Without a GPU: modes that refuse what would wait and replay what was recorded (tests/device_only.py
has tests of its own, in test_graphs.py).
"""

import copy
import io
from types import SimpleNamespace

import pytest
import torch

from batches import batch_for, learner_of
from device_only import DeviceOnly, RecordedPool, nothing_waits
from gmi_drl.comm import solo_group
from gmi_drl.placement import ALGORITHMS, PPOConfig
from gmi_drl.roles.algorithms.ppo import ppo_loss
from gmi_drl.roles.errors import CaptureError
from gmi_drl.roles.graphs import Pool
from gmi_drl.roles.optimizers.descent import adapt_learning_rate, adapt_learning_rate_
from gmi_drl.roles.policies.actor_critic import ActorCritic
from gmi_drl.roles.policies.distributions import Categorical, Normal
from gmi_drl.roles.policies.normalize import Normalizers, RunningNormalizer
from gmi_drl.roles.role.trainer import Holistic

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
    """A batch as if an older policy had sampled it."""
    g = torch.Generator().manual_seed(seed)
    dist = policy.distribution
    batch = batch_for(policy, settings(), HORIZON, ENVS, OBS, policy.log_std.device)
    batch.rows.copy_(torch.randn(batch.rows.shape, generator=g))
    batch["raw_observation"].copy_(3 * torch.randn(HORIZON, ENVS, OBS, generator=g) + 1)
    batch["reward"].copy_(torch.randn(HORIZON, ENVS, generator=g))
    batch.bootstrap["value"].copy_(torch.randn(ENVS, generator=g))
    if isinstance(dist, Categorical):
        picks = torch.randint(0, dist.parameters, (HORIZON, ENVS, 1), generator=g)
        batch["action"].copy_(picks)
    flat = batch.flat()
    with torch.no_grad():
        flat["parameters"].copy_(policy(flat["observation"])[:, :-1])
        flat["log_prob"].copy_(
            dist.log_prob(flat["parameters"], batch.row_constants["log_std"], flat["action"])
        )
    return batch


class Two:
    """A group as of two ranks, of which the other brings nothing and takes the same steps."""

    size, rank = 2, 1

    def bucket(self, *args):
        reducer = solo_group().bucket(*args)
        reducer.size = 2
        return reducer


GROUPS = {"alone": solo_group, "with another": Two}
PAIRS = pytest.mark.parametrize(
    ("distribution", "group"), [(Normal(3), Two), (Categorical(4), solo_group)],
    ids=["normal with another", "categorical alone"],
)  # fmt: skip


def a_learner(policy, batch, changes=(), group=None, device=CPU, **how):
    values = RunningNormalizer(1, clip=1e9, device=device)
    seen = RunningNormalizer(OBS, clip=10.0, device=device)
    learner = learner_of(
        policy, settings(**dict(changes)), batch, Normalizers(seen, values),
        generator=torch.Generator(device).manual_seed(1), **how,
    )  # fmt: skip
    learner.connect(group or solo_group())
    return learner


def trained(
    iterations, distribution=None, group=None, device=CPU, between=None, precision="fp32", **how
):
    """Parameters, moments and statistics after some iterations on the same experience."""
    policy = a_policy(distribution or Normal(3), device, precision)
    batch = experience(policy)
    learner = a_learner(policy, batch, group=group, device=device, **how)
    found = []
    for iteration in range(iterations):
        learner.update(batch)
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
        if not tolerance:
            assert a == b
            continue
        # A quotient of differences: it can be none at all by a rounding.
        del a["noise_scale"], b["noise_scale"]
        assert a == pytest.approx(b, rel=1e-4, abs=1e-6)


@PAIRS
def test_an_update_waits_for_nothing(distribution, group):
    policy = a_policy(distribution)
    batch = experience(policy)
    learner = a_learner(policy, batch, group=group(), static=True)
    with DeviceOnly():
        learner.descent.learning_rate = 1e-3
        learner.update(batch)
    with pytest.raises(AssertionError), DeviceOnly():
        learner.stats()  # this is where the device is waited for


@pytest.mark.parametrize("name", ["impala", "appo"])
def test_an_update_on_segments_waits_for_nothing_before_its_losses_are_read(name):
    policy, how = a_policy(Normal(3)), ALGORITHMS[name](network=[16, 8], minibatches=3)
    batch = experience(policy)
    learner = learner_of(policy, how, normalizers=Normalizers.of(how, OBS), static=True)
    learner.connect(solo_group())
    with DeviceOnly():
        learner.update(batch)
    with pytest.raises(AssertionError), DeviceOnly():
        learner.stats()


def test_numbers_that_stay_on_the_device_train_as_those_of_the_host():
    assert_same(trained(4, static=True), trained(4), rtol=1e-4, atol=1e-6)


@PAIRS
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
        kept = state | {"parameters": state["parameters"] * 0.5}
        kept = {name: copy.deepcopy(part) for name, part in kept.items()}
        learner.load_state_dict(kept)
        learner.update(batch_of(learner))  # given up, as when a group is re-formed
        learner.connect(solo_group())
        learner.load_state_dict(kept)
        learner.descent.learning_rate = 2e-4

    def batch_of(learner):
        return learner._batch

    pool = RecordedPool()
    captured = trained(3, between=between, static=True, pool=pool)
    assert_same(captured, trained(3, between=between, static=True))
    assert len(pool.graphs) == 4  # of postprocessing and of the update, and of each another


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
        warn=told.append,
    )  # fmt: skip
    assert role.loss_is_capturable() is (declared is not False)
    if declared is False:
        assert "Mine.loss may depend on more than its arguments" in told.pop()
        run.capture = False
        assert not role.loss_is_capturable()  # and nobody asked for it
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
    batch = experience(a_policy(Normal(3)))
    first = a_learner(a_policy(Normal(3)), batch, static=before)
    first.update(batch)
    second = a_learner(a_policy(Normal(3)), batch, static=after)
    state = saved(first.state_dict())
    second.load_state_dict(state)
    assert second.descent.learning_rate == pytest.approx(first.descent.learning_rate, rel=1e-6)
    mine, its = first.state_dict(), second.state_dict()
    assert torch.equal(mine["parameters"], its["parameters"])
    for name, moment in mine["optimizer"]["state"][0].items():
        assert torch.equal(moment, its["optimizer"]["state"][0][name])


@pytest.mark.parametrize("static", [False, True])
def test_checkpoints_of_torchs_own_adam_are_read(static):
    batch = experience(a_policy(Normal(3)))
    learner = a_learner(a_policy(Normal(3)), batch, static=static)
    learner.update(batch)
    # End to end, as before parameters were padded.
    flat = torch.nn.Parameter(torch.zeros(len(learner.state_dict()["parameters"])))
    adam = torch.optim.Adam([flat], lr=0.02, eps=1e-5, fused=True)
    others = learner.state_dict()
    state = others | {"parameters": flat.detach(), "optimizer": adam.state_dict()}
    learner.load_state_dict(saved(state))  # of before the first step
    found = learner.state_dict()["optimizer"]["state"][0]
    assert not any(moment.any() for moment in found.values())
    assert learner.descent.learning_rate == pytest.approx(0.02)
    flat.grad = torch.ones_like(flat)
    adam.step()
    learner.load_state_dict(
        saved(state | {"parameters": flat.detach(), "optimizer": adam.state_dict()})
    )
    found = learner.state_dict()["optimizer"]["state"][0]
    assert found["step"] == 1
    assert torch.equal(found["exp_avg"], adam.state[flat]["exp_avg"])


def test_the_way_of_the_host_is_for_the_cpu_alone():
    batch = experience(a_policy(Normal(3)))
    assert a_learner(a_policy(Normal(3)), batch)._step.descent._rate is None
    assert a_learner(a_policy(Normal(3)), batch, static=True)._step.descent._rate is not None


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
    batch = experience(policy)
    learner = a_learner(policy, batch, device=device, pool=Pool(device))
    learner.update(batch)  # the first one captures
    with nothing_waits():
        learner.update(batch)
    assert learner.stats()["kl"] > 0
