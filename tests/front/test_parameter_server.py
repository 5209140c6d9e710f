"""A parameter server over GMIs: pieces of the parameters, and agents that send gradients."""

import os
from dataclasses import replace

import pytest
import torch

import bodies_tdg_ex as bodies
import faults
from gmi_drl.launcher.start import jobs
from gmi_drl.placement import Device, Topology, check, load_config, parameter_server
from gmi_drl.roles.state import checkpoint
from run_files import metrics
from small_jobs import job_file, launch

ITERATIONS, SAMPLES = 6, 8 * 8


pytestmark = pytest.mark.usefixtures("warm")


def config(tmp_path, agents=1, template="parameter_server", **changes):
    optimizer = template if template == "parameter_server" else "all_reduce"
    return job_file(
        tmp_path,
        changes,
        run={
            "total_steps": ITERATIONS * SAMPLES * agents, "checkpoint_every": 2,
            "eval_episodes": 4, "seed": 3,
        },
        algorithm={
            "name": "a2c", "network": [32, 16], "horizon": 8, "learning_rate": 3e-3,
            "normalize_value": False, "reward_scale": 0.1, "optimizer": optimizer,
        },
        layout={"template": template, "gmi_per_gpu": agents + (template != "tcg_ex")},
        comm={"checksum_every": 1},
    )  # fmt: skip


def several(monkeypatch, agents, shards):
    """From now on launches have so many agents and shards, which share all cores there are."""
    cores = tuple(sorted(os.sched_getaffinity(0)))
    there = Device(0, "cpu", "group 0", cores)
    wide = replace(there, cores=tuple(range(agents + shards)))
    layout = parameter_server(Topology((wide,)), agents + shards, 8)
    serving = layout.gmis[0]
    gmis = [
        replace(serving, gmi_id=one.gmi_id, cores=cores)
        if one.gmi_id < agents
        else replace(layout.gmis[-1], gmi_id=one.gmi_id, cores=cores)
        for one in layout.gmis
    ]
    layout = replace(layout, topology=Topology((there,)), gmis=tuple(gmis))
    monkeypatch.setattr(jobs, "planned", lambda *_, **more: layout)
    monkeypatch.setattr(jobs, "layout_faults_of", lambda config, layout: [])


def learned(result):
    return checkpoint.find(result.folder).load("shared")


@pytest.mark.parametrize(
    "shards", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)]
)
def test_one_agent_and_any_number_of_pieces_are_a2c_in_one_gmi(tmp_path, monkeypatch, shards):
    """Also its observations' statistics and Adam's state; the policy is on the whole evaluated."""
    together = launch(config(tmp_path, template="tcg_ex"))
    if shards > 1:
        several(monkeypatch, 1, shards)
    apart = launch(config(tmp_path))
    mine, its = learned(apart), learned(together)
    assert torch.allclose(mine["parameters"], its["parameters"], atol=1e-5)
    moments = [state["observation_normalizer"]["moments"] for state in (mine, its)]
    assert moments[0][0] == ITERATIONS * SAMPLES
    assert torch.allclose(*moments, rtol=1e-5)
    adam, other = (state["optimizer"]["state"][0] for state in (mine, its))
    assert adam["step"] == other["step"] == ITERATIONS
    for name in ("exp_avg", "exp_avg_sq"):
        assert torch.allclose(adam[name], other[name], rtol=1e-3, atol=1e-6)
    for one, other in zip(metrics(apart.folder), metrics(together.folder), strict=True):
        assert one["episodes"] == other["episodes"]
        assert one["gradient_lag_max"] == 0
        for name in ("policy_loss", "value_loss", "entropy", "learning_rate"):
            assert one[name] == pytest.approx(other[name], rel=1e-3, abs=1e-5), name
    assert apart.eval_return > 0  # of the policy put together


@pytest.mark.slow
def test_gradients_of_several_agents_are_applied_to_several_pieces(tmp_path, monkeypatch):
    several(monkeypatch, 3, 2)
    rounds = 40
    path = config(tmp_path, 3, run__total_steps=rounds * 3 * SAMPLES)
    result = launch(path)
    lines = metrics(result.folder)
    assert [line["steps"] for line in lines] == [n * 3 * SAMPLES for n in range(1, rounds + 1)]
    state = learned(result)
    assert state["optimizer"]["state"][0]["step"] == 3 * rounds
    assert state["observation_normalizer"]["moments"][0] == 3 * rounds * SAMPLES
    assert max(line["gradient_lag_max"] for line in lines) >= 1
    # One that a busy machine holds up for long is one of many: all together are as old as each
    # gradient under way makes the two others.
    assert sum(line["gradient_lag_mean"] for line in lines) / rounds <= 6


@pytest.mark.parametrize(
    "moments",
    [
        pytest.param([(0, "ordered", 3)], id="agent ordered"),
        pytest.param([(1, "brought", 3)], id="agent brought", marks=pytest.mark.slow),
        pytest.param([(0, "written", 4)], id="agent has written", marks=pytest.mark.slow),
        pytest.param([(2, "took", 3)], id="first piece took"),
        pytest.param([(3, "took", 3)], id="last piece took"),
        pytest.param([(2, "committed", 4)], id="first piece committed", marks=pytest.mark.slow),
        pytest.param([(3, "dismissed", 6)], id="last piece dismissed", marks=pytest.mark.slow),
        pytest.param(
            [(0, "ordered", 2, "pause"), (3, "took", 3, "SIGSTOP")], id="last piece stopped",
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_who_is_killed_or_stopped_comes_back_and_the_run_is_whole(tmp_path, monkeypatch, moments):
    several(monkeypatch, 2, 2)
    path = tmp_path / "faults"
    faults.script(monkeypatch, path, *moments)
    roles = {"agent": bodies.MortalAgent, "trainer": bodies.MortalTrainer}
    result = launch(config(tmp_path, 2, run__hang_timeout_s=6.0), roles=roles)
    faults.check_restarts(result, path, moments)
    assert (result.state, result.iteration) == ("finished", ITERATIONS)
    assert [line["iteration"] for line in metrics(result.folder)] == [1, 2, 3, 4, 5, 6]
    state = learned(result)
    assert state["optimizer"]["state"][0]["step"] == 2 * ITERATIONS


@pytest.mark.slow
def test_a_resumed_run_is_one_that_was_never_stopped(tmp_path, monkeypatch):
    """Of one agent: with several it depends on who is first."""
    several(monkeypatch, 1, 2)
    whole = launch(config(tmp_path, algorithm__schedule="constant"))
    part = launch(config(tmp_path, run__total_steps=4 * SAMPLES, algorithm__schedule="constant"))
    resumed = launch(None, f"run.total_steps={ITERATIONS * SAMPLES}", resume=part.folder)
    assert resumed.iteration == ITERATIONS
    mine, its = (learned(result)["parameters"] for result in (resumed, whole))
    assert torch.equal(mine, its)


def told(*words):
    base = {
        "version": 1, "env": {"id": "CartPole-v1", "num_env": 8},
        "algorithm": {"name": "a2c", "normalize_value": False},
    }  # fmt: skip
    return [str(fault) for fault in check(load_config(base, words), Topology.from_cores(range(8)))]


def test_what_cannot_run_so_is_refused():
    here = ["layout.template=parameter_server", "layout.gmi_per_gpu=3"]
    server = "algorithm.optimizer=parameter_server"
    assert not told(server, *here)
    assert not told(server)  # with the template that it needs
    (fault,) = told(server, "layout.template=tcg_ex")
    assert "optimizer parameter_server needs template parameter_server" in fault
    (fault,) = told(*here)
    assert "optimizer all_reduce does not run in template parameter_server" in fault
    (fault,) = told(server, *here, "algorithm.normalize_value=true")
    assert "algorithm.normalize_value=True; values are kept by changing" in fault
    (fault,) = told(server, "layout.gmi_per_gpu=1")
    assert "Use 2 or more" in fault
    (fault,) = told(server, *here, "algorithm.drop_slowest=1")
    assert "applied as it comes, and nobody waits" in fault
