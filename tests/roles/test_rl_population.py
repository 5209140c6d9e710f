"""Evolution over evaluators: the same bits by any tree, as in GMIs, and after kills."""

import itertools
from random import Random

import numpy as np
import pytest
import torch

import bodies_evolution as bodies
from gmi_drl import rl, runtime
from gmi_drl.comm import solo_group
from gmi_drl.roles.errors import EvaluatorLate, RoleError
from gmi_drl.roles.evaluators.aggregator import Tried
from stops import stopped

ENV = "bodies_evolution:GmiLQR-v0"
ES = {"network": [8], "population": 22, "noise": 0.3, "learning_rate": 0.05}
ROUNDS = 3


def evaluators(count, num_env=2, make=rl.Evaluator, **changes):
    arguments = {"env": ENV, "algorithm": rl.ES, "num_env": num_env, "seed": 5, "settings": ES}
    return [make(**arguments | changes) for _ in range(count)]


def essence(optimizer):
    """The bits of all that is learned."""
    graph, weights = optimizer.graph, optimizer.graph.weights()
    parameters = graph.parameters.packed(graph.parameters.data.detach())
    return parameters.numpy().tobytes(), weights["observations"].tobytes()


def learned(*args, fan_out=None, **kwargs):
    optimizer = rl.Population(rl.ES, evaluators(*args, **kwargs), fan_out=fan_out)
    for _ in range(ROUNDS):
        told = optimizer.step()
    optimizer.close()
    return essence(optimizer), told


@pytest.fixture(scope="module")
def alone():
    return learned(1)


@pytest.mark.parametrize(
    ("count", "num_env", "fan_out"), [(1, 3, None), (2, 4, None), (5, 1, 2), (7, 3, 3)]
)
def test_what_is_learned_is_the_same_bits_by_any_number_of_evaluators_and_any_tree(
    alone, count, num_env, fan_out
):
    bits, told = learned(count, num_env, fan_out=fan_out)
    assert bits == alone[0]
    assert told == alone[1]
    assert told["steps"] == ROUNDS * 22 * bodies.STEPS
    assert (told["updates"], told["nan_returns"], told["length_mean"]) == (3, 0, bodies.STEPS)


def test_it_learns_what_gmis_learn_to_the_last_bit(alone):
    section = {
        "version": 1, "run": {"seed": 5, "total_steps": 1_000_000},
        "env": {"id": ENV, "num_env": 4}, "algorithm": {"name": "es", **ES},
    }  # fmt: skip
    parameters, moments, steps, told = bodies.rounds(solo_group(), section, ROUNDS)
    assert (parameters.tobytes(), moments.tobytes()) == alone[0]
    assert steps == alone[1]["steps"]
    assert told[-1]["return_mean"] == pytest.approx(alone[1]["return_mean"])


def test_sums_are_the_same_bits_whoever_adds_them_up_in_whatever_order():
    rows = torch.randn(37, 2, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rows[5, 1, 3] = np.nan
    pairs, whole = Tried.of(rows, 0).whole()
    assert np.isnan(pairs[5, 1, 0])
    assert np.isfinite(pairs[5, 1, 1])
    there = rows[[i for i in range(37) if i != 5], :, 2:].sum((0, 1)).numpy()
    np.testing.assert_allclose(whole, there)
    for seed in range(20):
        chance = Random(seed)
        ends = sorted({0, 37, *chance.sample(range(37), chance.randrange(12))})
        parts = [Tried.of(rows[a:b], a) for a, b in itertools.pairwise(ends)]
        while len(parts) > 1:  # two nodes of some tree
            one = parts.pop(chance.randrange(len(parts)))
            one.add(parts.pop(chance.randrange(len(parts))))
            parts.append(one)
        assert parts[0].whole()[1].tobytes() == whole.tobytes()
        assert parts[0].whole()[0].tobytes() == pairs.tobytes()


def test_kills_of_evaluators_and_of_aggregators_change_nothing_of_what_is_learned(
    tmp_path, rl_runtime
):
    killing = {"env": "bodies_evolution:KillingLQR-v0", "options": {"folder": str(tmp_path)}}
    bits, _ = learned(1, **killing)
    its = evaluators(4, make=rl.Evaluator.remote, **killing)
    optimizer = rl.Population(rl.ES, its, fan_out=2)
    tree = optimizer._aggregators
    assert len(tree) == 2
    victims = [its[0], tree[1], its[3]]
    for number, victim in enumerate(victims):
        before = runtime.process_id(victim)
        (tmp_path / "kill").write_text(str(before))  # by who plays, in the midst of a round
        optimizer.step()
        assert not (tmp_path / "kill").exists()
        assert runtime.process_id(victim) != before
        assert len(runtime.deaths(victim)) == 1, number
    assert essence(optimizer) == bits
    assert optimizer.evaluate(num_env=2)["eval_return"] < 0
    optimizer.close()


@pytest.mark.parametrize(
    ("fan_out", "late"),
    [
        (None, "evaluator 0, evaluator 1, evaluator 2"),
        (2, "the aggregator of evaluators 0 to 1, the aggregator of evaluators 2 to 2"),
    ],
)
def test_those_that_do_not_answer_are_named(fan_out, late, rl_runtime):
    its = evaluators(3, make=rl.Evaluator.remote)
    optimizer = rl.Population(rl.ES, its, fan_out=fan_out)
    optimizer.step()
    optimizer._root._timeout_s = 1.0
    pids = [runtime.process_id(one) for one in its]
    with stopped(*pids), pytest.raises(EvaluatorLate, match=f"after 1 s: {late}"):
        optimizer.step()
    optimizer.close()


def test_nobody_idles_where_environments_outnumber_directions(alone, monkeypatch):
    asked, score = [], rl.Evaluator.score

    def noted(self, weights, number, first, end):
        asked.append((self._rank, first, end))
        return score(self, weights, number, first, end)

    monkeypatch.setattr(rl.Evaluator, "score", noted)
    assert learned(2, 16)[0] == alone[0]
    assert asked == [(0, 0, 6), (1, 6, 11)] * ROUNDS


@pytest.mark.parametrize("fan_out", [None, 2])
def test_evaluators_of_this_process_go_along_with_actors(alone, fan_out, rl_runtime):
    its = [*evaluators(1), *evaluators(2, make=rl.Evaluator.remote)]
    optimizer = rl.Population(rl.ES, its, fan_out=fan_out)
    for _ in range(ROUNDS):
        optimizer.step()
    assert essence(optimizer) == alone[0]
    optimizer.close()


def test_steps_of_episodes_whose_return_is_nan_are_counted_as_in_gmis():
    (its,) = evaluators(1, options={"broken": True})
    told = rl.Population(rl.ES, [its]).step()
    assert (told["nan_returns"], told["length_mean"]) == (12, bodies.STEPS)
    assert told["steps"] == 22 * bodies.STEPS


def test_it_goes_on_from_a_file(alone, tmp_path):
    first = rl.Population(rl.ES, evaluators(1))
    first.step()
    first.save(tmp_path / "state.pt")
    second = rl.Population(rl.ES, evaluators(3), fan_out=2)
    second.load(tmp_path / "state.pt")
    for _ in range(ROUNDS - 1):
        told = second.step()
    assert (essence(second), told["steps"]) == (alone[0], alone[1]["steps"])


def test_what_does_not_fit_is_refused():
    its = evaluators(2)
    with pytest.raises(RoleError, match=r"fan_out=1; must be a whole number, 2 or more"):
        rl.Population(rl.ES, its, fan_out=1)
    with pytest.raises(RoleError, match=r"the seeds \[5, 6\], .* Give all the same seed"):
        rl.Population(rl.ES, [*evaluators(1), *evaluators(1, seed=6)])
    with pytest.raises(RoleError, match=r"population=22; must be at least 24, .* of 12 evaluators"):
        rl.Population(rl.ES, evaluators(12, num_env=1))
    with pytest.raises(RoleError, match=r"Local trains on fresh experience, and ES on returns"):
        rl.Local(rl.ES, its)
    a2c = rl.Evaluator(ENV, rl.A2C, settings={"network": [8]})
    with pytest.raises(RoleError, match=r"A2C on fresh experience. Use AllReduce or Local"):
        rl.Population(rl.A2C, [a2c])
