"""What `tune` does with bad input, budgets, records and other tuners; the machine is made up."""

import functools
import os
from dataclasses import replace
from datetime import timedelta

import pytest

from gmi_drl.cli import main
from gmi_drl.launcher.colocated_runs import records_folder
from gmi_drl.placement import ConfigError, Topology, load_config
from gmi_drl.runtime.cache_files import locked
from gmi_drl.selector.errors import BudgetTooShort, NothingMeasured, OutputError, TunerBusy
from gmi_drl.selector.record import identity, report
from gmi_drl.selector.record.record import expire, read, records
from gmi_drl.selector.tune import session as measuring
from gmi_drl.selector.tune import tuning
from gmi_drl.selector.tune.candidate import Failed
from gmi_drl.selector.tune.request import TuneRequest
from tune_machine import CONFIG, Machine, fails, on_devices, tuned_by, written


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
    monkeypatch.setattr(tuning, "class_faults", lambda config, beside: faults)
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
    path = TuneRequest.of(load_config(config), config.parent).path
    expire(path, 5.0, "a run does 5 steps/s, and 20,000 were promised")
    found = tuned_by(config)
    assert found.notes[0] == "a run does 5 steps/s, and 20,000 were promised: it is tuned anew"
    assert read(path).fresh


def test_show_tells_that_a_config_was_tuned_on_another_version(
    config, machine, monkeypatch, capsys
):
    tuned_by(config)
    was = identity.versions()
    (path,) = (its.path for its in records())
    monkeypatch.setattr(identity, "versions", lambda: {**was, "torch": "9.9"})
    assert main.main(["tune", "--show", str(config)]) == 2
    assert capsys.readouterr().err == (
        f"{config}: nothing is on record of it here: this config was tuned on another machine or "
        f"version (torch {was['torch']} then, 9.9 now). Tune first: gmi-drl tune {config}; or see "
        f"that one: gmi-drl tune --show {path}.\n"
    )


@pytest.mark.parametrize("text", ["{", '{"kind": "header", "format": 99}\n', "\0" * 99])
def test_a_damaged_record_is_put_aside(config, machine, text):
    path = tuned_by(config) and TuneRequest.of(load_config(config), config.parent).path
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
    monkeypatch.setattr(measuring, "TUNER_TIMEOUT", timedelta(seconds=0.2))
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
    monkeypatch.setattr(tuning.TuneRequest, "fresh", lambda self: None)  # as it was before the wait
    assert tuned_by(config).chosen.winner is not None
    assert len(machine.asks) == asked


def test_a_longer_budget_goes_on_and_a_shorter_one_is_answered(config, machine, monkeypatch):
    clock = iter(range(0, 10**6, 3))  # each look at it is three seconds later
    monkeypatch.setattr(
        measuring, "run_search", functools.partial(measuring.run_search, clock=lambda: next(clock))
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
    assert len(read(TuneRequest.of(load_config(config), None).path).profiles) == len(machine.asks)


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

    monkeypatch.setattr(tuning.tune_picture, "draw", full)
    config.with_name("tuned.report").mkdir()
    (config.with_name("tuned.report") / "record.jsonl").mkdir()  # nothing can be written there
    with pytest.warns(UserWarning, match="no report"):
        found = tuned_by(config)
    assert found.recorded.chosen == found.chosen
    assert found.record == TuneRequest.of(load_config(config), None).path
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
    times = f"{found.steps_per_s / 1e4 / (10 / 26):.1f} times"
    assert f"{times} the config as given (1 GMI, num_env 10)" in report.why(found.recorded)
    other = tuned_by(given(20))  # another question: it is measured
    assert not other.recalled
    assert "the config as given (1 GMI, num_env 20)" in report.why(other.recorded)
    assert "as given" not in report.why(tuned_by(written(config, CONFIG)).recorded)


def test_nothing_slower_than_the_config_as_given_is_chosen(config, machine, monkeypatch):
    def answer(ask):
        found = Machine.answer(machine, ask)
        return replace(found, steps_per_s=1e6) if ask.candidate.num_env == 10 else found

    monkeypatch.setattr(machine, "answer", answer)
    env = {"id": "CartPole-v1", "num_env": 10}
    found = tuned_by(written(config, {**CONFIG, "env": env, "layout": {"gmi_per_gpu": 1}}))
    assert found.num_env == 10
    assert "which is the config as given" in report.why(found.recorded)
    assert machine.asks[0].num_env == 10  # so that a budget for a single look has it


def test_a_config_that_leaves_them_open_is_looked_at_first_as_a_plain_user_has_it(config, machine):
    tuned_by(config)
    first = machine.asks[0]
    assert (first.row.gmi_per_gpu, first.num_env) == (1, 64)


def test_a_machine_that_is_busy_with_other_things_is_told(config, machine, monkeypatch):
    monkeypatch.setattr(measuring, "busy_cores", lambda cores: 0.75 * len(cores))
    told = "other programs kept 1.5 of 2 cores busy when it began"
    monkeypatch.setattr(measuring, "_LEAST_PROFILES", 4)
    found = tuned_by(config, budget=16)
    assert any(told in note for note in found.notes)
    assert told.split(" busy")[0] in found.output.read_text().replace("\n# ", " ")
    assert any(told in line for line in report.notes(tuned_by(config, budget=16).recorded))
    monkeypatch.setattr(measuring, "busy_cores", lambda cores: 0.0)  # what was measured stays so
    further = tuned_by(config, budget=300)
    assert not further.recalled
    assert any(told in line for line in report.notes(further.recorded))
    anew = tuned_by(config, budget=300, again=True)
    assert not any(told in line for line in report.notes(anew.recorded))


def test_launch_tunes_on_what_a_shorter_budget_ended(config, machine, monkeypatch):
    monkeypatch.setattr(measuring, "_LEAST_PROFILES", 4)

    def resolved(budget_s):
        wanted = load_config(config, [f"tune.budget_s={budget_s}"])
        done, _ = tuning.resolve(wanted, beside=config.parent, view="none")
        assert done.is_resolved
        return len(machine.asks)

    few = resolved(16)
    assert resolved(16) == resolved(10) == few
    with monkeypatch.context() as patch:  # and what there is holds where that is not to be had
        patch.setattr(tuning, "measure", functools.partial(fails, TunerBusy("process 7 measures")))
        assert resolved(300) == few
    assert resolved(300) > few


def test_an_environment_that_is_not_there_is_a_fault_of_the_config(config, machine):
    with pytest.raises(ConfigError, match=r"env\.id"):
        tuned_by(config, overrides=["env.id=NoSuch-v0"])
    assert not machine.asks
