"""Evolution end to end: the same policy for any number of GMIs, after kills, and after a resume."""

import pytest

import bodies_recovery
import faults
import gmi_drl
from gmi_drl.roles.state import checkpoint
from run_files import metrics
from small_jobs import job_file, launch

ROUNDS = 6
LENGTH = 20  # steps of an episode of Pendulum, none of which ends before
POPULATION = 8


pytestmark = pytest.mark.usefixtures("warm")


def config(tmp_path, gmis=1, rounds=ROUNDS):
    return job_file(
        tmp_path,
        run={
            "checkpoint_every": 2, "eval_episodes": 4, "seed": 3,
            "total_steps": rounds * POPULATION * LENGTH,
        },
        env={"id": "Pendulum-v1", "num_env": 2, "max_episode_steps": LENGTH},
        algorithm={"name": "es", "network": [8], "population": POPULATION},
        layout={"gmi_per_gpu": gmis},
        comm={"checksum_every": 1},
    )  # fmt: skip


def learned(result):
    state = checkpoint.find(result.folder).load("shared")
    return [
        state["parameters"].numpy().tobytes(),
        state["observation_normalizer"]["moments"].numpy().tobytes(),
    ]


@pytest.fixture(scope="module")
def alone(tmp_path_factory, warm):
    """A run of one GMI that was never disturbed."""
    return launch(config(tmp_path_factory.mktemp("alone")))


def test_two_gmis_learn_what_one_does(tmp_path, alone):
    result = launch(config(tmp_path, gmis=2))
    assert (result.state, result.iteration) == ("finished", ROUNDS)
    assert learned(result) == learned(alone)
    mine, its = metrics(result.folder), metrics(alone.folder)
    assert [line["return_mean"] for line in mine] == pytest.approx(
        [line["return_mean"] for line in its]
    )
    assert {(line["episodes"], line["nan_returns"]) for line in mine} == {(POPULATION, 0)}
    assert all(len(line["gmi_seconds"]) == 2 for line in mine)
    assert mine[-1]["steps"] == ROUNDS * POPULATION * LENGTH
    assert result.gmis[0]["eval_episodes"] == 4


@pytest.mark.parametrize(
    "moments",
    [
        [(1, "simulate", 3)],
        [(0, "simulate", 2), (1, "checkpoint", 4)],
        [(0, "committed", 4)],
        [(1, "evaluate", 6)],
    ],
    ids=lambda moments: " and ".join(f"{g} at {p} {i}" for g, p, i in moments),
)
def test_kills_change_nothing_of_what_is_learned(tmp_path, monkeypatch, alone, moments):
    path = tmp_path / "faults"
    faults.script(monkeypatch, path, *moments)
    roles = {"trainer": bodies_recovery.MortalWithoutLoss}
    result = launch(config(tmp_path, gmis=2), roles=roles)
    assert faults.struck(path) == result.restarts == len(moments)
    assert (result.state, result.iteration) == ("finished", ROUNDS)
    assert [line["iteration"] for line in metrics(result.folder)] == [1, 2, 3, 4, 5, 6]
    assert learned(result) == learned(alone)


def test_a_resumed_run_is_one_that_was_never_stopped(tmp_path, alone):
    part = launch(config(tmp_path, rounds=4))
    assert part.iteration == 4
    resumed = launch(None, f"run.total_steps={ROUNDS * POPULATION * LENGTH}", resume=part.folder)
    assert resumed.iteration == ROUNDS
    assert learned(resumed) == learned(alone)


def test_what_was_evolved_acts_afterwards(alone):
    told = gmi_drl.evaluate(alone.folder, episodes=4)
    assert told.mean == pytest.approx(alone.eval_return)
