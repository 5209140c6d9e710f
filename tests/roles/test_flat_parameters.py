"""Padding: where parameters and rows begin, that it stays zero, and that files do not have it."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch

from gmi_drl.comm import create_group, solo_group
from gmi_drl.launcher.plan.gradient_size import Sizer
from gmi_drl.placement import Config, PPOConfig
from gmi_drl.roles.algorithms.ppo import Learner, ppo_loss
from gmi_drl.roles.errors import CheckpointError
from gmi_drl.roles.policies import policy as policy_module
from gmi_drl.roles.policies.distributions import Categorical, Normal
from gmi_drl.roles.policies.normalize import RunningNormalizer
from gmi_drl.roles.policies.policy import ActorCritic, FlatParameters
from gmi_drl.roles.returns.targets import Targets
from gmi_drl.roles.samples import rollout as rollout_module
from gmi_drl.roles.samples.collector import Collector
from gmi_drl.roles.samples.rollout import Columns
from gmi_drl.roles.samples.rollout_codec import Handover
from toy_env import ToyEnv

OBS, ROWS, TAIL = 5, 48, 6
LINE_BYTES = 256


def a_policy(distribution=None):
    generator = torch.Generator().manual_seed(0)
    return ActorCritic(OBS, distribution or Normal(8), [16, 10], "elu", -0.3, generator)


def settings(**changes):
    return PPOConfig(**({"network": [16, 10], "minibatches": 3, "epochs": 2} | changes))


def rows_of(policy, seed=1):
    dist, g = policy.distribution, torch.Generator().manual_seed(seed)
    columns = Columns.of(OBS, dist.action_columns, dist.parameters)
    rows = torch.randn(ROWS, columns.width, generator=g)
    if isinstance(dist, Categorical):
        rows[:, columns.action] = 1.0
    rows[:, columns.log_prob] = -3.0
    return rows, columns


def a_learner(policy, group=None, **changes):
    rows, columns = rows_of(policy)
    learner = Learner(policy, columns, ROWS, settings(**changes), torch.Generator().manual_seed(2))
    learner.connect(group or solo_group())
    return learner, rows


def padding(parameters, vector):
    """The numbers of a flat vector that belong to no parameter."""
    ends = [*parameters.offsets[1:], parameters.numel]
    sizes = [parameter.numel() for parameter in parameters._parameters]
    places = zip(parameters.offsets, sizes, ends, strict=True)
    return torch.cat([vector[start + size : end] for start, size, end in places])


def lists_of(policy):
    """What files keep: the parameters in the order of their names, end to end."""
    return torch.cat([p.detach().reshape(-1) for _, p in sorted(policy.named_parameters())])


def in_threads(spec, body):
    def rank_of_a_thread(rank):
        group = spec.join(rank, timedelta(seconds=50))
        try:
            found = body(group)
            group.barrier()
            return found
        finally:
            group.close()

    with ThreadPoolExecutor(spec.size) as threads:
        return list(threads.map(rank_of_a_thread, range(spec.size)))


@pytest.mark.parametrize("distribution", [Normal(8), Categorical(3)], ids=["normal", "categorical"])
def test_every_parameter_begins_at_a_line_and_is_what_it_was(distribution):
    policy, plain = a_policy(distribution), a_policy(distribution)
    flat = FlatParameters(policy)
    for (name, mine), its in zip(policy.named_parameters(), plain.parameters(), strict=True):
        start = mine.storage_offset() * 4  # one without numbers has no address
        assert start % LINE_BYTES == 0, name
        assert mine.data_ptr() == (flat.data.data_ptr() + start if mine.numel() else 0)
        assert torch.equal(mine, its)
    assert flat.data.data_ptr() % 64 == flat.numel % 64 == 0
    assert len(padding(flat, flat.data)) == flat.numel - len(lists_of(plain))


@pytest.mark.parametrize("wire", ["fp32", "bf16"])
@pytest.mark.parametrize("strategy", ["mpr", "mrr", "har"])
def test_every_gradient_begins_at_a_line_of_shared_memory(strategy, wire, tmp_path):
    def starts(group):
        policy = a_policy()
        flat = FlatParameters(policy)
        buckets = [group.bucket(name, flat.numel + TAIL) for name in ("first", "second")]
        found = []
        for bucket in buckets:
            flat.bind_gradients(bucket.buffer)
            found += [p.grad.data_ptr() % LINE_BYTES for p in policy.parameters()]
            found.append(bucket.result.data_ptr() % 64)
        return found

    spec = create_group(
        ["gmi 0", "gmi 1"], [0, 1], strategy=strategy, wire=wire, directory=tmp_path
    )
    assert not any(map(any, in_threads(spec, starts)))


@pytest.mark.parametrize("wire", ["fp32", "bf16"])
def test_padding_stays_zero_while_ranks_train(wire):
    def train(group):
        learner, rows = a_learner(a_policy(), group)
        for _ in range(3):
            learner.update(rows + group.rank, torch.full((8,), -0.3))
        flat, moments = learner.parameters, learner._step.descent._moments
        vectors = [flat.data.detach(), learner._step._gradient]
        vectors += [moments["exp_avg"], moments["exp_avg_sq"]]
        assert all(vector[: flat.numel].any() for vector in vectors)
        return [float(padding(flat, vector).abs().max()) for vector in vectors]

    spec = create_group(["gmi 0", "gmi 1"], strategy="mpr", wire=wire)
    assert in_threads(spec, train) == [[0.0] * 4] * 2


def test_gradients_are_those_of_parameters_on_their_own_bit_for_bit():
    policy, plain = a_policy(), a_policy()
    rows, columns = rows_of(policy)
    flat = FlatParameters(policy)
    buffer = torch.zeros(flat.numel + TAIL)
    flat.bind_gradients(buffer)
    for one in (policy, plain):
        ppo_loss(one, rows, columns, torch.full((8,), -0.3), settings()).total.backward()
    grads = torch.cat([p.grad.reshape(-1) for _, p in sorted(plain.named_parameters())])
    assert torch.equal(flat.packed(buffer), grads)


@pytest.mark.parametrize("max_grad_norm", [0.0, 0.05])
def test_training_is_that_of_parameters_end_to_end_but_for_rounding(monkeypatch, max_grad_norm):
    """The norm of a gradient is summed in another order, and the last numbers of a vector, which
    Adam's kernel takes one by one on the CPU, are others."""
    found = []
    for alignment in (policy_module.PARAMETER, 1):
        monkeypatch.setattr(policy_module, "PARAMETER", alignment)
        learner, rows = a_learner(a_policy(), max_grad_norm=max_grad_norm)
        for _ in range(3):
            learner.update(rows, torch.full((8,), -0.3))
        found.append(learner.state_dict())
    assert learner.parameters.numel == len(found[0]["parameters"])
    torch.testing.assert_close(*(f["parameters"] for f in found), rtol=1e-5, atol=1e-6)
    for name in ("exp_avg", "exp_avg_sq"):
        moments = [f["optimizer"]["state"][0][name] for f in found]
        torch.testing.assert_close(*moments, rtol=1e-4, atol=1e-7)


def test_files_keep_parameters_end_to_end_as_before_there_was_padding():
    learner, rows = a_learner(a_policy())
    learner.update(rows, torch.full((8,), -0.3))
    state = learner.state_dict()
    assert torch.equal(state["parameters"], lists_of(learner._policy))
    for name in ("exp_avg", "exp_avg_sq"):
        assert state["optimizer"]["state"][0][name].shape == state["parameters"].shape
    n = len(state["parameters"])
    old = {
        "parameters": torch.arange(n) * 1e-3,
        "optimizer": state["optimizer"] | {
            "state": {0: {
                "step": torch.tensor(7.0), "exp_avg": torch.arange(n) * 1e-5,
                "exp_avg_sq": torch.arange(n) * 1e-6,
            }}
        },
    }  # fmt: skip
    other, _ = a_learner(a_policy())
    other.load_state_dict(old)
    assert torch.equal(lists_of(other._policy), old["parameters"])
    assert not padding(other.parameters, other.parameters.data).any()
    kept = other.state_dict()
    assert torch.equal(kept["parameters"], old["parameters"])
    for name, moment in old["optimizer"]["state"][0].items():
        assert torch.equal(kept["optimizer"]["state"][0][name], moment), name


def test_a_state_of_another_policy_is_refused():
    learner, _ = a_learner(a_policy())
    other, _ = a_learner(a_policy(Normal(7)))
    with pytest.raises(CheckpointError, match=r"361 parameters; this config's has 373\. Use the"):
        learner.load_state_dict(other.state_dict())


def test_the_plan_says_the_length_of_what_is_reduced():
    config = Config(
        version=1, env={"id": "CartPole-v1"}, algorithm={"network": [16, 10]}, run={"name": "a"}
    )
    numel = Sizer().numel(config, [])
    policy = ActorCritic(4, Categorical(2), [16, 10])
    columns = Columns.of(4, 1, 2)
    learner = Learner(policy, columns, ROWS, settings(), torch.Generator())
    learner.connect(solo_group())
    assert learner._step._reducer.numel == numel + TAIL


@pytest.mark.parametrize("obs_dim", [2, 5, 8, 105])
def test_rows_are_whole_words_and_observations_begin_with_them(obs_dim):
    columns = Columns.of(obs_dim, 8, 8)
    assert columns.width % 8 == 0
    assert 0 <= columns.width - (obs_dim + 8 + 8 + 4) < 8
    assert columns.observation.start == 0


def test_the_end_of_a_row_stays_zero_and_is_not_learned_from(monkeypatch):
    monkeypatch.setattr(rollout_module, "ROW", 16)  # these rows are 8 numbers
    policy = ActorCritic(2, Normal(1), [16, 10], generator=torch.Generator().manual_seed(0))
    collector = Collector(
        ToyEnv(4, limit=5), policy, RunningNormalizer(2, clip=10.0), None, horizon=6, gamma=0.9,
        reward_scale=1.0, bootstrap_time_limit=True, generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    rollout = collector.rollout
    used = rollout.columns.ret + 1
    assert used < rollout.columns.width == 16
    targets = Targets(rollout, settings(), RunningNormalizer(1, clip=1e9))
    targets.connect(solo_group())
    collector.collect(0)
    targets.fill()
    assert not rollout.rows[..., used:].any()

    trained = []
    for rest in (0.0, float("nan")):
        rollout.rows[..., used:] = rest
        flat = FlatParameters(policy)
        learner = Learner(policy, rollout.columns, 24, settings(), torch.Generator().manual_seed(1))
        learner.connect(solo_group())
        before = flat.data.detach().clone()
        learner.update(rollout.flat, rollout.log_std)
        trained.append(learner.parameters.data.detach().clone())
        with torch.no_grad():
            learner.parameters.data.copy_(before)
    assert torch.equal(*trained)


def test_a_packet_holds_no_padding():
    handover = Handover(6, 4, 5, a_policy(), of_bytes=False)
    stats = len(handover._parts(torch.zeros(handover.nbytes, dtype=torch.uint8))["stats"]) * 8
    assert handover.nbytes == stats + 4 * (6 * 4 * (5 + 8 + 8 + 4) + 4)
