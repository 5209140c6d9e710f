"""Padding: where parameters and rows begin, that it stays zero, and that files do not have it."""

import copy
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch

from batches import (
    algorithm_of,
    batch_for,
    collector_of,
    learner_of,
    learner_of_rows,
    row_layout_of,
)
from gmi_drl.comm import create_group, solo_group
from gmi_drl.launcher.plan.planning import numel_of
from gmi_drl.placement import Config, PPOConfig, Topology, tcg_ex
from gmi_drl.roles.algorithms.ppo import ppo_loss
from gmi_drl.roles.errors import CheckpointError
from gmi_drl.roles.policies import flat_parameters as flat_module
from gmi_drl.roles.policies.actor_critic import ActorCritic
from gmi_drl.roles.policies.distributions import Categorical, Normal
from gmi_drl.roles.policies.flat_parameters import FlatParameters, Piece
from gmi_drl.roles.policies.normalize import Normalizers, RunningNormalizer
from gmi_drl.roles.samples import batch as batch_module
from gmi_drl.roles.samples.codec import BatchCodec, sent_columns
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
    row_layout = row_layout_of(OBS, dist)
    rows = torch.randn(ROWS, row_layout.width, generator=g)
    if isinstance(dist, Categorical):
        rows[:, row_layout.action] = 1.0
    rows[:, row_layout.log_prob] = -3.0
    return rows, row_layout


def a_learner(policy, group=None, **changes):
    rows, row_layout = rows_of(policy)
    learner, batch = learner_of_rows(
        policy, rows, row_layout, settings(**changes), generator=torch.Generator().manual_seed(2),
        old_log_std=torch.full((8,), -0.3),
    )  # fmt: skip
    learner.connect(group or solo_group())
    return learner, batch


def padding(parameters, vector):
    """The numbers of a flat vector that belong to no parameter."""
    ends = [*parameters.offsets[1:], parameters.numel]
    sizes = [parameter.numel() for parameter in parameters.parameters]
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
        learner, batch = a_learner(a_policy(), group)
        batch.rows.add_(group.rank)
        for _ in range(3):
            learner.update(batch)
        flat, moments = learner.parameters, learner._step.descent.moments
        vectors = [flat.data.detach(), learner._step._gradient]
        vectors += [moments["exp_avg"], moments["exp_avg_sq"]]
        assert all(vector[: flat.numel].any() for vector in vectors)
        return [float(padding(flat, vector).abs().max()) for vector in vectors]

    spec = create_group(["gmi 0", "gmi 1"], strategy="mpr", wire=wire)
    assert in_threads(spec, train) == [[0.0] * 4] * 2


def test_gradients_are_those_of_parameters_on_their_own_bit_for_bit():
    policy, plain = a_policy(), a_policy()
    rows, row_layout = rows_of(policy)
    flat = FlatParameters(policy)
    buffer = torch.zeros(flat.numel + TAIL)
    flat.bind_gradients(buffer)
    for one in (policy, plain):
        ppo_loss(one, rows, row_layout, torch.full((8,), -0.3), settings()).total.backward()
    grads = torch.cat([p.grad.reshape(-1) for _, p in sorted(plain.named_parameters())])
    assert torch.equal(flat.packed(buffer), grads)


@pytest.mark.parametrize("max_grad_norm", [0.0, 0.05])
def test_training_is_that_of_parameters_end_to_end_but_for_rounding(monkeypatch, max_grad_norm):
    """The norm of a gradient is summed in another order, and the last numbers of a vector, which
    Adam's kernel takes one by one on the CPU, are others."""
    found = []
    for alignment in (flat_module.PARAMETER_MULTIPLE, 1):
        monkeypatch.setattr(flat_module, "PARAMETER_MULTIPLE", alignment)
        learner, batch = a_learner(a_policy(), max_grad_norm=max_grad_norm)
        for _ in range(3):
            learner.update(batch)
        found.append(learner.state_dict())
    assert learner.parameters.numel == len(found[0]["parameters"])
    torch.testing.assert_close(*(f["parameters"] for f in found), rtol=1e-5, atol=1e-6)
    for name in ("exp_avg", "exp_avg_sq"):
        moments = [f["optimizer"]["state"][0][name] for f in found]
        torch.testing.assert_close(*moments, rtol=1e-4, atol=1e-7)


def test_files_keep_parameters_end_to_end_without_padding():
    learner, batch = a_learner(a_policy())
    learner.update(batch)
    state = learner.state_dict()
    assert torch.equal(state["parameters"], lists_of(learner.algorithm.policy.network))
    for name in ("exp_avg", "exp_avg_sq"):
        assert state["optimizer"]["state"][0][name].shape == state["parameters"].shape
    n = len(state["parameters"])
    saved = {
        **state,
        "parameters": torch.arange(n) * 1e-3,
        "optimizer": state["optimizer"] | {
            "state": {0: {
                "step": torch.tensor(7.0), "exp_avg": torch.arange(n) * 1e-5,
                "exp_avg_sq": torch.arange(n) * 1e-6,
            }}
        },
    }  # fmt: skip
    other, _ = a_learner(a_policy())
    other.load_state_dict(saved)
    assert torch.equal(lists_of(other.algorithm.policy.network), saved["parameters"])
    assert not padding(other.parameters, other.parameters.data).any()
    kept = other.state_dict()
    assert torch.equal(kept["parameters"], saved["parameters"])
    for name, moment in saved["optimizer"]["state"][0].items():
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
    layout = tcg_ex(Topology.from_cores([0]), 1, 1)
    numel = numel_of(config, layout, "gmi_drl.roles:Trainer")
    policy = ActorCritic(4, Categorical(2), [16, 10])
    learner = learner_of(policy, settings())
    learner.connect(solo_group())
    assert learner._step._reducer.numel == numel


@pytest.mark.parametrize("obs_dim", [2, 5, 8, 105])
def test_rows_are_whole_words_and_observations_begin_with_them(obs_dim):
    row_layout = row_layout_of(obs_dim, Normal(8))
    assert row_layout.width % 8 == 0
    assert 0 <= row_layout.width - (obs_dim + 8 + 8 + 4) < 8
    assert row_layout.observation.start == 0


def test_the_end_of_a_row_stays_zero_and_is_not_learned_from(monkeypatch):
    monkeypatch.setattr(batch_module, "ROW_MULTIPLE", 16)  # these rows are 8 numbers
    policy = ActorCritic(2, Normal(1), [16, 10], generator=torch.Generator().manual_seed(0))
    normalizers = Normalizers(RunningNormalizer(2, clip=10.0), RunningNormalizer(1, clip=1e9))
    collector = collector_of(
        ToyEnv(4, limit=5), policy, settings(), normalizers, horizon=6,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    batch = collector.batch
    used = batch.row_layout.ret + 1
    assert used < batch.row_layout.width == 16
    collector.collect(0)
    trained = []
    for rest in (0.0, float("nan")):
        learner = learner_of(
            policy, settings(), batch, normalizers, generator=torch.Generator().manual_seed(1)
        )
        learner.connect(solo_group())
        before = learner.parameters.data.detach().clone()
        state, value = copy.deepcopy(learner.state_dict()), batch["value"].clone()
        batch.rows[..., used:] = rest
        learner.update(batch)
        if not rest:
            assert not batch.rows[..., used:].any()
        trained.append(learner.parameters.data.detach().clone())
        learner.load_state_dict(state)
        batch["value"].copy_(value)
        assert torch.equal(learner.parameters.data, before)
    assert torch.equal(*trained)


def test_a_packet_holds_no_padding():
    network = a_policy()
    batch = batch_for(network, settings(), 6, 4, 5)
    del batch.bootstrap["observation"]
    policy = algorithm_of(network, settings()).policy
    codec = BatchCodec(batch, 4, sent_columns(policy, ()), stats=7)
    assert codec.nbytes == 7 * 8 + 4 * (6 * 4 * (5 + 8 + 8 + 4) + 4)


def test_pieces_cover_everything_once_and_are_views():
    flat = FlatParameters(torch.nn.Linear(30, 20))
    for pieces in (1, 2, 3, 5):
        parts = [Piece(flat, number, pieces) for number in range(pieces)]
        assert sum(part.numel for part in parts) == flat.numel
        assert torch.equal(torch.cat([part.data for part in parts]), flat.data)
    with torch.no_grad():
        parts[-1].data.fill_(7.0)
    assert (flat.data[parts[-1].place] == 7.0).all()
    with pytest.raises(
        ValueError, match=r"in 99 pieces; they are cut in blocks of 64. Use \d+ or fewer"
    ):
        Piece(flat, 0, 99)
