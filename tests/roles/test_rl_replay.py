"""Replay and Ape-X over evaluators from Python: the same learning as in GMIs, the ratio held."""

import math
import os
import runpy
import signal
from pathlib import Path

import pytest
import torch

import gmi_drl
from gmi_drl import rl, runtime
from gmi_drl.roles.errors import EvaluatorLate, RoleError

START, RATIO, HORIZON, NUM_ENV, SEED = 32, 0.25, 4, 4, 3
SETTINGS = {
    "network": [16, 8], "horizon": HORIZON, "replay_start": START, "batch_size": 16,
    "replay_capacity": 500, "updates_per_row": RATIO,
}  # fmt: skip
PRIORITIES = {"sampler": "prioritized", "n_step": 3}
ENVIRONMENT = {rl.DQN: "CartPole-v1"}  # of the others Pendulum-v1
ROUND = HORIZON * NUM_ENV
EXAMPLE = Path(__file__).parents[2] / "examples" / "rl" / "apex.py"


def described(algorithm, **settings):
    env = ENVIRONMENT.get(algorithm, "Pendulum-v1")
    keys = {**SETTINGS, **settings}
    return {"env": env, "algorithm": algorithm, "num_env": NUM_ENV, "seed": SEED, "settings": keys}


def evaluators(algorithm, count, **settings):
    return [rl.Evaluator(**described(algorithm, **settings)) for _ in range(count)]


def parameters(optimizer):
    its = optimizer.graph.parameters
    return its.packed(its.data.detach())


def due(steps):
    return math.ceil(max(steps - START, 0) * RATIO)


@pytest.mark.parametrize("algorithm", [rl.DQN, rl.SAC, rl.TD3, rl.DDPG], ids=lambda a: a.__name__)
def test_with_one_evaluator_both_learn_the_same_bit_for_bit(algorithm):
    told = []
    both = [make(algorithm, evaluators(algorithm, 1)) for make in (rl.Replay, rl.Apex)]
    before = parameters(both[0])
    for number in range(1, 9):
        told = [optimizer.step() for optimizer in both]
        assert [one["updates"] for one in told] == [due(number * ROUND)] * 2
    assert told[1]["lag"] == 0
    assert torch.equal(parameters(both[0]), parameters(both[1]))
    assert not torch.equal(parameters(both[0]), before)


@pytest.mark.parametrize(
    "more", [PRIORITIES, pytest.param({"recurrent": {"size": 6}}, marks=pytest.mark.slow)]
)
def test_it_learns_what_a_run_of_one_gmi_learns_bit_for_bit(rl_runtime, more, tmp_path):
    rounds = 12
    config = {
        "version": 1, "env": {"id": "CartPole-v1", "num_env": NUM_ENV},
        "run": {
            "folder": str(tmp_path / "runs"), "total_steps": rounds * ROUND, "seed": SEED,
            "eval_episodes": 0,
        },
        "algorithm": {"name": "dqn", **SETTINGS, "batch_size": 8, **more},
        "hardware": {"num_gpus": 1},
        "layout": {"template": "tcg_ex", "gmi_per_gpu": 1},
    }  # fmt: skip
    result = gmi_drl.launch(config, view="none")
    newest = max((result.folder / "checkpoints").iterdir())
    of_gmi = torch.load(newest / "shared.pt", weights_only=True)["parameters"]
    its = evaluators(rl.DQN, 1, batch_size=8, **more)
    optimizer = rl.Replay(rl.DQN, its, total_steps=rounds * ROUND)
    for _ in range(rounds):
        optimizer.step()
    assert optimizer.updates == due(rounds * ROUND) > 0
    assert torch.equal(parameters(optimizer), of_gmi)


def test_evaluators_lie_side_by_side_and_explore_unlike_each_other():
    optimizer = rl.Replay(rl.DQN, its := evaluators(rl.DQN, 2, epsilon=0.4, epsilon_alpha=7.0))
    told = optimizer.step()
    assert (told["steps"], told["replay_rows"]) == (2 * ROUND, 2 * ROUND)
    its[1].sample(optimizer.graph.acting(), 10**9)
    number = torch.arange(NUM_ENV, 2 * NUM_ENV) / (2 * NUM_ENV - 1)
    assert torch.allclose(its[1]._graph.policy.epsilon, 0.4 ** (1 + 7 * number))


def test_evaluators_give_first_priorities():
    optimizer = rl.Apex(rl.DQN, evaluators(rl.DQN, 2, **PRIORITIES))
    optimizer.step()
    given = optimizer._replay._replay._sampler._tree.priorities[:ROUND]
    assert (given > 0).all()
    assert given.unique().numel() > ROUND // 2
    together = rl.Replay(rl.DQN, evaluators(rl.DQN, 1, **PRIORITIES))
    together.step()  # as in GMIs that sample in turn: the greatest so far
    assert together._replay._replay._sampler._tree.priorities[:ROUND].unique().numel() == 1


@pytest.mark.parametrize("make", [rl.Replay, rl.Apex])
@pytest.mark.parametrize("saved", [True, False])
def test_it_goes_on_from_a_file(make, saved, tmp_path):
    keys = {**PRIORITIES, "replay_save": saved}
    first, second = (make(rl.DQN, evaluators(rl.DQN, 2, **keys)) for _ in range(2))
    for _ in range(8):
        first.step()
    first.save(tmp_path / "state.pt")
    second.load(tmp_path / "state.pt")
    assert torch.equal(parameters(first), parameters(second))
    assert (second.steps, second.updates) == (first.steps, first.updates)
    its = [optimizer._replay._replay for optimizer in (first, second)]
    if saved:
        (mine, at), (theirs, there) = (one.next() for one in its)
        assert torch.equal(at, there)
        assert all(torch.equal(mine[name], theirs[name]) for name in mine.columns)
        assert second.step()["updates"] == due(second.steps) - 1  # one was drawn by this test
        return
    assert len(its[1]) == 0
    before, steps = second.updates, second.steps
    while second.step()["replay_rows"] < START:  # it is filled anew first
        assert second.updates == before
    second.step()
    assert second.updates == before + math.ceil((second.steps - steps - START) * RATIO)


def test_after_a_round_that_was_late_each_is_asked_for_one_thing_again(monkeypatch):
    optimizer = rl.Replay(rl.DQN, evaluators(rl.DQN, 2))

    def nobody_in_time():
        raise EvaluatorLate

    with monkeypatch.context() as patched:
        patched.setattr(optimizer.fleet, "first", nobody_in_time)
        with pytest.raises(EvaluatorLate):
            optimizer.step()
    assert optimizer.step()["dropped"] == 2  # of the policy of before
    assert not optimizer.fleet.busy


def test_what_does_not_fit_is_refused():
    with pytest.raises(RoleError, match=r"Local trains on fresh experience.*Use Replay or Apex"):
        rl.Local(rl.DQN, evaluators(rl.DQN, 1))
    fresh = rl.Evaluator("CartPole-v1", rl.A2C, settings={"network": [8]})
    with pytest.raises(RoleError, match=r"Apex trains on kept experience.*Use AllReduce or Local"):
        rl.Apex(rl.A2C, [fresh])
    several = evaluators(rl.DQN, 1, hindsight=0.8, n_step=3)
    with pytest.raises(RoleError, match=r"hindsight=0.8; rewards of n_step steps would be of sev"):
        rl.Replay(rl.DQN, several)


def test_the_ratio_is_held_when_an_evaluator_is_killed(rl_runtime):
    its = [rl.Evaluator.remote(**described(rl.DQN, **PRIORITIES)) for _ in range(2)]
    optimizer = rl.Apex(rl.DQN, its)
    optimizer.step()
    before = runtime.process_id(its[1])
    os.kill(before, signal.SIGKILL)
    rounds = 0
    while rounds < 8 or runtime.process_id(its[1]) in (None, before):
        told = optimizer.step()
        assert told["updates"] == due(told["steps"])
        rounds += 1
    assert optimizer.updates > 0
    optimizer.close()


@pytest.mark.slow
def test_the_example_runs_to_its_evaluation():
    runtime.shutdown()  # as it starts its own
    threads = torch.get_num_threads()
    try:
        score = runpy.run_path(str(EXAMPLE))["main"](steps=1_600)
    finally:
        torch.set_num_threads(threads)
        runtime.shutdown()
    assert 8 <= score <= 500
