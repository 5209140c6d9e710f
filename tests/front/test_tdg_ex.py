"""Template tdg_ex, end to end: a trainer learns from its agents, in turn with them."""

import itertools
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import bodies_tdg_ex as bodies
import faults
import gmi_drl
import killers
from gmi_drl.gmi import GmiDied
from gmi_drl.gmi.backends.cpu import CpuBackend
from gmi_drl.launcher.start import jobs
from gmi_drl.placement import Device, Topology, check, load_config, tdg_ex
from gmi_drl.placement.templates import rollout_workers_of
from gmi_drl.roles.state import checkpoint
from run_files import metrics
from small_jobs import job_file, launch

EXAMPLE = Path(__file__).parents[2] / "examples" / "tdg_ex.yaml"
ITERATIONS = 6


pytestmark = pytest.mark.usefixtures("warm")


def config(tmp_path, template="tdg_ex", agents=1, **changes):
    return job_file(
        tmp_path,
        changes,
        run={
            "total_steps": ITERATIONS * 16 * 8 * agents, "checkpoint_every": 2, "eval_episodes": 4,
            "seed": 3,
        },
        algorithm={"network": [32, 16], "horizon": 16, "minibatches": 2, "epochs": 2},
        layout={"template": template, "gmi_per_gpu": agents + (template == "tdg_ex")},
        comm={"checksum_every": 1},
    )  # fmt: skip


def several(monkeypatch, agents=1, devices=1, num_env=8):
    """From now on launches have this layout, whose GMIs share all cores there are."""
    cores = tuple(sorted(os.sched_getaffinity(0)))
    there = [Device(i, "cpu", f"group {i}", cores) for i in range(devices)]
    narrow = [replace(one, cores=tuple(range(agents + 1))) for one in there]
    layout = tdg_ex(Topology(tuple(narrow)), agents + 1, num_env)
    gmis = tuple(replace(gmi, cores=cores) for gmi in layout.gmis)
    layout = replace(layout, topology=Topology(tuple(there)), gmis=gmis)
    monkeypatch.setattr(jobs, "planned", lambda *_, **more: layout)
    return layout


def shared(folder):
    return checkpoint.find(folder).load("shared")


def learned(folder):
    """What a run computed, without what a clock measured."""
    untimed = ("return_mean", "length_mean", "episodes", "steps", "kl", "policy_loss")
    return [{key: line[key] for key in untimed} for line in metrics(folder)]


# The same as co-located ---------------------------------------------------------------------------


@pytest.mark.parametrize("env", ["CartPole-v1", pytest.param("Hopper-v5", marks=pytest.mark.slow)])
def test_an_agent_and_its_trainer_learn_what_one_gmi_learns_bit_for_bit(tmp_path, env):
    apart = launch(config(tmp_path, env__id=env))
    together = launch(config(tmp_path, "tcg_ex", env__id=env))
    assert learned(apart.folder) == learned(together.folder)
    mine, its = shared(apart.folder), shared(together.folder)
    assert torch.equal(mine["parameters"], its["parameters"])
    for normalizer in ("observation_normalizer", "value_normalizer"):
        assert torch.equal(mine[normalizer]["moments"], its[normalizer]["moments"])
    adam, other = (state["optimizer"]["state"][0] for state in (mine, its))
    assert torch.equal(adam["exp_avg_sq"], other["exp_avg_sq"])


def test_two_agents_are_one_gmi_with_all_their_environments(tmp_path, monkeypatch):
    """Up to rounding: networks are applied to other numbers of rows at once."""
    # One minibatch: an order of rows would be another one, as they lie otherwise.
    job = {"run__eval_episodes": 0, "algorithm__minibatches": 1, "algorithm__schedule": "constant"}
    alone = launch(
        config(tmp_path, "tcg_ex", env__num_env=16, run__total_steps=ITERATIONS * 256, **job),
        roles={"trainer": bodies.ToyHolistic},
    )
    several(monkeypatch, agents=2)
    result = launch(
        config(tmp_path, agents=2, **job),
        roles={"agent": bodies.ToyAgent, "trainer": bodies.ToyTrainer},
    )
    assert result.steps == alone.steps
    places = torch.load(result.folder / "seen.pt")[0, :, 0] * 5
    assert torch.allclose(places, torch.arange(16.0))  # in the order of the agents
    mine, its = shared(result.folder), shared(alone.folder)
    assert torch.allclose(mine["parameters"], its["parameters"], rtol=1e-4, atol=1e-5)
    moments = "observation_normalizer"
    assert torch.allclose(mine[moments]["moments"], its[moments]["moments"])


@pytest.mark.slow
def test_threads_of_one_process_learn_the_same(tmp_path, monkeypatch):
    """As green contexts have them; the one process may die as any other."""
    apart = launch(config(tmp_path))
    monkeypatch.setattr(CpuBackend, "gmis_are_threads", True)
    together = launch(config(tmp_path))
    assert torch.equal(shared(apart.folder)["parameters"], shared(together.folder)["parameters"])
    assert learned(apart.folder) == learned(together.folder)
    path = tmp_path / "faults"
    faults.script(monkeypatch, path, (0, "simulate", 3))
    result = launch(config(tmp_path), roles=MORTAL)
    assert (faults.struck(path), result.iteration, result.restarts) == (1, ITERATIONS, 2)


@pytest.mark.slow
def test_trainers_of_several_devices_hold_one_policy(tmp_path, monkeypatch, learning_curve):
    several(monkeypatch, agents=1, devices=2)
    result = launch(config(tmp_path, run__total_steps=ITERATIONS * 256))
    assert (result.iteration, result.steps) == (ITERATIONS, ITERATIONS * 256)
    assert result.gmis[1] == result.gmis[3]  # and their parameters, by comm.checksum_every
    assert [answer["steps"] for answer in result.gmis[::2]] == [ITERATIONS * 128] * 2
    (last,) = metrics(result.folder)[-1:]
    assert {"simulate_s", "infer_s", "send_s", "wait_s", "train_s", "reduce_s"} < last.keys()
    assert result.curve.stat().st_size > 10_000


def test_agents_work_for_the_trainer_of_their_device():
    devices = tuple(Device(i, "cpu", f"group {i}", tuple(range(4))) for i in range(2))
    layout = tdg_ex(Topology(devices), 4, 8)
    assert rollout_workers_of(layout) == {3: [0, 1, 2], 7: [4, 5, 6]}
    without = tuple(g if g.gmi_id != 3 else replace(g, roles=("simulator", "agent"))
                    for g in layout.gmis)  # fmt: skip
    assert rollout_workers_of(replace(layout, gmis=without)) == {7: [0, 1, 2, 3, 4, 5, 6]}
    two = tuple(g if g.gmi_id != 2 else replace(g, roles=("trainer",)) for g in layout.gmis)
    assert rollout_workers_of(replace(layout, gmis=two)) == {2: [0], 3: [1], 7: [4, 5, 6]}


# The end, and going on ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("env", ["CartPole-v1", "Hopper-v5"])
def test_a_resumed_run_equals_one_that_was_never_stopped(tmp_path, env):
    path = config(tmp_path, env__id=env)
    whole = launch(path)
    part = launch(path, f"run.total_steps={3 * 128}")
    assert sorted(one.name for one in checkpoint.find(part.folder).folder.iterdir()) == [
        "gmi0.pt", "gmi1.pt", "manifest.json", "shared.pt"
    ]  # fmt: skip
    resumed = launch(None, f"run.total_steps={ITERATIONS * 128}", resume=part.folder)
    assert torch.equal(shared(whole.folder)["parameters"], shared(resumed.folder)["parameters"])
    assert learned(whole.folder) == learned(resumed.folder)
    assert resumed.eval_return == whole.eval_return


@pytest.mark.slow
def test_a_run_that_is_asked_to_stop_ends_its_iteration_and_can_go_on(tmp_path):
    path = config(tmp_path)
    whole = launch(path)
    stopped = launch(path, roles={"trainer": bodies.StopsEarly})
    assert stopped.iteration == 3
    resumed = launch(None, resume=stopped.folder)
    assert resumed.iteration == ITERATIONS
    assert torch.equal(shared(whole.folder)["parameters"], shared(resumed.folder)["parameters"])


def test_a_target_return_ends_the_run_for_agents_too(tmp_path):
    result = launch(config(tmp_path, run__target_return=1.0, run__total_steps=10**6))
    assert (result.state, result.eval_return > 0) == ("finished", True)
    assert result.gmis[0]["steps"] == result.steps < 10**5
    again = launch(None, resume=result.folder)
    assert (again.state, again.iteration) == ("finished", result.iteration)


# Deaths -------------------------------------------------------------------------------------------

ONE_DEVICE = [
    [(0, "start", 0)],
    [(0, "simulate", 3)],
    [(0, "ordered", 0)],
    [(0, "brought", 3)],
    [(0, "checkpoint", 4)],
    [(0, "written", 4)],
    [(0, "left", 6)],
    [(1, "spaces", 0)],
    [(1, "assembled", 0)],
    [(1, "took", 3)],
    [(1, "reduce", 3)],
    [(1, "parts written", 4)],
    [(1, "checkpoint", 4)],
    [(1, "committed", 4)],
    [(1, "trained", 6)],
    [(1, "dismissed", 6)],
    [(1, "evaluate", 6)],
    [(1, "finished", 6)],
    [(0, "simulate", 3), (0, "simulate", 3)],
    [(0, "brought", 3), (1, "took", 3)],
    [(1, "took", 3), (0, "ordered", 3)],
    [(0, "written", 4), (1, "parts written", 4), (0, "checkpoint", 4)],
    [(0, "left", 6), (1, "dismissed", 6)],
]
QUICK = (1, 3, 4, 9, 11, 15)


def points(moments):
    return " and ".join(" ".join(map(str, moment)) for moment in moments)


def check_whole(result, path, moments):
    faults.check_restarts(result, path, moments)
    assert (result.state, result.iteration) == ("finished", ITERATIONS)
    assert [line["iteration"] for line in metrics(result.folder)] == list(range(1, ITERATIONS + 1))
    assert result.eval_return > 0
    checkpoints = sorted(entry.name for entry in (result.folder / "checkpoints").iterdir())
    assert checkpoints == ["iteration_000002", "iteration_000004", "iteration_000006"]
    for name in checkpoints:  # none is torn, and nobody's part is missing
        found = checkpoint.find(result.folder / "checkpoints" / name)
        for gmi_id in range(len(result.gmis)):
            assert "torn" not in found.load(f"gmi{gmi_id}")


MORTAL = {"agent": bodies.MortalAgent, "trainer": bodies.MortalTrainer}


@pytest.mark.parametrize(
    "moments",
    [
        pytest.param(m, marks=[] if i in QUICK else [pytest.mark.slow], id=points(m))
        for i, m in enumerate(ONE_DEVICE)
    ],
)
def test_who_is_killed_comes_back_and_the_run_is_whole(tmp_path, monkeypatch, moments):
    path = tmp_path / "faults"
    faults.script(monkeypatch, path, *moments)
    check_whole(launch(config(tmp_path), roles=MORTAL), path, moments)


TWO_DEVICES = [  # agents 0 and 2, trainers 1 and 3
    [(3, "took", 3)],
    [(1, "reduce", 3)],
    [(2, "simulate", 3)],
    [(1, "parts written", 4)],
    [(3, "checkpoint", 4), (0, "written", 4)],
    [(1, "trained", 6)],
    [(3, "dismissed", 6)],
    [(1, "evaluate", 6)],
    [(3, "finished", 6)],
    [(1, "took", 3), (3, "took", 3)],
    [(1, "dismissed", 6), (3, "dismissed", 6)],
    [(0, "brought", 2), (1, "reduce", 2), (3, "assembled", 2), (2, "ordered", 2)],
]


@pytest.mark.parametrize(
    "moments",
    [
        pytest.param(m, marks=[pytest.mark.slow] if i else [], id=points(m))
        for i, m in enumerate(TWO_DEVICES)
    ],
)
def test_the_trainer_of_another_device_gives_its_state(tmp_path, monkeypatch, moments):
    path = tmp_path / "faults"
    faults.script(monkeypatch, path, *moments)
    several(monkeypatch, agents=1, devices=2)
    result = launch(config(tmp_path, run__total_steps=ITERATIONS * 256), roles=MORTAL)
    check_whole(result, path, moments)
    assert result.gmis[1] == result.gmis[3]
    if len({gmi for gmi, *_ in moments} & {1, 3}) < 2:  # a trainer lives, and has the state
        begun = [(path / f"begun{gmi}").read_text().splitlines() for gmi in (1, 3)]
        assert max(map(len, begun)) <= ITERATIONS + len(moments)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("last", "trainer"), [(ITERATIONS, bodies.MortalTrainer), (3, bodies.MortalAndStopped)]
)
def test_a_trainer_that_is_killed_before_it_dismisses_its_agents_is_waited_for(
    tmp_path, monkeypatch, last, trainer
):
    """No evaluation follows, at which the others would meet it."""
    path = tmp_path / "faults"
    faults.script(monkeypatch, path, (3, "trained", last))
    several(monkeypatch, agents=1, devices=2)
    job = {"run__total_steps": ITERATIONS * 256, "run__eval_episodes": 0}
    result = launch(config(tmp_path, **job), roles=MORTAL | {"trainer": trainer})
    assert (faults.struck(path), result.restarts, result.iteration) == (1, 1, last)
    assert [answer["steps"] for answer in result.gmis[::2]] == [last * 128] * 2


@pytest.mark.slow
def test_kills_at_random_moments_cost_iterations_and_not_the_run(tmp_path, monkeypatch):
    iterations, dead = 150, set()

    def all_four():
        """The GMIs, once the last one that was killed is back."""
        pids = set(killers.started(workers=False)) - dead
        return sorted(pids) if len(pids) == 4 else []

    def kill(pid):
        dead.add(pid)
        return killers.kill_started(pid)

    several(monkeypatch, agents=1, devices=2)
    job = {"run__total_steps": iterations * 256, "run__max_restarts": 100}
    with killers.Killer(7, 0.2, all_four, kill, itertools.count().__next__, most=25):
        result = launch(config(tmp_path, **job, run__checkpoint_every=20))
    assert (result.state, result.iteration) == ("finished", iterations)
    assert [line["iteration"] for line in metrics(result.folder)] == list(range(1, iterations + 1))
    assert result.gmis[1] == result.gmis[3]
    assert result.restarts >= 10  # of 25, or as many as a slow machine found time for


@pytest.mark.slow
def test_a_trainer_that_is_killed_behind_the_end_of_a_target_return_does_not_go_on(
    tmp_path, monkeypatch
):
    """Alone, it knows from its agents alone that all was done: they have left."""
    job = config(tmp_path, run__target_return=1.0, run__total_steps=10**6)
    faults.script(monkeypatch, tmp_path / "none")
    last = launch(job, roles=MORTAL).iteration
    path = tmp_path / "faults"
    faults.script(monkeypatch, path, (1, "evaluate", last))
    result = launch(job, roles=MORTAL)
    assert faults.struck(path) == result.restarts == 1
    assert (result.state, result.iteration) == ("finished", last)
    assert result.eval_return > 0


# What goes wrong ----------------------------------------------------------------------------------


def test_an_agent_that_raises_ends_the_run_which_names_it(tmp_path):
    with pytest.raises(GmiDied, match=r"(?s)gmi 0 .*on purpose") as caught:
        launch(config(tmp_path), roles={"agent": bodies.RaisingAgent})
    assert caught.value.gmi_id == 0
    (run,) = (tmp_path / "runs" / "t").iterdir()
    assert checkpoint.find(run).folder.name == "iteration_000002"  # training is not over


@pytest.mark.parametrize(
    ("role", "text"),
    [
        ({"agent": bodies.WideAgent}, "a policy vector of shape"),
        ({"trainer": bodies.Unlike}, "must make the same policy"),
    ],
)
def test_who_makes_another_policy_is_told(tmp_path, role, text):
    with pytest.raises(GmiDied, match=text):
        launch(config(tmp_path), roles=role)


LATE_S = 3.0  # a loaded machine takes one to start them


@pytest.mark.parametrize(
    ("role", "agents", "devices", "text"),
    [
        ("agent", 1, 2, "3 s: gmi 0, device 0 has not brought its rollout"),
        pytest.param("agent", 2, 2, "3 s: gmi 0, device 0 has not brought", marks=pytest.mark.slow),
        pytest.param(
            "trainer", 1, 1, "6 s: gmi 1, device 0 has given no order", marks=pytest.mark.slow
        ),
        pytest.param("trainer", 1, 2, r"3 s: rank 1 \(gmi 3, device 1\)", marks=pytest.mark.slow),
    ],
)
def test_who_is_late_is_named_and_not_one_that_waits_for_it(
    tmp_path, monkeypatch, role, agents, devices, text
):
    several(monkeypatch, agents, devices)
    hung = {"agent": bodies.HungAgent, "trainer": bodies.HungTrainer}[role]
    with pytest.raises(GmiDied, match=f"timed out after {text}"):
        launch(config(tmp_path, agents=agents, comm__timeout_s=LATE_S), roles={role: hung})


@pytest.mark.slow
def test_an_agent_has_its_time_for_each_thing_that_takes_long_and_the_others_wait(
    tmp_path, monkeypatch
):
    """A horizon, its death, its environments and the horizon again are two deadlines together."""
    path = tmp_path / "faults"
    faults.script(monkeypatch, path, (0, "simulate", 3))
    several(monkeypatch, agents=1, devices=2)
    job = {"run__total_steps": ITERATIONS * 256, "comm__timeout_s": 4.0}
    result = launch(config(tmp_path, **job), roles={"agent": bodies.SlowAgent})
    assert (faults.struck(path), result.restarts, result.iteration) == (1, 1, ITERATIONS)


def test_a_part_that_an_agent_cannot_write_is_told(tmp_path, capsys):
    job = config(tmp_path)
    result = gmi_drl.launch(job, view="plain", roles={"agent": bodies.FullDisk})
    told = capsys.readouterr().out
    assert "checkpoint at iteration 4 was not written: gmi 0: OSError: no space left" in told
    there = sorted(one.name for one in (result.folder / "checkpoints").iterdir())
    assert there == ["iteration_000002", "iteration_000006"]
    result = gmi_drl.launch(job, view="plain", roles={"agent": bodies.FullForEver})
    told = capsys.readouterr().out
    assert "iteration 6 was not written: gmi 0: OSError" in told
    assert checkpoint.find(result.folder).policy_only


# Stragglers ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_trainer_goes_on_without_the_slowest(tmp_path, monkeypatch):
    several(monkeypatch, agents=3)
    rounds = 150
    path = config(
        tmp_path, agents=3, algorithm__drop_slowest=1, run__total_steps=rounds * 2 * 16 * 8,
        run__checkpoint_every=0, run__eval_episodes=0,
    )  # fmt: skip
    result = launch(path, roles={"agent": bodies.LateAgent})
    told = metrics(result.folder)
    assert len(told) == rounds
    assert [line["steps"] for line in told[:3]] == [256, 512, 768]
    assert all(line["dropped_steps"] in (0, 128, 256, 384) for line in told)
    assert [line["dropped_steps"] for line in told[:3]] == [0, 0, 0]
    assert sum(line["dropped_steps"] for line in told) >= 128


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param((2, "simulate", 0), id="the late one samples"),
        pytest.param((2, "brought", 0), id="the late one has brought", marks=pytest.mark.slow),
        pytest.param((0, "simulate", 2), id="another one samples", marks=pytest.mark.slow),
        pytest.param((0, "brought", 2), id="another one has brought"),
    ],
)
def test_an_agent_that_is_killed_is_dropped_once_and_nothing_trained_on_twice(
    tmp_path, monkeypatch, moment
):
    several(monkeypatch, agents=3)
    path, rounds = tmp_path / "faults", 6
    faults.script(monkeypatch, path, moment)
    job = config(
        tmp_path, agents=3, algorithm__drop_slowest=1, run__total_steps=rounds * 2 * 16 * 8,
        run__checkpoint_every=0, run__eval_episodes=0,
    )  # fmt: skip
    roles = {"agent": bodies.MortalLateAgent, "trainer": bodies.MournfulTrainer}
    result = launch(job, roles=roles)
    assert faults.struck(path) == result.restarts == 1
    told = metrics(result.folder)
    assert [line["steps"] for line in told] == [256 * n for n in range(1, rounds + 1)]
    # In the fourth round the answer to the first is there; whoever was killed, it is one sample.
    assert [line["dropped_steps"] for line in told[:4]] == [0, 0, 0, 128]
    trained = [torch.load(path / f"trained{n}") for n in range(rounds)]
    for number, batch in enumerate(trained):
        assert (batch[1:, :, 2] == number).all()  # the first was seen at the end of the one before
    rows = torch.cat([batch[:, :, :2].flatten(0, 1) for batch in trained])
    assert len(rows.unique(dim=0)) == len(rows) == rounds * 256


@pytest.mark.slow
@pytest.mark.parametrize(
    "moments",
    [
        [(3, "took", 3)],
        [(3, "took", 2, "pause"), (1, "ordered", 2, "SIGSTOP")],
    ],
    ids=points,
)
def test_with_the_slowest_left_out_who_is_killed_or_stopped_comes_back(
    tmp_path, monkeypatch, moments
):
    several(monkeypatch, agents=3)
    path = tmp_path / "faults"
    faults.script(monkeypatch, path, *moments)
    job = config(
        tmp_path, agents=3, algorithm__drop_slowest=1, run__hang_timeout_s=6.0,
        run__total_steps=ITERATIONS * 2 * 16 * 8,
    )  # fmt: skip
    check_whole(launch(job, roles=MORTAL), path, moments)


@pytest.mark.slow
def test_who_is_late_is_waited_for_at_a_checkpoint_and_the_run_resumed(tmp_path, monkeypatch):
    several(monkeypatch, agents=3)
    monkeypatch.setattr(jobs, "layout_faults_of", lambda config, layout: [])  # cores are shared
    path = config(tmp_path, agents=3, algorithm__drop_slowest=2, run__eval_episodes=0)
    first = launch(path, "run.total_steps=2048", "run.checkpoint_every=3")
    assert first.steps == 2048
    rest = launch(None, "run.total_steps=4096", resume=first.folder)
    assert rest.steps == 4096
    assert len(metrics(rest.folder)) == 4096 // (16 * 8)


@pytest.mark.parametrize(
    ("template", "gmis", "drop", "rule"),
    [
        ("tdg_ex", 2, 2, "agents of a trainer: 2"),
        ("tdg_ex", 1, 1, "agents of a trainer: 1"),
        ("tcg_ex", 2, 2, "GMIs: 2"),
        ("tcg_ex", 1, 1, "GMIs: 1"),
    ],
)
def test_more_than_there_are_cannot_be_dropped(tmp_path, template, gmis, drop, rule):
    keys = {"algorithm__drop_slowest": drop}
    if template == "tdg_ex":  # the same in one key
        keys = {"algorithm__optimizer": {"name": "local", "drop_slowest": drop}}
    path = config(tmp_path, template, gmis, hardware__backend="cpu", **keys)
    faults_there = check(
        load_config(path), Topology((Device(0, "cpu", "group 0", tuple(range(4))),))
    )
    (fault,) = [str(one) for one in faults_there if "drop_slowest" in str(one)]
    assert f"algorithm.drop_slowest={drop}; must be less than the {rule} in this" in fault
    assert "Lower it, or use more GMIs" in fault
