"""Asynchronous samples over evaluators from Python: what is learned, and of which policy."""

import os
import runpy
import signal
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from gmi_drl import rl, runtime
from gmi_drl.placement import AlgorithmConfig
from gmi_drl.roles.algorithms.alphazero import AlphaZero
from gmi_drl.roles.errors import EvaluatorLate, RoleError
from stops import stopped

NUM_ENV, HORIZON = 4, 8
ROUND = NUM_ENV * HORIZON
SETTINGS = {
    "network": [16, 8], "horizon": HORIZON, "learning_rate": 3e-3, "schedule": "constant",
}  # fmt: skip
EPOCHS = {"epochs": 2, "minibatches": 2}
# What A2C and V-trace on experience of the policy as it is have in common.
PLAIN = {"normalize_value": False, "lam": 1.0, "bounds_coef": 0.0, "max_grad_norm": 0.5}
EXAMPLE = Path(__file__).parents[2] / "examples" / "rl" / "impala.py"


def described(algorithm, env="CartPole-v1", **settings):
    keys = {**SETTINGS, **settings}
    return {"env": env, "algorithm": algorithm, "num_env": NUM_ENV, "seed": 3, "settings": keys}


def evaluators(algorithm, count, **settings):
    return [rl.Evaluator(**described(algorithm, **settings)) for _ in range(count)]


def parameters(optimizer):
    its = optimizer.graph.parameters
    return its.packed(its.data.detach()).clone()


@pytest.mark.parametrize(
    ("algorithm", "env", "more"),
    [
        (rl.IMPALA, "CartPole-v1", {}),
        (rl.IMPALA, "Pendulum-v1", {}),
        (rl.IMPALA, "CartPole-v1", {"recurrent": {"size": 6}}),
        (rl.APPO, "CartPole-v1", {}),
    ],
    ids=["impala", "of continuous actions", "recurrent", "appo"],
)
def test_with_one_evaluator_nothing_is_old_and_vtrace_is_a2c(algorithm, env, more):
    own = {"epochs": 1} if algorithm is rl.APPO else {}
    sent = rl.AsyncSamples(algorithm, evaluators(algorithm, 1, env=env, **PLAIN, **own, **more))
    keys = {**PLAIN, **more, "normalize_advantage": False}
    local = rl.Local(rl.A2C, evaluators(rl.A2C, 1, env=env, **keys))
    before = parameters(sent)
    for number in range(1, 7):
        told, other = sent.step(), local.step()
        assert told["lag"] == 0
        assert told["steps"] == other["steps"] == number * ROUND
        assert told["rho"] == pytest.approx(1.0, abs=1e-5)
        names = {"policy_loss", "value_loss", "entropy"}
        # APPO's policy loss is another one with the same gradient.
        for name in names - ({"policy_loss"} if algorithm is rl.APPO else set()):
            assert told[name] == pytest.approx(other[name], rel=1e-3, abs=1e-5)
    assert torch.allclose(parameters(sent), parameters(local), atol=2e-5)
    assert (parameters(sent) - before).abs().max() > 1e-3
    mine, its = sent.graph.weights(), local.graph.weights()
    assert mine["observations"][0] == 6 * ROUND
    assert mine["observations"] == pytest.approx(its["observations"], rel=1e-4)


class Filling(rl.IMPALA):
    filled = ("weight",)
    segment_fields = (*rl.IMPALA.segment_fields, "weight")


def test_a_segment_has_no_column_that_is_filled_where_it_is_trained():
    with pytest.raises(RoleError, match="Filling: segment_fields has weight, which postprocess"):
        rl.AsyncSamples(Filling, evaluators(Filling, 1))


def test_samples_are_as_old_as_the_batches_that_were_trained_on_meanwhile():
    optimizer = rl.AsyncSamples(rl.APPO, evaluators(rl.APPO, 3, **EPOCHS))
    told = [optimizer.step() for _ in range(6)]
    assert [one["lag"] for one in told] == [0, 1, 2, 2, 2, 2]
    assert [one["updates"] for one in told] == [4 * number for number in range(1, 7)]
    assert told[-1]["kl"] != 0
    assert told[-1]["dropped"] == 0


def test_a_batch_of_several_samples_is_of_those_that_came_first():
    optimizer = rl.AsyncSamples(rl.IMPALA, evaluators(rl.IMPALA, 2), samples=3)
    seen = []
    learner = optimizer._learner
    update = learner.update
    learner.update = lambda batch: (seen.append(batch["raw_observation"].clone()), update(batch))
    told = [optimizer.step() for _ in range(2)]
    assert [one["steps"] for one in told] == [3 * ROUND, 6 * ROUND]
    assert [one["lag"] for one in told] == [0, 1]
    width = seen[0].shape[1]
    assert width == 3 * NUM_ENV
    everyone = torch.cat(seen, 1).transpose(0, 1)
    assert len(everyone.flatten(1).unique(dim=0)) == 2 * width  # none twice, and none left empty


def test_what_has_come_before_others_are_late_stays_in_the_batch():
    (its,) = evaluators(rl.IMPALA, 1)
    optimizer = rl.AsyncSamples(rl.IMPALA, [its], samples=3)
    first, answers = optimizer.fleet.first, []

    def late_at_the_third():
        answers.append(None)
        if len(answers) == 3:
            raise EvaluatorLate("late")
        return first()

    optimizer.fleet.first = late_at_the_third
    with pytest.raises(EvaluatorLate):
        optimizer.step()
    assert optimizer.step()["steps"] == 3 * ROUND
    assert its._iteration == 3  # it was asked for no other


def test_what_is_too_old_is_left_out_and_counted():
    optimizer = rl.AsyncSamples(rl.IMPALA, evaluators(rl.IMPALA, 3), max_policy_lag=1)
    told = [optimizer.step() for _ in range(5)]
    assert all(one["lag"] <= 1 for one in told)
    assert told[-1]["steps"] == 5 * ROUND
    assert told[-1]["dropped"] > 0


def test_evaluators_get_the_newest_weights():
    its = evaluators(rl.IMPALA, 2)
    optimizer = rl.AsyncSamples(rl.IMPALA, its)
    for _ in range(4):
        optimizer.step()
    newest = parameters(optimizer)
    optimizer._in_flight.next(optimizer._batches)
    of_evaluators = [one._graph.parameters for one in its]
    got = [flat.packed(flat.data.detach()) for flat in of_evaluators]
    assert any(torch.equal(one, newest) for one in got)
    assert not all(torch.equal(one, newest) for one in got)  # the other one sampled before


def test_it_goes_on_from_a_file(tmp_path):
    first, second = (rl.AsyncSamples(rl.APPO, evaluators(rl.APPO, 2, **EPOCHS)) for _ in range(2))
    for _ in range(3):
        first.step()
    first.save(tmp_path / "state.pt")
    second.load(tmp_path / "state.pt")
    assert torch.equal(parameters(first), parameters(second))
    assert (second.steps, second.updates) == (first.steps, first.updates) == (3 * ROUND, 12)
    draws = [one._learner.generator.get_state() for one in (first, second)]
    assert torch.equal(*draws)
    assert second.step()["updates"] == 16


def test_what_is_under_way_when_a_file_is_loaded_is_left_out(tmp_path):
    optimizer = rl.AsyncSamples(rl.IMPALA, evaluators(rl.IMPALA, 3), samples=2)
    optimizer.step()
    optimizer.save(tmp_path / "state.pt")
    optimizer.step()
    before = optimizer.state_dict()["dropped"]
    optimizer.load(tmp_path / "state.pt")
    told = optimizer.step()
    assert told["lag"] == 0  # all of it was sampled with what was loaded
    assert told["dropped"] == before + 2


def test_a_batch_whose_update_fails_is_not_trained_on_again():
    optimizer = rl.AsyncSamples(rl.IMPALA, evaluators(rl.IMPALA, 1))
    update, batches = optimizer._learner.update, []

    def failing(batch):
        batches.append(batch["raw_observation"].clone())
        if len(batches) == 1:
            raise ArithmeticError("the first")
        update(batch)

    optimizer._learner.update = failing
    with pytest.raises(ArithmeticError):
        optimizer.step()
    optimizer.step()
    assert not torch.equal(*batches)


def test_a_batch_that_fills_up_when_a_file_is_loaded_is_left_out_and_counted(tmp_path):
    optimizer = rl.AsyncSamples(rl.IMPALA, evaluators(rl.IMPALA, 1), samples=3)
    rl.Local(rl.A2C, evaluators(rl.A2C, 1)).save(tmp_path / "state.pt")  # another one's goes, too
    first = optimizer.fleet.first

    def late():
        raise EvaluatorLate("late")

    optimizer.fleet.first = lambda: first() if not optimizer._lags else late()
    with pytest.raises(EvaluatorLate):
        optimizer.step()
    optimizer.fleet.first = first
    optimizer.load(tmp_path / "state.pt")
    assert optimizer.step()["dropped"] == 2  # what was in the batch, and what was under way


def test_a_function_changes_what_evaluators_get_and_the_policy_is_evaluated():
    def halve(graph):
        with torch.no_grad():
            graph.parameters.data.mul_(0.5)
        return graph.policy.network.head.weight.norm().item()

    optimizer = rl.AsyncSamples(rl.IMPALA, evaluators(rl.IMPALA, 2))
    optimizer.step()
    before = parameters(optimizer)
    (norm,) = optimizer.foreach_policy(halve)
    assert norm > 0
    assert torch.allclose(parameters(optimizer), before / 2)
    assert 8 <= optimizer.evaluate(num_env=3)["eval_return"] <= 500
    steps = optimizer.steps
    assert optimizer.step()["steps"] == steps + ROUND


class Mine(rl.IMPALA):
    """An algorithm of a user's that says by itself under what it runs."""

    class Settings(rl.IMPALA.Settings):
        learning_rate: float = 1e-3


class OnRows(rl.A2C):
    """Takes fresh rows, and says that it takes segments that are sent too."""

    class Settings(rl.A2C.Settings):
        optimizers = ("all_reduce", "local", "async_samples")

    def losses(self, batch):
        if "observations" not in batch.columns:
            return super().losses(batch)
        head = self.policy.network(batch["observations"])
        loss = head.square().mean()
        return rl.Losses(loss, dict.fromkeys(self.stats, loss.detach()))


def test_algorithms_of_a_users_own_run_under_what_they_say():
    for make, algorithm in (
        (rl.AsyncSamples, Mine), (rl.AsyncSamples, OnRows), (rl.Local, OnRows),
    ):  # fmt: skip
        optimizer = make(algorithm, evaluators(algorithm, 1))
        before = parameters(optimizer)
        optimizer.step()
        assert not torch.equal(parameters(optimizer), before), (make, algorithm)


class OfGames(rl.A2C):
    """Has no value at the end of a horizon, and takes none that was sent."""

    bootstrap = ("observation",)

    class Settings(AlgorithmConfig):
        pass


def test_what_does_not_fit_is_refused():
    said = r"AsyncSamples .* sent .* PPO on fresh .* Use AllReduce or Local, or IMPALA or APPO"
    with pytest.raises(RoleError, match=said):
        rl.AsyncSamples(rl.PPO, evaluators(rl.PPO, 1))
    with pytest.raises(RoleError, match=r"DQN on kept experience. Use Replay or Apex"):
        rl.AsyncSamples(rl.DQN, [rl.Evaluator("CartPole-v1", rl.DQN, num_env=2)])
    for make in (rl.Local, rl.AllReduce, rl.AsyncGradients, rl.ParameterServer):
        with pytest.raises(RoleError, match=r"IMPALA on sent experience. Use AsyncSamples"):
            make(rl.IMPALA, evaluators(rl.IMPALA, 1))
    for algorithm, under in ((AlphaZero, "tree_search"), (OfGames, "all_reduce")):
        said = rf"{algorithm.__name__} runs under {under}, .* Use one of ppo, a2c, pg, impala, appo"
        with pytest.raises(RoleError, match=said):
            rl.Evaluator("CartPole-v1", algorithm)
    for make in (rl.Local, rl.AsyncSamples):
        algorithm = rl.IMPALA if make is rl.AsyncSamples else rl.A2C
        for samples in (0, 2.5):
            with pytest.raises(
                RoleError, match=rf"samples={samples}; must be a whole number, 1 or"
            ):
                make(algorithm, evaluators(algorithm, 1), samples=samples)
    with pytest.raises(RoleError, match=r"max_policy_lag=-1; must be a whole number, 0 or more"):
        rl.AsyncSamples(rl.IMPALA, evaluators(rl.IMPALA, 1), max_policy_lag=-1)
    said = r"minibatches=3; must divide the 8 environments of a batch.*num_env=4 x samples=2"
    with pytest.raises(RoleError, match=said):
        rl.AsyncSamples(rl.APPO, evaluators(rl.APPO, 1, minibatches=3), samples=2)
    with pytest.raises(RoleError, match=r"algorithm.horizon=1; must be 2 or more where"):
        rl.AsyncSamples(rl.IMPALA, evaluators(rl.IMPALA, 1, horizon=1, recurrent={}))


@pytest.fixture
def actors(rl_runtime):
    """Makes evaluators that are actors."""

    def make(count, algorithm=rl.IMPALA, **settings):
        return [rl.Evaluator.remote(**described(algorithm, **settings)) for _ in range(count)]

    return make


def test_an_actor_learns_what_an_object_learns(actors):
    far = rl.AsyncSamples(rl.APPO, actors(1, rl.APPO, **EPOCHS), samples=2)
    near = rl.AsyncSamples(rl.APPO, evaluators(rl.APPO, 1, **EPOCHS), samples=2)
    for _ in range(3):
        told = far.step(), near.step()
    assert torch.allclose(parameters(far), parameters(near), atol=2e-5)
    assert told[0]["lag"] == told[1]["lag"]
    far.close()


def test_training_goes_on_when_an_evaluator_is_killed(actors):
    its = actors(2)
    optimizer = rl.AsyncSamples(rl.IMPALA, its)
    optimizer.step()
    before = runtime.process_id(its[1])
    os.kill(before, signal.SIGKILL)
    brought = 0
    while brought < 6 or runtime.process_id(its[1]) in (None, before):
        told = optimizer.step()
        brought += 1
    assert told["steps"] == (brought + 1) * ROUND
    assert parameters(optimizer).isfinite().all()
    optimizer.close()


def test_who_answers_nothing_is_named_and_one_of_two_is_waited_for_by_nobody(actors):
    its = actors(2)
    optimizer = rl.AsyncSamples(rl.IMPALA, its, timeout=timedelta(seconds=60))
    pids = [runtime.process_id(one) for one in its]
    optimizer.fleet.timeout = timedelta(seconds=1)

    def ask():  # they may have brought what they were asked for before they were stopped
        while True:
            optimizer.step()

    late = r"timed out after 1 s: evaluator 0, 1 has not"
    with stopped(*pids), pytest.raises(EvaluatorLate, match=late):
        ask()
    optimizer.fleet.timeout = timedelta(seconds=60)
    steps = optimizer.step()["steps"]
    with stopped(pids[1]):
        for number in range(1, 7):
            told = optimizer.step()
            assert told["steps"] == steps + number * ROUND
    while told["lag"] < 4:  # what it brings afterwards is old
        told = optimizer.step()
    assert told["dropped"] == 0
    optimizer.close()


@pytest.mark.slow
def test_the_example_runs(capsys):
    runtime.shutdown()  # as it starts its own
    example = runpy.run_path(str(EXAMPLE))
    try:
        assert 8 <= example["main"](steps=16 * 20 * 3) <= 500
    finally:
        runtime.shutdown()
    assert "evaluation" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("one_thread")
def test_cartpole_is_learned():
    keys = {"network": [64, 64], "activation": "tanh", "learning_rate": 1e-3, "horizon": 20}
    its = [
        rl.Evaluator("CartPole-v1", rl.IMPALA, num_env=8, seed=1, settings=keys) for _ in range(2)
    ]
    total_steps = 200_000
    optimizer = rl.AsyncSamples(rl.IMPALA, its, total_steps=total_steps)
    reached = 0.0
    while optimizer.steps < total_steps and reached < 200:
        told = optimizer.step()
        reached = told["return_mean"] or 0.0  # None: no episode has ended yet
    assert told["lag"] == 1
    assert reached >= 200
    assert optimizer.evaluate()["eval_return"] >= 130
