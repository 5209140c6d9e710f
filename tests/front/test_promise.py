"""A run that does other than tuning has promised: it says so once, and the record is stale."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from gmi_drl.launcher import colocated_runs
from gmi_drl.launcher.start.launcher import launch
from gmi_drl.launcher.watch.watch import PromiseWatch, is_comparable
from gmi_drl.placement import Device, Topology, load_config
from gmi_drl.selector.record.identity import answer_key
from gmi_drl.selector.record.record import TuneJournal, promise_of, read, record_path
from gmi_drl.selector.tune.candidate import Ask, Candidate, Chosen, DeviceSplit, Measured
from waits import until
from watches import Heard

CONFIG = load_config({"version": 1, "env": {"id": "CartPole-v1"}})
MACHINE = Topology.from_cores([0, 1])


@pytest.fixture
def record(tmp_path, monkeypatch):
    """One that promises 1,000 steps/s for CONFIG."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = record_path("ab12")
    made, notes = TuneJournal.open(path, {}, anew=False)
    assert not notes
    key = answer_key(CONFIG, MACHINE, tmp_path)
    chosen = Chosen(Candidate(DeviceSplit(1, "cpu"), 64, 16, 1024), None, (), True)
    made.chose(chosen, {"steps_per_s": 1e3, "answer": key})
    return path


@pytest.fixture
def screen():
    return Heard()


def promised(config, topology, folder, screen):
    return PromiseWatch(screen, lambda: promise_of(config, topology, folder))


@pytest.fixture
def watch(tmp_path, screen):
    return promised(CONFIG, MACHINE, tmp_path, screen)


def trains(watch, steps_per_s, iterations=100):
    for n in range(iterations):
        watch.show({"kind": "iteration", "steps": n * steps_per_s, "time_s": float(n)})
        watch.tick(None)


def test_a_run_that_keeps_the_promise_says_nothing(record, watch, screen):
    trains(watch, 1100)
    assert screen.records == []
    assert read(record).fresh


def test_a_run_that_does_not_warns_once_and_makes_the_record_stale(record, watch, screen):
    trains(watch, 600)
    (warning,) = screen.records
    assert warning["kind"] == "warning"
    assert warning["message"] == (
        "600 steps/s, 40% less than the 1,000 that tuning measured. Its record is stale from now "
        "on: run gmi-drl tune again."
    )
    found = read(record)
    assert not found.fresh
    assert [drift["steps_per_s"] for drift in found.drifts] == [600]


def measured(steps_per_s):
    return Measured(steps_per_s, 0.01, 9, 1.5, {}, 1 << 30, None, 0.1, 1.9)


CHOICE = Candidate(DeviceSplit(1, "cpu"), 64, 16, 1024, (("minibatches", 8),))
OTHERS = {
    Candidate(DeviceSplit(2, "cpu"), 64, 8, 1024): 900.0,
    Candidate(DeviceSplit(2, "cpu"), 32, 16, 1024): 990.0,
    Candidate(DeviceSplit(1, "cpu"), 32, 16, 512): 700.0,
    Candidate(DeviceSplit(4, "cpu"), 16, 16, 1024): 980.0,
}


@pytest.fixture
def whole(tmp_path, monkeypatch):
    """A record of five candidates, of which the last has failed when it was raced."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    given = {"config": CONFIG.model_dump(mode="json")}
    made, _ = TuneJournal.open(record_path("cd34"), given, anew=False)
    for candidate, speed in {CHOICE: 1000.0, **OTHERS}.items():
        made.profiled(Ask(candidate, 2.0), measured(speed), 6.5)
    *_, last = OTHERS
    made.raced(last, {"round": 1, "cost_s": 4.0, "reason": "crash", "text": "it was killed"})
    key = answer_key(CONFIG, MACHINE, tmp_path)
    made.chose(Chosen(CHOICE, None, (), True), {"steps_per_s": 1e3, "answer": key})
    return made.record


def test_what_is_better_than_a_choice_that_has_slowed_down_is_in_its_record(whole):
    """By more than a quarter, and but for what has failed since; as a run of it says it."""
    own = f"algorithm.minibatches={CONFIG.algorithm.minibatches}"
    assert whole.better(1000) == []
    assert [set(way.split()) for way in whole.better(700)] == [
        {"env.num_env=32", own, "layout.gmi_per_gpu=2"},
        {"algorithm.horizon=8", own, "layout.gmi_per_gpu=2"},
    ]
    assert len(whole.better(500)) == 3


def test_by_goodput_where_it_was_predicted(whole):
    short = {"own_samples": 1024, "own_horizon": 16, "decay": 0.99}  # half of a horizon sees less
    told = replace(whole, choice={**whole.choice, "prediction": short})
    (way,) = told.better(700)
    assert "env.num_env=32" in way


def test_a_run_that_resizes_itself_takes_what_its_stale_record_has(whole, tmp_path, screen):
    asked = []

    def propose(cause, ways):
        asked.append((cause, len(ways)))
        return "It does."

    def watched():
        return PromiseWatch(screen, lambda: promise_of(CONFIG, MACHINE, tmp_path), propose)

    trains(watched(), 600)
    (warning,) = screen.records
    assert asked == [("drift", 2)]
    assert warning["message"].endswith("stale from now on: run gmi-drl tune again. It does.")
    trains(watched(), 600)  # by now the record promises nothing
    assert len(screen.records) == 1


def test_where_nothing_is_clearly_better_the_run_stays_as_it_is(record, tmp_path, screen):
    def look_up():
        return promise_of(CONFIG, MACHINE, tmp_path)

    trains(PromiseWatch(screen, look_up, lambda *_: 1 / 0), 600)
    (warning,) = screen.records
    assert "again. The run stays as it is: nothing else that was measured is" in warning["message"]


def test_of_another_config_or_machine_nothing_is_promised(record, tmp_path, screen):
    other = load_config(CONFIG.model_dump(), ["env.num_env=65"])
    longer = load_config(CONFIG.model_dump(), ["run.total_steps=7", "run.name=longer"])
    trains(promised(other, MACHINE, tmp_path, screen), 600)
    trains(promised(CONFIG, Topology.from_cores([0]), tmp_path, screen), 600)
    assert screen.records == []
    trains(promised(longer, MACHINE, tmp_path, screen), 600)
    assert screen.records


AT_WORK = """
import sys
from contextlib import ExitStack
from pathlib import Path
from gmi_drl.launcher.colocated_runs import at_work
from gmi_drl.placement import Device, Topology
gpu = Device(0, "gpu", "A100", (7,), uuid="GPU-b")
from gmi_drl.launcher.folder.run_folder import RunFolder
with at_work(Topology((*Topology.from_cores([1, 2, 3]).devices, gpu))), ExitStack() as held:
    for run in sys.argv[1:]:
        held.enter_context(RunFolder(Path(run)).held())
    print("at work", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def neighbour(record):
    """Another launch, in its own process, for as long as its input is open."""
    command = [sys.executable, "-W", "error", "-c", AT_WORK]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"at work\n"
        yield process


def test_a_run_beside_another_one_warns_and_leaves_the_record(record, watch, screen, neighbour):
    with colocated_runs.at_work():
        trains(watch, 600, iterations=3)
        assert colocated_runs.other_at_work() == f"process {neighbour.pid}"
        neighbour.communicate()
        with colocated_runs.at_work():  # a launch in a process that tunes
            assert colocated_runs.other_at_work() == ""
        trains(watch, 600)
    (warning,) = screen.records
    assert warning["message"] == (
        "600 steps/s, 40% less than the 1,000 that tuning measured. The record stays: process "
        f"{neighbour.pid} was at work on this machine too."
    )
    assert read(record).fresh


def test_a_run_is_told_on_which_cores_and_gpus_another_one_works(record, neighbour):
    gpus = [Device(n, "gpu", "A100", (), uuid=uuid) for n, uuid in enumerate(("GPU-a", "GPU-b"))]
    mine = Topology((*gpus, *Topology.from_cores([2, 3, 4]).devices))
    with colocated_runs.at_work(mine):
        (told,) = colocated_runs.overlaps(mine)
        assert f"another run of yours (process {neighbour.pid}) is at work on cores 2-3" in told
        assert "on cores 2-3 and GPU 1 too" in told
        assert colocated_runs.overlaps(Topology.from_cores([4])) == []
        assert colocated_runs.overlaps(Topology((replace(gpus[1], share=0.5),))) == []
        with colocated_runs.at_work(Topology.from_cores([2])):  # a launch in a process that tunes
            pass
        neighbour.communicate()
        assert colocated_runs.overlaps(mine) == []


def test_the_run_that_another_one_works_at_is_named(record, tmp_path):
    run = tmp_path / "runs" / "ant"
    run.mkdir(parents=True)
    (run / "layout.json").write_text("{}")
    command = [sys.executable, "-W", "error", "-c", AT_WORK, str(run)]
    mine = Topology.from_cores([2])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"at work\n"
        with colocated_runs.at_work(mine):
            (told,) = colocated_runs.overlaps(mine)
        process.communicate()
    assert f"another run of yours (process {process.pid}, {run}) is at work on core 2" in told


def test_who_is_killed_is_at_work_no_longer(record, neighbour):
    with colocated_runs.at_work():
        neighbour.kill()
        neighbour.wait()
        assert colocated_runs.other_at_work() == ""


def test_a_program_that_works_keeps_its_core_busy_unless_it_is_our_own(monkeypatch):
    core = min(os.sched_getaffinity(0))
    spins = f"import os; os.sched_setaffinity(0, [{core}]); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", spins], stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            until(lambda: colocated_runs.busy_cores([core, 10**6]) < 0.9, "ours left out")
            monkeypatch.setattr(colocated_runs.processes, "with_children", lambda pids: [])
            until(lambda: 0.7 < colocated_runs.busy_cores([core, 10**6]) < 1.3, "a busy core")
        finally:
            process.kill()


def test_of_a_run_that_writes_checkpoints_all_the_time_nothing_is_promised():
    for every, told in ((0, True), (1, False), (2, False), (3, True)):
        overrides = [f"run.checkpoint_every={every}"]
        assert is_comparable(load_config(CONFIG.model_dump(), overrides)) == told
        assert not is_comparable(load_config(CONFIG.model_dump(), [*overrides, "run.profile=true"]))


@pytest.mark.slow
@pytest.mark.parametrize(("checkpoint_every", "asked"), [(0, 1), (1, 0)])
def test_a_launch_asks_for_a_promise_where_its_speed_can_be_compared(
    warm, tmp_path, checkpoint_every, asked
):
    calls = []
    run = {"folder": str(tmp_path), "total_steps": 512, "eval_episodes": 0}
    config = {
        "version": 1,
        "run": run | {"checkpoint_every": checkpoint_every},
        "env": {"id": "CartPole-v1", "num_env": 8},
        "algorithm": {"network": [8], "horizon": 16, "minibatches": 2, "epochs": 1},
        "layout": {"gmi_per_gpu": 1},
    }
    result = launch(config, view="none", promise_of=lambda *known: calls.append(known))
    assert (result.state, len(calls)) == ("finished", asked)


def test_whatever_is_wrong_with_a_promise_the_run_goes_on(watch, screen, record, monkeypatch):
    def broken(path, steps_per_s, text):
        raise RuntimeError("no home")

    monkeypatch.setattr("gmi_drl.selector.record.record.expire", broken)
    trains(watch, 600)
    (warning,) = screen.records
    assert "cannot be told (no home)" in warning["message"]
    monkeypatch.setattr("gmi_drl.selector.record.record.records", lambda: 1 / 0)
    trains(promised(CONFIG, MACHINE, None, screen), 600)
    assert "division" in screen.records[1]["message"]
    assert len(screen.records) == 2


def test_a_record_that_goes_meanwhile_ends_no_run(record, watch, screen):
    trains(watch, 600, iterations=2)
    record.unlink()
    trains(watch, 600)
    (warning,) = screen.records
    assert "cannot be written" in warning["message"]


def test_what_is_no_iteration_says_nothing_of_speed(record, watch, screen):
    for strange in ({}, {"kind": "iteration"}, {"kind": "iteration", "steps": "a", "time_s": None}):
        watch.show(strange)
    trains(watch, 1000)
    assert screen.records == []
