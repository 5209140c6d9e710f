"""`tune` from a config to one that launches; most of it on a machine that is made up."""

import functools
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

import gmi_drl
from gmi_drl import measuring, runtime, tune_question, tuning
from gmi_drl.launcher import launch
from gmi_drl.placement import ConfigError, Device, Topology, load_config
from gmi_drl.planning import find_devices, planned
from gmi_drl.preload import PRELOAD
from gmi_drl.racing import Racer
from gmi_drl.runtime.kept import locked
from gmi_drl.selector import identity, report, sentence
from gmi_drl.selector.candidate import Failed, Measured
from gmi_drl.selector.errors import BudgetTooShort, NothingMeasured, OutputError, TunerBusy
from gmi_drl.selector.race import Trained, judged_from
from gmi_drl.selector.record import expire, read, records_folder
from gmi_drl.selector.space import space_of

BODY = Path(__file__).parents[1] / "bodies_tune.py"
CONFIG = {
    "version": 1,
    "env": {"id": "CartPole-v1", "num_env": "auto"},
    "layout": {"gmi_per_gpu": "auto"},
    "tune": {"max_num_env": 64},
}


class Machine:
    """Takes the place of the profiler: answers at once; two GMIs are best, and 32 environments."""

    def __init__(self):
        self.asks = []

    def __call__(self, config, beside, patience=None):
        return self.answer

    def answer(self, ask):
        one = ask.candidate
        self.asks.append(one)
        count, num = one.row.gmi_per_gpu, one.num_env
        uneven = 1.3 if one.row.percents == (33, 67) else 1.0
        rate = uneven * {1: 1.0, 2: 1.7}.get(count, 0.9) * 1e4 * min(num, 32) / (num + 16)
        return Measured(rate, 0.01, 9, ask.seconds, {"train": 1.0}, 1 << 30, None, 0.1, 1.0)


@pytest.fixture
def machine(monkeypatch):
    """One that needs no process, with two cores."""
    found = Machine()
    monkeypatch.setattr(measuring, "Profiler", found)
    monkeypatch.setattr(measuring.runtime, "is_initialized", lambda: True)
    monkeypatch.setattr(measuring, "busy_cores", lambda cores: 0.0)
    monkeypatch.setattr(tuning.plots, "draw", lambda recorded, folder: [])
    on_devices(monkeypatch, Topology.from_cores(range(2)))
    return found


def on_devices(monkeypatch, topology):
    monkeypatch.setattr(tune_question, "find_devices", lambda config: topology)


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A config's file, in a folder of its own, with nothing on record."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return written(tmp_path / "auto.yaml", CONFIG)


def written(path, data):
    path.write_text(yaml.safe_dump(data))
    return path


def fails(error, *given, **named):
    raise error


def tuned_by(config, **options):
    return tuning.tune(config, view="none", **options)


# What is found, and written ---------------------------------------------------------------------


def test_it_writes_the_users_keys_and_what_was_found(config, machine):
    found = gmi_drl.tune(config, view="none")
    assert found.output == config.with_name("tuned.yaml")
    text = found.output.read_text()
    assert yaml.safe_load(text) == {
        "version": 1,
        "env": {"id": "CartPole-v1", "num_env": 32},
        "layout": {"gmi_per_gpu": 2},
        "tune": {"max_num_env": 64},
    }
    assert list(yaml.safe_load(text)) == ["version", "env", "layout", "tune"]
    assert load_config(found.output) == found.config
    head = [line for line in text.splitlines() if line.startswith("#")]
    assert head[0] == "# Made by gmi-drl tune"
    assert f"{found.steps_per_s:,.0f} steps/s (+- " in text
    words = "".join(text.split("\n# ")).replace(" ", "")  # long lines are broken
    assert f"madeby:gmi-drltune{config}" in words
    assert "runner-up: " in text
    assert "an update now takes 1,024 steps" not in text  # it is what a plain user has
    assert read(found.record).chosen == found.chosen
    assert len(read(found.record).profiles) == len(machine.asks)


def test_text_that_looks_like_a_number_stays_text(config, machine, monkeypatch):
    monkeypatch.setattr(tuning, "faults_anywhere", lambda config: [])  # of the options
    data = {**CONFIG, "run": {"name": "1e5", "folder": "0x10"}, "algorithm": {"network": [8, 8]}}
    options = {"a": "1e5", "b": 1e-5, "c": "yes", "d": "1_0", "e": [1, "2"], "f": None, "g": "0o7"}
    found = tuned_by(
        {**data, "env": {**data["env"], "options": options}}, output=config.parent / "t.yaml"
    )
    assert load_config(found.output) == found.config
    assert found.config.env.options == options
    assert "network: [8, 8]" in found.output.read_text()


def test_what_is_on_record_answers_at_once_until_it_is_asked_anew(config, machine, capsys):
    first = tuned_by(config)
    asked = len(machine.asks)
    second = tuning.tune(config, view="plain")
    assert second.recalled
    assert (second.config, second.chosen) == (first.config, first.chosen)
    assert len(machine.asks) == asked
    assert "nothing is measured; --again measures anew" in capsys.readouterr().out
    assert not tuned_by(config, again=True).recalled
    assert len(machine.asks) == 2 * asked


def test_launch_and_plan_take_what_is_on_record(config, machine):
    unsettled = load_config(config)
    assert tuning.recalled(unsettled, beside=config.parent) is None
    found = tuned_by(config)
    settled, notes = tuning.settle(unsettled, beside=config.parent, view="none")
    assert settled == found.config
    assert notes[0].startswith("num_env 32, 2 GMIs on each device: tuned ")
    assert f"{found.steps_per_s:,.0f} steps/s promised" in notes[0]
    assert tuning.recalled(unsettled, beside=config.parent)[0] == settled
    assert tuning.record_of(unsettled, beside=config.parent).parent == records_folder()


def test_a_record_that_cannot_be_looked_at_is_no_missing_one(config, machine):
    unsettled = load_config(config)
    assert tuning.record_of(unsettled, beside=config.parent) is None
    folder = records_folder()
    folder.parent.mkdir(parents=True)
    folder.symlink_to(folder)
    with pytest.raises(OSError, match="symbolic links"):
        read(tuning.record_of(unsettled, beside=config.parent))


def test_launch_tunes_first_where_nothing_is_on_record(config, machine):
    settled, _ = tuning.settle(load_config(config), beside=config.parent, view="none")
    assert machine.asks
    assert settled.is_settled
    assert not config.with_name("tuned.yaml").exists()


def test_a_promise_is_for_the_settled_config_whoever_wrote_it(config, machine):
    topology = Topology.from_cores(range(2))
    assert tuning.promise_of(load_config(config), topology) is None
    found = tuned_by(config)
    by_hand = {**CONFIG, "env": {"id": "CartPole-v1", "num_env": 32}, "layout": {"gmi_per_gpu": 2}}
    del by_hand["tune"]
    by_hand["run"] = {"name": "mine", "total_steps": 9}
    promise = tuning.promise_of(load_config(by_hand), topology)
    assert promise.steps_per_s == found.steps_per_s
    assert read(promise.path).chosen == found.chosen
    assert tuning.promise_of(found.config, topology) == promise
    for other in ({"env": {**by_hand["env"], "num_env": 64}}, {"algorithm": {"horizon": 8}}):
        assert tuning.promise_of(load_config({**by_hand, **other}), topology) is None
    assert tuning.promise_of(found.config, Topology.from_cores(range(3))) is None
    expire(promise.path, 1.0, "a run drifted")
    assert tuning.promise_of(found.config, topology) is None


def test_unequal_shares_go_into_a_layout_file_beside_it(tmp_path, monkeypatch, config, machine):
    gpu = Device(
        0, "gpu", "H100", tuple(range(4)), "GPU-0", sm_count=132, mem_bytes=80 << 30,
        capability=(9, 0),
    )  # fmt: skip
    topology = Topology((gpu,))
    on_devices(monkeypatch, topology)
    paired = {
        **CONFIG,
        "layout": {"template": "tdg_ex", "gmi_per_gpu": 2},
        "hardware": {"backend": "mps"},
        "tune": {"max_num_env": 32, "min_num_env": 16},
    }
    found = tuned_by(written(config, paired), output=tmp_path / "found.yaml")
    assert found.chosen.winner.row.percents == (33, 67)
    assert yaml.safe_load(found.output.read_text())["layout"] == {"file": "found.layout.yaml"}
    settled = load_config(found.output)
    assert settled.layout.file == str(tmp_path / "found.layout.yaml")
    promise = tuning.promise_of(settled, topology)
    assert promise.steps_per_s == found.steps_per_s
    assert tuning.settle(load_config(config), beside=tmp_path)[0].layout.file.endswith(
        ".layout.yaml"
    )


def test_a_batch_that_changes_is_said(config, machine):
    found = tuned_by(config, overrides=["algorithm.horizon=32", "env.num_env=64"])
    assert "an update now takes 2,048 steps instead of" not in found.output.read_text()
    found = tuned_by(config, overrides=["env.num_env=16", "layout.gmi_per_gpu=1"])
    said = "an update now takes 1,024 steps instead of 256: learning may need other settings"
    assert said in found.output.read_text()
    assert any(said in note for note in found.notes)
    kept = tuned_by(config, overrides=["tune.batch=256"])
    assert all(one.samples == 256 for one in machine.asks[-3:])
    assert kept.config.algorithm.horizon * kept.config.env.num_env * 2 == 256


# Objective reward -------------------------------------------------------------------------------


class Racing:
    """Returns rise faster with fewer environments, if any episode ends."""

    def __init__(self, ends=True):
        self.ends, self.ran = ends, []

    def __call__(self, config, topology, beside):
        return self.train

    def train(self, candidate, seconds, number):
        self.ran.append((candidate.num_env, number))
        points = ((seconds, 1e3 / candidate.num_env),) if self.ends else ()
        return Trained(points, seconds)


def test_the_highest_return_wins_where_reward_is_the_objective(config, machine, monkeypatch):
    racing = Racing()
    monkeypatch.setattr(measuring, "Racer", racing)
    found = tuned_by(config, overrides=["tune.objective=reward"])
    assert found.chosen.winner.num_env < 32
    assert found.chosen.runner_up.num_env == 32
    assert "its return was" in found.chosen.why
    races = read(found.record).races
    assert {race["round"] for race in races} == {1, 2}
    assert {race["candidate"] for race in races if race["winner"]} == {found.chosen.winner}
    judged = judged_from(read(found.record))
    best = max((its for its in judged if its.round == 2), key=lambda its: its.return_mean)
    assert best.candidate == found.chosen.winner
    monkeypatch.setattr(measuring, "Racer", Racing(ends=False))
    other = tuned_by(config, overrides=["tune.objective=reward"], again=True)
    assert other.chosen.winner.num_env == 32
    assert any("no episode ended" in note for note in other.notes)


# Bad input --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ("auto.yaml", "it is the config that is tuned"),
        ("found.txt", "a config is a YAML file. Call it found.txt.yaml"),
        ("there/found.yaml", "it cannot be written (No such file or directory)"),
        ("folder.yaml", "it is a folder"),
        ("users.yaml", "it is there, and tuning has not made it"),
        ("blocked.yaml", "the report goes into a folder"),
    ],
)
def test_what_cannot_be_written_is_said_before_anything_is_measured(config, machine, output, why):
    folder = config.parent
    (folder / "folder.yaml").mkdir()
    (folder / "users.yaml").write_text("version: 1\n")
    (folder / "blocked.report").write_text("")
    with pytest.raises(OutputError) as caught:
        tuned_by(config, output=folder / output)
    assert why in str(caught.value)
    assert not machine.asks


def test_modules_beside_a_config_keep_the_tuned_one_there(tmp_path, config, machine, monkeypatch):
    faults = ["roles.trainer='mine:Mine'; it cannot be imported"]
    monkeypatch.setattr(tuning, "role_faults", lambda config, beside: faults)
    (tmp_path / "mine.py").write_text("class Mine: ...")
    written(config, {**CONFIG, "roles": {"trainer": "mine:Mine"}})
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(OutputError, match=r"the config names mine\.py, which lies beside it"):
        tuned_by(config, output=tmp_path / "elsewhere" / "found.yaml")
    with pytest.raises(ConfigError, match=r"roles\.trainer='mine:Mine'"):
        tuned_by(config)
    assert not machine.asks
    faults.clear()
    tuned_by(config)
    assert tuned_by(config).recalled
    (tmp_path / "mine.py").write_text("class Mine: pass")
    assert not tuned_by(config).recalled  # what the module has is part of the question
    (tmp_path / "mine.py").unlink()
    (tmp_path / "mine" / "parts").mkdir(parents=True)
    for name in ("__init__.py", "parts/model.py"):
        (tmp_path / "mine" / name).write_text("class Mine: ...")
    assert not tuned_by(config).recalled
    assert tuned_by(config).recalled
    (tmp_path / "mine" / "parts" / "model.py").write_text("class Mine: pass")
    assert not tuned_by(config).recalled  # and what is in a package


def test_a_stale_record_says_what_is_other_and_is_not_taken(config, machine, monkeypatch):
    tuned_by(config)
    was = identity.versions()
    monkeypatch.setattr(identity, "versions", lambda: {**was, "torch": "9.9"})
    found = tuned_by(config)
    assert found.notes[0] == (
        f"this config was tuned on another machine or version (torch {was['torch']} then, 9.9 "
        "now): tuned anew"
    )
    on_devices(monkeypatch, Topology.from_cores(range(2), 2))
    assert "devices" in tuned_by(config).notes[0]
    path = tuning.record_of(load_config(config), beside=config.parent)
    expire(path, 5.0, "a run does 5 steps/s, and 20,000 were promised")
    found = tuned_by(config)
    assert found.notes[0] == "a run does 5 steps/s, and 20,000 were promised: it is tuned anew"
    assert read(path).fresh


@pytest.mark.parametrize("text", ["{", '{"kind": "header", "format": 99}\n', "\0" * 99])
def test_a_damaged_record_is_put_aside(config, machine, text):
    path = tuned_by(config) and tuning.record_of(load_config(config), beside=config.parent)
    path.write_text(text)
    found = tuned_by(config)
    assert "it is put aside, and tuning begins anew" in found.notes[0]
    assert path.with_suffix(".damaged").read_text() == text
    assert read(path).fresh


def test_a_cache_that_cannot_be_written_keeps_nothing_and_the_report_has_all(
    tmp_path, config, machine, monkeypatch
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    found = tuned_by(config)
    assert any("what is measured is not kept" in note for note in found.notes)
    assert read(found.record).chosen == found.chosen
    assert not tuned_by(config).recalled


def test_a_second_tuner_waits_and_names_the_first(config, machine, monkeypatch, capsys):
    monkeypatch.setattr(measuring, "PATIENCE", timedelta(seconds=0.2))
    lock = records_folder() / f"{os.uname().nodename}.lock"
    with locked(lock, timedelta(0), "process 7 (gmi-drl tune a.yaml)") as first:
        assert first.held
        with pytest.raises(TunerBusy, match=r"process 7 \(gmi-drl tune a.yaml\) measures on this"):
            tuning.tune(config, view="plain")
        assert not machine.asks
        assert "waiting for process 7 (gmi-drl tune a.yaml)" in capsys.readouterr().out
    assert tuned_by(config).chosen.winner is not None


def test_one_that_was_waited_for_may_have_answered(config, machine, monkeypatch):
    tuned_by(config)
    asked = len(machine.asks)
    monkeypatch.setattr(tuning.Question, "fresh", lambda self: None)  # as it was before the wait
    assert tuned_by(config).chosen.winner is not None
    assert len(machine.asks) == asked


def test_a_longer_budget_goes_on_and_a_shorter_one_is_answered(config, machine, monkeypatch):
    clock = iter(range(0, 10**6, 3))  # each look at it is three seconds later
    monkeypatch.setattr(
        measuring, "find", functools.partial(measuring.find, clock=lambda: next(clock))
    )
    first = tuned_by(config, budget=12)
    assert not first.chosen.complete
    assert any("the search ended with its budget of 12 s" in note for note in first.notes)
    asked = list(machine.asks)
    assert tuned_by(config, budget=10).recalled
    assert machine.asks == asked
    assert tuned_by(config, budget=600).chosen.complete  # its looks take four times as long
    assert len(machine.asks) > len(asked)
    assert len(set(machine.asks)) == len(machine.asks)  # and nothing is measured twice
    assert len(read(tuning.record_of(load_config(config))).profiles) == len(machine.asks)


def test_a_search_that_its_budget_made_smaller_goes_on_with_a_longer_one(
    config, machine, monkeypatch
):
    monkeypatch.setattr(measuring, "_LEAST_PROFILES", 4)
    first = tuned_by(config, budget=16)  # four seconds for each; nothing takes as long
    assert len(machine.asks) == 4
    assert not first.chosen.complete
    assert any("a longer one goes on from here" in note for note in first.notes)
    assert tuned_by(config, budget=300).chosen.complete
    assert len(machine.asks) > 4
    assert len(set(machine.asks)) == len(machine.asks)


def test_a_report_that_cannot_be_written_is_shown_all_the_same(config, machine, monkeypatch):
    def full(recorded, folder):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tuning.plots, "draw", full)
    config.with_name("tuned.report").mkdir()
    (config.with_name("tuned.report") / "record.jsonl").mkdir()  # nothing can be written there
    with pytest.warns(UserWarning, match="no report"):
        found = tuned_by(config)
    assert found.recorded.chosen == found.chosen
    assert found.record == tuning.record_of(load_config(config))
    assert found.pictures == []


def test_too_short_a_budget_and_failures_alone_are_errors(config, machine, monkeypatch):
    with pytest.raises(BudgetTooShort, match=r"tune.budget_s=0.1; one measurement needs 0.5 s"):
        tuned_by(config, budget=0.1)
    broken = lambda ask: Failed("crash", "gmi 0 (trainer) raised KeyError: 'x'")  # noqa: E731
    monkeypatch.setattr(measuring, "Profiler", lambda *a, **k: broken)
    with pytest.raises(NothingMeasured, match=r"1 GMI, num_env 4: crash: gmi 0 .* KeyError: 'x'"):
        tuned_by(config)
    assert not config.with_name("tuned.yaml").exists()


def test_what_is_tuned_again_in_vain_leaves_the_choice_that_was_there(config, machine, monkeypatch):
    first = tuned_by(config)
    with pytest.raises(BudgetTooShort):
        tuned_by(config, budget="0.1s", again=True)
    with monkeypatch.context() as patch:
        patch.setattr(machine, "answer", functools.partial(fails, KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            tuned_by(config, again=True)
    assert tuned_by(config).recalled
    assert read(first.record).chosen == first.chosen
    assert (first.num_env, first.gmi_per_gpu) == (32, 2)
    assert str(first).startswith("num_env 32, 2 GMIs on each device: ")


def test_what_it_finds_is_held_against_the_config_as_given(config, machine):
    def given(num_env):
        env = {"id": "CartPole-v1", "num_env": num_env}
        return written(config, {**CONFIG, "env": env, "layout": {"gmi_per_gpu": 1}})

    found = tuned_by(given(10))
    assert (1, 10) in [(one.row.gmi_per_gpu, one.num_env) for one in machine.asks[:2]]
    times = f"{found.steps_per_s / 1e4 / (10 / 26):.1f} times"
    assert f"{times} the config as given (1 GMI, num_env 10)" in sentence.why(found.recorded)
    other = tuned_by(given(20))  # another question: it is measured
    assert not other.recalled
    assert "the config as given (1 GMI, num_env 20)" in sentence.why(other.recorded)
    assert "as given" not in sentence.why(tuned_by(written(config, CONFIG)).recorded)


def test_nothing_slower_than_the_config_as_given_is_chosen(config, machine, monkeypatch):
    def answer(ask):
        found = Machine.answer(machine, ask)
        return replace(found, steps_per_s=1e6) if ask.candidate.num_env == 10 else found

    monkeypatch.setattr(machine, "answer", answer)
    env = {"id": "CartPole-v1", "num_env": 10}
    found = tuned_by(written(config, {**CONFIG, "env": env, "layout": {"gmi_per_gpu": 1}}))
    assert found.num_env == 10
    assert "which is the config as given" in sentence.why(found.recorded)


def test_a_machine_that_is_busy_with_other_things_is_told(config, machine, monkeypatch):
    monkeypatch.setattr(measuring, "busy_cores", lambda cores: 0.75 * len(cores))
    told = "other programs kept 1.5 of 2 cores busy when it began"
    found = tuned_by(config)
    assert any(told in note for note in found.notes)
    assert told.split(" busy")[0] in found.output.read_text().replace("\n# ", " ")
    assert any(told in line for line in report.notes(tuned_by(config).recorded))  # also recalled


def test_launch_tunes_on_what_a_shorter_budget_ended(config, machine, monkeypatch):
    monkeypatch.setattr(measuring, "_LEAST_PROFILES", 4)

    def settled(budget_s):
        wanted = load_config(config, [f"tune.budget_s={budget_s}"])
        done, _ = tuning.settle(wanted, beside=config.parent, view="none")
        assert done.is_settled
        return len(machine.asks)

    few = settled(16)
    assert settled(16) == settled(10) == few
    with monkeypatch.context() as patch:  # and what there is holds where that is not to be had
        patch.setattr(tuning, "measure", functools.partial(fails, TunerBusy("process 7", 600)))
        assert settled(300) == few
    assert settled(300) > few


def test_an_environment_that_is_not_there_is_a_fault_of_the_config(config, machine):
    with pytest.raises(ConfigError, match=r"env\.id"):
        tuned_by(config, overrides=["env.id=NoSuch-v0"])
    assert not machine.asks


# The real thing ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def warm():
    """A runtime that has torch, for what is measured and what is launched."""
    runtime.init(PRELOAD)
    yield
    runtime.shutdown()


def test_what_is_tuned_launches_as_it_is(tmp_path, monkeypatch, warm):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tuning.plots, "draw", lambda recorded, folder: [])
    path = written(
        tmp_path / "auto.yaml",
        {
            **CONFIG,
            "run": {"folder": str(tmp_path / "runs"), "total_steps": 512, "eval_episodes": 0},
            "algorithm": {"network": [8]},
            "layout": {"gmi_per_gpu": 1},
            "tune": {"max_num_env": 4},
        },
    )
    found = tuned_by(path, budget=12)
    assert found.steps_per_s > 0
    assert planned(found.config).gmis[0].num_env == 4
    assert tuning.promise_of(found.config, find_devices(found.config), beside=tmp_path) is not None
    result = launch(found.output, view="none")
    assert (result.state, result.steps) == ("finished", 512)


def test_a_race_trains_for_its_seconds_and_a_dead_role_loses_it(tmp_path, warm):
    data = {**CONFIG, "algorithm": {"network": [8]}, "run": {"folder": str(tmp_path)}}
    config, topology = load_config(data), Topology.from_cores(sorted(os.sched_getaffinity(0)))
    one = space_of(config, topology)[0].rows[0][0]
    trained = Racer(config, topology, tmp_path)(one, 0.5, 1)
    assert trained.seconds >= 0.5
    assert trained.points
    assert all(value >= 1.0 for _, value in trained.points)  # what a step of CartPole pays
    short = load_config({**data, "run": {"folder": str(tmp_path), "total_steps": 640}})
    done = Racer(short, topology, tmp_path)(one, 30.0, 1)
    assert done.seconds == 30.0  # its return stays what it is
    assert done.points[-1][0] < 30.0
    (tmp_path / "narrow.py").write_text(NARROW.replace("512", "1"))
    config = load_config({**data, "roles": {"trainer": "narrow:Narrow"}})
    failed = Racer(config, topology, tmp_path)(one, 0.5, 1)
    assert "no more than 511" in failed.text
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {"narrow.py"}


NARROW = """
import gmi_drl

class Narrow(gmi_drl.Holistic):
    def make_env(self, num_env=None, seed=0):
        env = super().make_env(num_env, seed)
        if env.num_env >= 512:
            raise RuntimeError(f"no more than 511 environments, and these are {env.num_env}")
        return env
"""


@pytest.mark.slow
def test_an_environment_that_fails_at_512_ends_its_row_and_the_winner_is_below(
    tmp_path, monkeypatch, warm
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tuning.plots, "draw", lambda recorded, folder: [])
    (tmp_path / "narrow.py").write_text(NARROW)
    path = written(
        tmp_path / "auto.yaml",
        {
            **CONFIG,
            "roles": {"trainer": "narrow:Narrow"},
            "layout": {"gmi_per_gpu": 1},
            "tune": {"min_num_env": 256, "max_num_env": 1024},
        },
    )
    found = tuned_by(path, budget=25)
    assert found.chosen.winner.num_env in (256, 384)
    profiles = read(found.record).profiles
    failed = [answer for ask, answer in profiles if ask.candidate.num_env >= 512]
    assert failed
    assert all("no more than 511" in one.text and one.reason == "crash" for one in failed)


@pytest.mark.slow
def test_of_two_tuners_at_once_the_second_takes_what_the_first_found(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = {**CONFIG, "layout": {"gmi_per_gpu": 1}, "tune": {"max_num_env": 6}}
    path = written(tmp_path / "auto.yaml", data)
    tuners = [
        subprocess.Popen(
            [sys.executable, BODY, path, "--plain", "--budget", "15", "-o", tmp_path / name],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for name in ("one.yaml", "two.yaml")
    ]  # fmt: skip
    told = [tuner.communicate(timeout=50)[0] for tuner in tuners]
    assert [tuner.returncode for tuner in tuners] == [0, 0], told
    first, second = (load_config(tmp_path / name) for name in ("one.yaml", "two.yaml"))
    assert first == second
    # The second has waited, or begun so late that the first had ended.
    taken = ("what it has found is taken", "nothing is measured")
    assert len([text for text in told if any(words in text for words in taken)]) == 1, told


@pytest.mark.slow
def test_killed_in_the_middle_it_goes_on_and_measures_nothing_twice(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = written(tmp_path / "auto.yaml", {**CONFIG, "tune": {"max_num_env": 8}})
    command = [sys.executable, BODY, path, "--plain", "--budget", "24"]

    def lines():
        found = list(records_folder().glob("*.jsonl"))
        return found[0].read_bytes().split(b"\n")[:-1] if found else []  # whole ones

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        deadline_s = time.monotonic() + 30
        while len(lines()) < 3:
            assert process.poll() is None, process.stdout.read().decode()
            assert time.monotonic() < deadline_s, "it has measured nothing"
            time.sleep(0.02)  # between two looks at the file
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    before = lines()
    again = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert again.returncode == 0, again.stdout + again.stderr
    after = lines()
    assert after[: len(before)] == before
    recalled = [line for line in again.stdout.splitlines() if "  on record" in line]
    assert len(recalled) == len(before) - 1  # beside the header
    assert len(after) > len(before)
    assert "tuned.yaml" in again.stdout
    assert read(tmp_path / "tuned.report" / "record.jsonl").fresh
