"""`tune` from a config to one that launches, on a machine that is made up."""

import yaml

import gmi_drl
from gmi_drl.cli import main
from gmi_drl.launcher.colocated_runs import records_folder
from gmi_drl.placement import Device, Topology, load_config
from gmi_drl.selector.record.record import promise_of, read
from gmi_drl.selector.tune import session as measuring
from gmi_drl.selector.tune import tuning
from gmi_drl.selector.tune.race import TrainingCurve, scores_of
from tune_machine import CONFIG, on_devices, tuned_by, written


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
    unresolved = load_config(config)
    assert tuning.recalled(unresolved, beside=config.parent) is None
    found = tuned_by(config)
    resolved, notes = tuning.resolve(unresolved, beside=config.parent, view="none")
    assert resolved == found.config
    assert notes[0].startswith("num_env 32, 2 GMIs on each device: tuned ")
    assert f"{found.steps_per_s:,.0f} steps/s promised" in notes[0]
    assert tuning.recalled(unresolved, beside=config.parent)[0] == resolved


def test_only_a_batch_that_is_asked_for_changes_the_horizon_and_that_is_told(config, machine):
    plain = load_config(config, ["algorithm.horizon=32"])
    resolved, notes = tuning.resolve(plain, beside=config.parent, view="none")
    assert resolved.algorithm == plain.algorithm
    assert "horizon" not in " ".join(notes)
    held = load_config(config, ["algorithm.horizon=32", "tune.batch=1024"])
    resolved, notes = tuning.resolve(held, beside=config.parent, view="none")
    each = resolved.env.num_env * resolved.layout.gmi_per_gpu
    assert resolved.algorithm.horizon * each == 1024
    assert notes[1:] == ["the horizon is 16 instead of 32"]


def test_a_record_that_cannot_be_looked_at_is_no_missing_one(config, machine, capsys):
    command, folder = ["tune", "--show", str(config)], records_folder()
    assert main.main(command) == 2
    assert "nothing is on record of it here. Tune first" in capsys.readouterr().err
    folder.parent.mkdir(parents=True)
    folder.symlink_to(folder)
    assert main.main(command) == 2
    assert "levels of symbolic links" in capsys.readouterr().err


def test_launch_tunes_first_where_nothing_is_on_record(config, machine):
    resolved, _ = tuning.resolve(load_config(config), beside=config.parent, view="none")
    assert machine.asks
    assert resolved.is_resolved
    assert not config.with_name("tuned.yaml").exists()


def test_a_promise_is_for_the_resolved_config_whoever_wrote_it(config, machine):
    topology = Topology.from_cores(range(2))
    assert promise_of(load_config(config), topology) is None
    found = tuned_by(config)
    by_hand = {**CONFIG, "env": {"id": "CartPole-v1", "num_env": 32}, "layout": {"gmi_per_gpu": 2}}
    del by_hand["tune"]
    by_hand["run"] = {"name": "mine", "total_steps": 9}
    promise = promise_of(load_config(by_hand), topology)
    assert promise.steps_per_s == found.steps_per_s
    assert read(promise.path).chosen == found.chosen
    assert promise_of(found.config, topology) == promise
    for other in ({"env": {**by_hand["env"], "num_env": 64}}, {"algorithm": {"horizon": 8}}):
        assert promise_of(load_config({**by_hand, **other}), topology) is None
    assert promise_of(found.config, Topology.from_cores(range(3))) is None
    assert promise.expire(1.0, "a run drifted") == ""
    assert promise_of(found.config, topology) is None


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
    resolved = load_config(found.output)
    assert resolved.layout.file == str(tmp_path / "found.layout.yaml")
    promise = promise_of(resolved, topology)
    assert promise.steps_per_s == found.steps_per_s
    assert tuning.resolve(load_config(config), beside=tmp_path)[0].layout.file.endswith(
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
        self.ends = ends

    def __call__(self, seconds, candidate, config, topology, beside):
        points = ((seconds, 1e3 / candidate.num_env),) if self.ends else ()
        return TrainingCurve(points, seconds)


def test_the_highest_return_wins_where_reward_is_the_objective(config, machine, monkeypatch):
    monkeypatch.setattr(measuring, "train_for", Racing())
    found = tuned_by(config, overrides=["tune.objective=reward"])
    assert found.chosen.winner.num_env < 32
    assert found.chosen.runner_up.num_env == 32
    assert "its return was" in found.chosen.why
    races = read(found.record).races
    assert {race["round"] for race in races} == {1, 2}
    assert {race["candidate"] for race in races if race["winner"]} == {found.chosen.winner}
    judged = scores_of(read(found.record))
    best = max((its for its in judged if its.round == 2), key=lambda its: its.return_mean)
    assert best.candidate == found.chosen.winner
    monkeypatch.setattr(measuring, "train_for", Racing(ends=False))
    other = tuned_by(config, overrides=["tune.objective=reward"], again=True)
    assert other.chosen.winner.num_env == 32
    assert any("no episode ended" in note for note in other.notes)
