"""GMIs that have all roles (template tcg_ex) go on without the slowest of them."""

import pytest
import torch

import bodies_stragglers as bodies
import faults
import small_jobs
from gmi_drl.roles.state import checkpoint
from run_files import metrics
from small_jobs import job_file

ROUNDS, STEPS = 5, 16 * 8


pytestmark = pytest.mark.usefixtures("warm")


def launch(tmp_path, gmis=2, **algorithm):
    path = job_file(
        tmp_path,
        run={
            "total_steps": ROUNDS * STEPS, "checkpoint_every": 2, "eval_episodes": 0, "lineage": 1,
        },
        algorithm={"network": [16], "horizon": 16, "minibatches": 2, "epochs": 2, **algorithm},
        layout={"gmi_per_gpu": gmis},
        comm={"checksum_every": 1},
    )  # fmt: skip
    return small_jobs.launch(path, roles={"trainer": bodies.LateHolistic})


def check_dropped(told):
    """One GMI is left out in each round, in which it has come as far as it could."""
    dropped = [line["dropped_steps"] for line in told]
    assert set(dropped) <= {steps * 8 for steps in range(bodies.TAKEN + 1)}
    assert sum(dropped) > 0


@pytest.fixture
def quiet(tmp_path, monkeypatch):
    """Nobody is killed."""
    faults.script(monkeypatch, tmp_path / "none")


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param({}, id="ppo"),
        pytest.param({"recurrent": {"size": 8}}, id="lstm"),
        pytest.param({"name": "a2c", "minibatches": 1, "epochs": 1}, id="a2c"),
    ],
)
def test_what_is_learned_is_what_the_first_ones_learn_alone(tmp_path, quiet, algorithm):
    """The sample of who is late leaves no trace: parameters, moments, statistics are the same."""
    alone = launch(tmp_path, 1, **algorithm)
    both = launch(tmp_path, 2, drop_slowest=1, **algorithm)
    told = metrics(both.folder)
    assert [line["steps"] for line in told] == [STEPS * n for n in range(1, ROUNDS + 1)]
    check_dropped(told)
    states = [checkpoint.find(one.folder).load("shared") for one in (alone, both)]
    learned = (
        "parameters", "optimizer", "observation_normalizer", "value_normalizer", "updates",
        "noise_scale",
    )  # fmt: skip
    mine, its = [{key: state[key] for key in learned} for state in states]
    torch.testing.assert_close(its, mine, rtol=0, atol=0)
    for key in ("noise_scale", "policy_loss"):
        assert [line[key] for line in told] == [line[key] for line in metrics(alone.folder)]


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param((1, "simulate", 2), id="the late one samples"),
        pytest.param((0, "reduce", 2), id="the first one has sampled", marks=pytest.mark.slow),
        pytest.param((1, "reduce", 2), id="the late one was left out", marks=pytest.mark.slow),
        pytest.param((0, "simulate", 2), id="the first one samples", marks=pytest.mark.slow),
    ],
)
def test_a_gmi_that_is_killed_costs_an_iteration_and_the_late_one_is_dropped_still(
    tmp_path, monkeypatch, moment
):
    path = tmp_path / "faults"
    faults.script(monkeypatch, path, moment)
    result = launch(tmp_path, drop_slowest=1)
    assert faults.struck(path) == result.restarts == 1
    told = metrics(result.folder)
    assert [line["steps"] for line in told] == [STEPS * n for n in range(1, ROUNDS + 1)]
    check_dropped(told)
