"""A run that does other than tuning has promised: it says so once, and the record is stale."""

import pytest

from gmi_drl.placement import Topology, load_config
from gmi_drl.promise_watch import PromiseWatch
from gmi_drl.selector.candidate import Candidate, Chosen, Row
from gmi_drl.selector.identity import answer_key
from gmi_drl.selector.record import Record, read, record_path


class Screen:
    """Keeps what it is shown."""

    def __init__(self):
        self.shown = []

    def show(self, record):
        self.shown.append(record)


CONFIG = load_config({"version": 1, "env": {"id": "CartPole-v1"}})
MACHINE = Topology.from_cores([0, 1])


@pytest.fixture
def record(tmp_path, monkeypatch):
    """One that promises 1,000 steps/s for CONFIG."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = record_path("ab12")
    made, notes = Record.open(path, {}, anew=False)
    assert not notes
    key = answer_key(CONFIG, MACHINE, tmp_path)
    chosen = Chosen(Candidate(Row(1, "cpu"), 64, 16, 1024), None, (), True)
    made.chose(chosen, {"steps_per_s": 1e3, "answer": key})
    return path


@pytest.fixture
def screen():
    return Screen()


@pytest.fixture
def watch(tmp_path, screen):
    return PromiseWatch(CONFIG, MACHINE, tmp_path, screen)


def trains(watch, steps_per_s, iterations=60):
    for n in range(iterations):
        watch.show({"kind": "iteration", "steps": n * steps_per_s, "time_s": float(n)})


def test_a_run_that_keeps_the_promise_says_nothing(record, watch, screen):
    trains(watch, 1100)
    assert screen.shown == []
    assert read(record).fresh


def test_a_run_that_does_not_warns_once_and_makes_the_record_stale(record, watch, screen):
    trains(watch, 600)
    (warning,) = screen.shown
    assert warning["kind"] == "warning"
    assert warning["message"] == (
        "600 steps/s, 40% less than the 1,000 that tuning measured. Its record is stale from now "
        "on: run gmi-drl tune again."
    )
    found = read(record)
    assert not found.fresh
    assert [drift["steps_per_s"] for drift in found.drifts] == [600]


def test_of_another_config_or_machine_nothing_is_promised(record, tmp_path, screen):
    other = load_config(CONFIG.model_dump(), ["env.num_env=65"])
    longer = load_config(CONFIG.model_dump(), ["run.total_steps=7", "run.name=longer"])
    trains(PromiseWatch(other, MACHINE, tmp_path, screen), 600)
    trains(PromiseWatch(CONFIG, Topology.from_cores([0]), tmp_path, screen), 600)
    assert screen.shown == []
    trains(PromiseWatch(longer, MACHINE, tmp_path, screen), 600)
    assert screen.shown


def test_a_record_that_goes_meanwhile_ends_no_run(record, watch, screen):
    trains(watch, 600, iterations=2)
    record.unlink()
    trains(watch, 600)
    (warning,) = screen.shown
    assert "cannot be written" in warning["message"]


def test_what_is_no_iteration_says_nothing_of_speed(record, watch, screen):
    for strange in ({}, {"kind": "iteration"}, {"kind": "iteration", "steps": "a", "time_s": None}):
        watch.show(strange)
    trains(watch, 1000)
    assert screen.shown == []
