"""Policies that remember: the cells against torch's, sequences against single steps."""

import copy

import pytest
import torch
from torch import nn

from batches import algorithm_of, batch_for, collector_of, learner_of
from gmi_drl import rl
from gmi_drl.comm import solo_group
from gmi_drl.placement import (
    A2CConfig,
    ConfigError,
    IMPALAConfig,
    PPOConfig,
    RecurrentConfig,
    load_config,
)
from gmi_drl.roles.policies import RecurrentActorCritic
from gmi_drl.roles.policies.distributions import Categorical, Normal
from gmi_drl.roles.policies.normalize import Normalizers
from gmi_drl.roles.policies.policy import GreedyActor
from gmi_drl.roles.samples.codec import BatchCodec, sent_columns
from toy_env import ToyEnv

CELLS = pytest.mark.parametrize("cell", ["lstm", "gru"])
SETTINGS = {
    "network": [8], "activation": "tanh", "schedule": "constant", "normalize_value": False,
    "normalize_observation": False, "recurrent": {"cell": "lstm", "size": 6},
}  # fmt: skip


def network_of(cell="lstm", obs_dim=2, distribution=None, size=6):
    """A network whose every part matters."""
    recurrent, generator = RecurrentConfig(cell=cell, size=size), torch.Generator().manual_seed(0)
    network = RecurrentActorCritic(
        obs_dim, distribution or Normal(1), [8], "tanh", recurrent=recurrent, generator=generator
    )
    with torch.no_grad():
        network.head.weight.normal_(0, 0.5, generator=generator)
        for name, parameter in network.cell.named_parameters():
            if name.startswith("bias"):
                parameter.normal_(0, 0.3, generator=generator)
    return network


def some_segments(steps=7, num_env=5, obs_dim=2, columns=12):
    generator = torch.Generator().manual_seed(1)
    seen = torch.randn(steps, num_env, obs_dim, generator=generator)
    done = (torch.rand(steps, num_env, generator=generator) < 0.3).float()
    assert 5 < done.sum() < 20
    return seen, torch.randn(num_env, columns, generator=generator), done


@CELLS
def test_without_ends_a_segment_is_what_torchs_layer_makes_of_it(cell):
    network, kind = network_of(cell), {"lstm": nn.LSTM, "gru": nn.GRU}[cell]
    layer = kind(8, 6)
    layer.load_state_dict({f"{k}_l0": v for k, v in network.cell.state_dict().items()})
    seen, state, done = some_segments(columns=network.state_columns)
    features = network.trunk(seen.flatten(0, 1)).view(*seen.shape[:2], -1)
    parts = [part[None].contiguous() for part in state.chunk(network.cell.parts, -1)]
    out, _ = layer(features, tuple(parts) if cell == "lstm" else parts[0])
    ours = network.unroll(seen, state, torch.zeros_like(done))
    assert torch.allclose(ours, network.head(out), atol=1e-6)


@CELLS
def test_a_segment_is_its_steps_with_the_state_dropped_where_an_episode_ended(cell):
    network = network_of(cell)
    seen, state, done = some_segments(columns=network.state_columns)
    whole = network.unroll(seen, state, done)
    for t, each in enumerate(seen):
        head, state = network.step(each, state)
        assert torch.allclose(whole[t], head, atol=1e-6)
        state = state * (1 - done[t])[:, None]
    assert torch.equal(network(seen[0]), network.step(seen[0], torch.zeros_like(state))[0])


@CELLS
def test_gradients_by_hand_are_those_of_finite_differences(cell):
    network = network_of(cell).double()
    _, state, done = some_segments(columns=network.state_columns)
    kept = 1 - torch.cat([torch.zeros(1, 5), done[:-1]])[..., None].double()
    inputs = torch.randn(7, 5, network.cell.weight_hh.shape[0], dtype=torch.float64)
    parts = [part.double().requires_grad_() for part in state.chunk(network.cell.parts, -1)]

    def outputs(inputs, *rest):
        weights = dict(zip(names, rest[len(parts) :], strict=True))
        with torch.nn.utils.stateless._reparametrize_module(network.cell, weights):
            return network.cell.all_steps(inputs, rest[: len(parts)], kept)[0]

    names = ["weight_hh"] if cell == "lstm" else ["weight_hh", "bias_hh"]
    weights = [getattr(network.cell, name).detach().clone().requires_grad_() for name in names]
    assert torch.autograd.gradcheck(outputs, (inputs.requires_grad_(), *parts, *weights))


@pytest.mark.parametrize("static", [False, True], ids=["host", "static"])
@CELLS
def test_what_was_sampled_is_what_the_loss_sees(cell, static):
    settings = PPOConfig(**SETTINGS, horizon=4, minibatches=1)
    network, env = network_of(cell), ToyEnv(3, limit=3)
    collector = collector_of(
        env, network, settings, horizon=4, gamma=0.9, static=static,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    batch, policy = collector.batch, collector._policy
    states = []
    with torch.no_grad():
        for iteration in range(3):
            collector.collect(iteration)
            states.append(batch.sequences.state.clone())
            head = policy.network_for(batch.flat())(batch.flat()["observation"])
            assert torch.allclose(head[:, :-1], batch.flat()["parameters"], atol=1e-6)
            assert torch.allclose(head[:, -1], batch.flat()["value"], atol=1e-6)
        # The value beyond the horizon goes on from the state; so does that at a time limit.
        assert batch["ended"].nonzero()[:, 0].unique().tolist() == [0, 3]  # of steps 9 to 12
        last, _ = network.step(collector.observation, collector._state)
        assert torch.allclose(batch.bootstrap["value"], last[:, -1])
        assert not collector._state.any()
        _, state = network.step(batch["observation"][0], states[-1])
        final = torch.tensor([[float(i), 3.0] for i in range(3)])
        future = network.step(final, state)[0][:, -1]
        assert torch.allclose(batch["reward"][0], 3.0 + 0.9 * future, atol=1e-6)
    assert not states[0].any()
    assert states[1].any(1).all()


def test_minibatches_are_environments_with_all_their_steps():
    settings = PPOConfig(**SETTINGS, horizon=4, minibatches=3, epochs=1, learning_rate=1e-3)
    network, env = network_of(), ToyEnv(6, limit=3)
    batch = batch_for(network, settings, 4, 6, 2)
    learner = learner_of(network, settings, batch)
    learner.connect(solo_group())
    collector = collector_of(
        env, network, settings, horizon=4, generator=torch.Generator().manual_seed(0)
    )
    collector.collect(0)
    collector.collect(1)
    batch.rows.copy_(collector.batch.rows)
    batch["reward"].copy_(collector.batch["reward"])
    batch["done"].copy_(collector.batch["done"])
    batch.sequences.state.copy_(collector.batch.sequences.state)
    batch.row_constants["log_std"].copy_(collector.batch.row_constants["log_std"])
    found, inner = [], learner.algorithm.losses

    def seen(minibatch):
        rows = minibatch["observation"].view(4, 2, 2)
        assert (rows[..., 0] == rows[0, :, 0]).all()  # which environment it is
        for place, number in enumerate(rows[0, :, 0].long().tolist()):
            assert torch.equal(rows[:, place], batch["observation"][:, number])
            assert torch.equal(minibatch.sequences.done[:, place], batch["done"][:, number])
            assert torch.equal(minibatch.sequences.state[place], batch.sequences.state[number])
            found.append(number)
        losses = inner(minibatch)
        if len(found) == 2:  # nothing was learned before
            assert losses.stats["kl"].abs() < 1e-6
        return losses

    learner.algorithm.losses = seen
    learner.update(batch)
    assert sorted(found) == list(range(6))
    learner.close()


@CELLS
@pytest.mark.parametrize("settings", [PPOConfig, A2CConfig])
def test_the_gradient_goes_back_through_the_steps_of_an_episode_and_no_further(settings, cell):
    """Against autograd on steps that are taken one by one."""
    its = settings(**SETTINGS, horizon=5, minibatches=1, epochs=1)
    network = network_of(cell)
    collector = collector_of(
        ToyEnv(4, limit=3), network, its, horizon=5, generator=torch.Generator().manual_seed(0)
    )
    collector.collect(0)
    batch = collector.batch
    algorithm = algorithm_of(network, its)
    algorithm.measure(batch, moments := torch.zeros(6, dtype=torch.float64))
    algorithm.postprocess(batch, moments[None])
    algorithm.losses(batch.flat()).total.backward()
    ours = [one.grad.clone() for one in network.parameters()]

    class Stepwise:
        distribution, log_std = network.distribution, network.log_std

        def __call__(self, observation):
            state, heads = batch.sequences.state, []
            for each, done in zip(observation.view(5, 4, 2), batch["done"], strict=True):
                head, state = network.step(each, state)
                heads.append(head)
                state = torch.where(done[:, None] > 0, torch.zeros_like(state), state)
            return torch.cat(heads)

    network.zero_grad()
    log_std = batch.row_constants["log_std"]
    flat = batch.flat()
    type(algorithm).loss(Stepwise(), flat.rows, flat.row_layout, log_std, its).total.backward()
    for mine, one in zip(ours, network.parameters(), strict=True):
        assert torch.allclose(mine, one.grad, atol=1e-6)
    assert network.cell.weight_hh.grad.abs().max() > 1e-4


def test_segments_of_impala_are_gone_through_with_what_was_remembered():
    its = IMPALAConfig(**SETTINGS, horizon=4)
    network = network_of()
    collector = collector_of(
        ToyEnv(4, limit=3), network, its, horizon=4, generator=torch.Generator().manual_seed(0)
    )
    collector.collect(0)
    collector.collect(1)
    algorithm = algorithm_of(network, its)
    segments = collector.batch.segments(None, algorithm.segment_fields)
    for batch in (segments, segments.environments(torch.tensor([2, 0]))):
        losses = algorithm.losses(batch)
        assert losses.stats["kl"].abs() < 1e-6  # of the policy that sampled: nothing was learned
        assert losses.stats["rho"] == pytest.approx(1.0, abs=1e-6)


@CELLS
@pytest.mark.parametrize("count", [1, 2])
def test_all_reduce_is_local_on_the_joined_batch(cell, count):
    settings = {
        "network": [8], "recurrent": {"cell": cell, "size": 6}, "horizon": 8, "minibatches": 2,
        "epochs": 2, "learning_rate": 3e-3,
    }  # fmt: skip
    made = [
        make(rl.PPO, [
            rl.Evaluator("CartPole-v1", rl.PPO, num_env=4, seed=3, settings=settings)
            for _ in range(count)
        ])
        for make in (rl.AllReduce, rl.Local)
    ]  # fmt: skip
    for _ in range(3):
        one, other = (optimizer.step() for optimizer in made)
        assert one["kl"] == pytest.approx(other["kl"], abs=1e-5)
    (mine,), (theirs,) = (o.foreach_policy(lambda graph: graph.weights()) for o in made)
    assert torch.allclose(
        torch.from_numpy(mine["parameters"]), torch.from_numpy(theirs["parameters"]), atol=2e-5
    )


def test_what_was_remembered_first_travels_with_a_batch():
    its = PPOConfig(**SETTINGS, horizon=4)
    network = network_of()
    batch = batch_for(network, its, 4, 3, 2)
    batch.sequences.state.normal_()
    codec = BatchCodec(batch, 3, sent_columns(algorithm_of(network, its).policy, ()), 0)
    memory = torch.zeros(codec.nbytes, dtype=torch.uint8)
    codec.pack(memory, batch, ())
    joined = batch_for(network, its, 4, 6, 2)
    codec.unpack(memory, joined, 3)
    assert torch.equal(joined.sequences.state[3:], batch.sequences.state)
    assert not joined.sequences.state[:3].any()


def test_who_acts_greedily_forgets_where_an_episode_begins():
    network = network_of(distribution=Categorical(4))
    policy = algorithm_of(network, PPOConfig(**SETTINGS)).policy
    actor, seen = GreedyActor(policy, None), torch.randn(3, 5, 2)
    none, second = torch.zeros(5, dtype=torch.bool), torch.tensor([0, 1, 0, 0, 0]).bool()
    state = torch.zeros(5, network.state_columns)
    with torch.no_grad():
        for each, began in zip(seen, (none, none, second), strict=True):
            state[began] = 0
            head, state = network.step(each, state)
            assert torch.equal(actor.act(each, began)[:, 0], head[:, :-1].argmax(-1).float())
    assert torch.equal(actor._state, state)


def test_a_network_that_was_copied_goes_on_as_the_first():
    network = network_of()
    other = network_of()
    other.load_state_dict(copy.deepcopy(network.state_dict()))
    assert other.describe() == network.describe()
    assert network.describe()["recurrent"] == "lstm 6"


def config(*words):
    return load_config({"version": 1, "env": {"id": "CartPole-v1"}}, list(words))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["algorithm.recurrent={cell: rnn}"], "must be one of lstm, gru"),
        (["algorithm.recurrent={size: 0}"], "must be 1 or more"),
        (["algorithm.recurrent={sice: 8}"], "Did you mean algorithm.recurrent.size"),
        (["algorithm.name=sac", "algorithm.recurrent={}"], "recurrent"),
    ],
)
def test_what_is_wrong_with_the_key_is_said(words, said):
    with pytest.raises(ConfigError, match=said):
        config(*words)


@pytest.mark.parametrize("name", ["ppo", "a2c", "appo", "impala"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["algorithm.horizon=1"], "algorithm.horizon=1; must be 2 or more"),
        (["algorithm.share_layers=false"], "algorithm.share_layers=False; policy and value of a"),
    ],
)
def test_keys_that_do_not_go_with_it_are_told_whatever_the_algorithm(name, words, said):
    mode = "async" if name in ("appo", "impala") else "sync"
    its = config(f"mode={mode}", f"algorithm.name={name}", "algorithm.recurrent={}", *words)
    faults = its.algorithm.faults(its, 1, 1)
    assert [str(fault) for fault in faults if str(fault).startswith(said)]


def test_by_default_it_is_an_lstm():
    its = config("algorithm.recurrent={}").algorithm
    assert its.recurrent == RecurrentConfig(cell="lstm", size=128)
    assert Normalizers.of(its, 4).observations is not None
