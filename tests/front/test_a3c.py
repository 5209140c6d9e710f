"""Gradients that agents send: A3C end to end, whose one agent is A2C, and GMIs that are killed."""

import pytest
import torch

import bodies_tdg_ex as bodies
import faults
from gmi_drl.placement import ConfigError, Topology, check, load_config
from gmi_drl.roles.state import checkpoint
from run_files import metrics
from small_jobs import job_file, launch

ITERATIONS, SAMPLES = 6, 8 * 8


pytestmark = pytest.mark.usefixtures("warm")


def config(tmp_path, template="tdg_ex", name="a3c", **changes):
    """A small job of one agent."""
    return job_file(
        tmp_path,
        changes,
        run={
            "total_steps": ITERATIONS * SAMPLES, "checkpoint_every": 2, "eval_episodes": 4,
            "seed": 3,
        },
        algorithm={"name": name, "network": [32, 16], "horizon": 8, "learning_rate": 3e-3},
        layout={"template": template, "gmi_per_gpu": 1 + (template == "tdg_ex")},
    )  # fmt: skip


@pytest.mark.slow
def test_one_agent_that_sends_gradients_is_a2c_in_one_gmi(tmp_path):
    apart = launch(config(tmp_path))
    together = launch(config(tmp_path, "tcg_ex", "a2c"))
    mine, its = (checkpoint.find(result.folder).load("shared") for result in (apart, together))
    assert torch.allclose(mine["parameters"], its["parameters"], atol=1e-5)
    for normalizer in ("observation_normalizer", "value_normalizer"):
        first, second = (state[normalizer]["moments"] for state in (mine, its))
        assert first[0] == ITERATIONS * SAMPLES
        assert torch.allclose(first, second, rtol=1e-5)
    for one, other in zip(metrics(apart.folder), metrics(together.folder), strict=True):
        assert one["episodes"] == other["episodes"]
        assert one["gradient_lag_max"] == 0
        for name in ("policy_loss", "value_loss", "entropy", "learning_rate"):
            assert one[name] == pytest.approx(other[name], rel=1e-3, abs=1e-5), name
    assert apart.eval_return == pytest.approx(together.eval_return, rel=0.2)


@pytest.mark.parametrize(
    "moments",
    [
        pytest.param([(0, "ordered", 3)], id="agent ordered"),
        pytest.param([(0, "brought", 3)], id="agent brought"),
        pytest.param([(0, "written", 4)], id="agent has written", marks=pytest.mark.slow),
        pytest.param([(1, "took", 3)], id="trainer took"),
        pytest.param([(1, "committed", 4)], id="trainer committed", marks=pytest.mark.slow),
        pytest.param([(1, "dismissed", 6)], id="trainer dismissed", marks=pytest.mark.slow),
        pytest.param(
            [(1, "took", 2, "pause"), (0, "ordered", 3, "SIGSTOP")], id="agent stopped",
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_who_is_killed_or_stopped_comes_back_and_the_run_is_whole(tmp_path, monkeypatch, moments):
    path = tmp_path / "faults"
    faults.script(monkeypatch, path, *moments)
    roles = {"agent": bodies.MortalAgent, "trainer": bodies.MortalTrainer}
    result = launch(config(tmp_path, run__hang_timeout_s=6.0), roles=roles)
    faults.check_restarts(result, path, moments)
    assert (result.state, result.iteration) == ("finished", ITERATIONS)
    assert [line["iteration"] for line in metrics(result.folder)] == [1, 2, 3, 4, 5, 6]


def test_a_resumed_run_is_one_that_was_never_stopped(tmp_path):
    """Of one agent: with several it depends on who is first."""
    whole = launch(config(tmp_path, algorithm__schedule="constant"))
    part = launch(config(tmp_path, run__total_steps=4 * SAMPLES, algorithm__schedule="constant"))
    resumed = launch(None, f"run.total_steps={ITERATIONS * SAMPLES}", resume=part.folder)
    assert resumed.iteration == ITERATIONS
    mine, its = (
        checkpoint.find(result.folder).load("shared")["parameters"] for result in (resumed, whole)
    )
    assert torch.equal(mine, its)


def told(*words):
    base = {"version": 1, "env": {"id": "CartPole-v1", "num_env": 8}}
    cores = Topology.from_cores(range(8), 2 if "two" in words else 1)
    words = [word for word in words if word != "two"]
    return [str(fault) for fault in check(load_config(base, words), cores)]


def test_where_gradients_cannot_be_sent_it_is_said():
    assert not told("algorithm.name=a3c")  # with the template that it needs
    (fault,) = told("algorithm.name=a3c", "layout.template=tcg_ex")
    assert fault.startswith("layout.template='tcg_ex'; under async_gradients agents send gradients")
    assert not told("algorithm.name=a3c", "layout.template=tdg_ex", "layout.gmi_per_gpu=2")
    two = ("algorithm.name=a3c", "layout.template=tdg_ex", "layout.gmi_per_gpu=2", "two")
    (fault,) = told(*two)
    assert "one GMI holds the parameters, and the layout has 2 trainers" in fault
    for name, optimizer in (("a2c", "async_gradients"), ("ppo", "local")):
        words = f"algorithm.name={name}", f"algorithm.optimizer={optimizer}"
        assert not told(*words)
        (fault,) = told(*words, "layout.template=tcg_ex")
        assert f"under {optimizer} agents send" in fault
        assert "Use tdg_ex" in fault
    words = ("algorithm.optimizer=local", "layout.template=tdg_ex", "layout.gmi_per_gpu=2")
    assert not told(*words)
    with pytest.raises(ConfigError, match="the algorithm runs under all_reduce or local"):
        told("algorithm.optimizer=async_gradients")
