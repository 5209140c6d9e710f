"""`tune` from a config to one that launches, on a machine that is made up."""

import json

import pytest
import yaml

import gmi_drl
from gmi_drl.cli import main
from gmi_drl.launcher.colocated_runs import records_folder
from gmi_drl.placement import ConfigError, Device, Topology, load_config
from gmi_drl.selector.errors import NoiseSourceError
from gmi_drl.selector.record.record import promise_of, read
from gmi_drl.selector.tune import session as measuring
from gmi_drl.selector.tune import tuning
from gmi_drl.selector.tune.candidate import Measured
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
        "tune": {"objective": "steps", "keep": "none", "max_num_env": 64},
    }
    assert list(yaml.safe_load(text)) == ["version", "env", "layout", "tune"]
    assert load_config(found.output) == found.config
    head = [line for line in text.splitlines() if line.startswith("#")]
    assert head[0] == "# Made by gmi-drl tune"
    assert f"{found.steps_per_s:,.0f} steps/s (+- " in text
    words = "".join(text.split("\n# ")).replace(" ", "")  # long lines are broken
    assert f"madeby:gmi-drltune{config}" in words
    assert "runner-up: " in text
    assert "an update takes 1,024 steps" not in text  # it is what a plain user has
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


def test_what_follows_num_env_is_as_tune_keep_says_and_is_told(config, machine):
    plain = load_config(config, ["algorithm.horizon=32"])
    resolved, notes = tuning.resolve(plain, beside=config.parent, view="none")
    assert resolved.algorithm == plain.algorithm
    assert "horizon" not in " ".join(notes)
    words = ["algorithm.horizon=32", "tune.keep=update", "tune.batch=1024"]
    held = load_config(config, words)
    resolved, notes = tuning.resolve(held, beside=config.parent, view="none")
    each = resolved.env.num_env * resolved.layout.gmi_per_gpu
    assert resolved.algorithm.horizon * each == 1088
    assert notes[1:] == [
        "an update takes 1,088 steps instead of 1,024, with horizon 17 instead of 32"
    ]


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
        "tune": {**CONFIG["tune"], "max_num_env": 32, "min_num_env": 16},
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


def test_an_update_that_changes_is_said(config, machine):
    found = tuned_by(config, overrides=["env.num_env=16", "layout.gmi_per_gpu=1"])
    text = " ".join(found.output.read_text().replace("\n#", "").split())
    said = "an update takes 1,024 steps instead of 256, which may slow learning down"
    assert f"it may learn slower: the most steps/s were asked for, and {said}" in text
    assert any(said in note for note in found.notes)
    words = ["tune.keep=update", "tune.batch=512", "algorithm.horizon=64"]
    kept = tuned_by(config, overrides=words)
    assert kept.config.algorithm.horizon * kept.config.env.num_env * 2 == 816
    assert kept.config.algorithm.horizon == 17


# Objective learning -----------------------------------------------------------------------------

LEARNING = ["tune.objective=learning", "tune.keep=update", "env.num_env=16", "algorithm.horizon=64"]
LEARNING += ["layout.gmi_per_gpu=1", "algorithm.minibatches=4", "tune.min_num_env=8"]


class Training:
    """Takes the place of training: by a table of what the return of each num_env rises by."""

    def __init__(self, rates):
        self.rates, self.ran = rates, []

    def __call__(self, seconds, candidate, config, topology, beside):
        self.ran.append((candidate.num_env, candidate.row.gmi_per_gpu, config.run.seed))
        rate = self.rates(candidate)
        points = () if rate is None else ((0.0, 1.0), (seconds, 1.0 + rate * seconds))
        return TrainingCurve(points, seconds)


def test_the_most_goodput_is_chosen_and_a_run_is_made_as_long_as_it_needs(
    config, machine, monkeypatch
):
    monkeypatch.setattr(measuring, "train_for", lambda *given: pytest.fail("nothing is raced"))
    monkeypatch.setattr(machine, "answer", _by_update)
    found = tuned_by(config, overrides=[*LEARNING, "tune.race_s=0"])
    winner, prediction = found.chosen.winner, found.recorded.prediction
    assert winner.row.grown
    assert winner.samples > 2 * 1024
    assert (prediction.own_samples, prediction.own_horizon) == (1024, 64)
    assert prediction.decay == pytest.approx(0.99 * 0.95)
    text = " ".join(found.output.read_text().replace("\n#", "").split())
    assert "beside the config as given (1 GMI, num_env 16)" in text
    assert "times its time to a return" in text
    assert "gradient noise" not in text
    factor = 1 / prediction.of(winner)
    assert factor == pytest.approx((1 + winner.samples / 2048) / (1 + 1024 / 2048), rel=0.01)
    given = load_config(config).run.total_steps
    assert found.config.run.total_steps == pytest.approx(factor * given, rel=0.01)
    assert f"run.total_steps {found.config.run.total_steps:,} instead of {given:,}" in text
    resolved, notes = tuning.resolve(
        load_config(config, [*LEARNING, "tune.race_s=0"]), beside=config.parent, view="none"
    )
    assert resolved == found.config
    assert any("run.total_steps" in note for note in notes)


def test_small_gradient_noise_of_a_run_speaks_against_larger_updates(
    config, machine, monkeypatch, tmp_path
):
    words = [*LEARNING, "tune.race_s=0", "tune.gmi_per_gpu=[1]", "tune.max_num_env=128"]
    monkeypatch.setattr(machine, "answer", _rising)
    samples = []
    for noise_scale in (1e9, 1.0):
        run = run_of(config, tmp_path / f"{noise_scale:g}", noise_scale)
        found = tuned_by(config, overrides=words, again=True, run=run)
        samples.append(found.chosen.winner.samples)
    assert samples[0] > 2 * 1024 >= samples[1]


def run_of(config, folder, noise_scale):
    """The folder of a run of this config."""
    folder.mkdir()
    (folder / "config.yaml").write_text(config.read_text())
    (folder / "layout.json").write_text("{}")
    line = {"steps": 4096, "noise_scale": noise_scale}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    return folder


def _by_update(ask):
    """The larger an update, the faster."""
    rate = 10.0 * ask.candidate.samples
    return Measured(rate, 0.001, 9, ask.seconds, {"train": 1.0}, 1 << 30, None, 0.1, 1.0)


def _rising(ask):
    one = ask.candidate
    rate = 1e4 * one.num_env / (one.num_env + 100)
    return Measured(rate, 0.001, 9, ask.seconds, {"train": 1.0}, 1 << 30, None, 0.1, 1.0)


def test_a_race_decides_where_the_prediction_is_unsure(config, machine, monkeypatch):
    """All are nearly as fast; the config as given learns the most."""

    def answer(ask):
        num, count = ask.candidate.num_env, ask.candidate.row.gmi_per_gpu
        rate = 1e4 * num / (num + 50) * {1: 1.0, 2: 1.05}[count]
        return Measured(rate, 0.001, 9, ask.seconds, {}, 1 << 30, None, 0.1, 1.0)

    monkeypatch.setattr(machine, "answer", answer)
    training = Training(lambda one: 1.0 / one.num_env / one.row.gmi_per_gpu)
    monkeypatch.setattr(measuring, "train_for", training)
    found = tuned_by(config, overrides=LEARNING)
    assert found.chosen.winner.num_env == 16
    assert "led both rounds of the race" in found.chosen.why
    races = found.recorded.races
    assert {race["round"] for race in races} == {1, 2}
    seed = found.config.run.seed
    assert {ran[2] for ran in training.ran} == {seed, seed + 1}  # another one in round 2
    assert {race["candidate"] for race in races if race["winner"]} == {found.chosen.winner}
    judged = scores_of(found.recorded)
    best = max((one for one in judged if one.round == 2), key=lambda one: one.return_mean)
    assert best.candidate == found.chosen.winner
    monkeypatch.setattr(measuring, "train_for", Training(lambda one: None))
    other = tuned_by(config, overrides=LEARNING, again=True)
    assert not other.chosen.winner.row.grown
    assert any("no episode ended" in note and "keep decides alone" in note for note in other.notes)


def test_where_no_return_moves_an_update_is_kept_and_that_is_said(config, machine, monkeypatch):
    monkeypatch.setattr(measuring, "train_for", Training(lambda one: 0.0))
    monkeypatch.setattr(machine, "answer", _by_update)
    alone = tuned_by(config, overrides=[*LEARNING, "tune.race_s=0"])
    assert alone.chosen.winner.row.grown
    assert alone.recorded.choice["decided_by"] == "prediction"
    found = tuned_by(config, overrides=LEARNING, again=True)
    winner = found.chosen.winner
    assert not winner.row.grown
    assert winner.samples <= 2 * 1024
    assert found.recorded.choice["decided_by"] == "rule"
    assert any("no return rose" in one and "keep decides alone" in one for one in found.notes)
    text = " ".join(found.output.read_text().replace("\n#", "").split())
    assert "tune.keep alone decided, by which the next" in text


def test_races_leave_time_for_the_search_and_say_so(config, machine, monkeypatch):
    monkeypatch.setattr(measuring, "train_for", Training(lambda one: 1.0))
    found = tuned_by(config, overrides=[*LEARNING, "tune.race_s=290"])
    told = next(note for note in found.notes if note.startswith("races have"))
    assert told == (
        "races have 225 s and not tune.race_s, 290: the search needs a quarter of the budget of "
        "300 s"
    )
    assert sum(one["asked_s"] for one in found.recorded.races) <= 225
    with pytest.raises(ConfigError, match="must be less than budget_s, 60"):
        tuned_by(config, overrides=[*LEARNING, "tune.race_s=290"], budget=60)


def test_the_search_has_the_time_of_a_race_that_is_not_held(config, machine, monkeypatch):
    monkeypatch.setattr(measuring, "_LEAST_PROFILES", 1)
    asked = []
    for budget in (16, 64):
        tuned_by(config, overrides=[*LEARNING, "tune.race_s=0"], budget=budget, again=True)
        asked.append(len(machine.asks) - sum(asked))
    assert asked[0] < asked[1]
    monkeypatch.setattr(measuring.race, "finalists", lambda *given: [])
    found = tuned_by(config, overrides=[*LEARNING, "tune.race_s=48"], budget=64, again=True)
    assert len(machine.asks) - sum(asked) == asked[1]
    assert any("no race" in note for note in found.notes)


def test_a_run_may_say_how_noisy_its_gradients_are(config, machine, tmp_path):
    tuned_by(config, overrides=[*LEARNING, "tune.race_s=0"])
    asked = len(machine.asks)
    run = run_of(config, tmp_path / "run", 2048.0)
    found = tuned_by(config, overrides=[*LEARNING, "tune.race_s=0"], run=run)
    assert len(machine.asks) == asked  # what was measured is on record
    told = f"gradient noise scale 2,048 samples ({run}, of 4,096 steps)"
    assert told in found.notes
    assert told in " ".join(found.output.read_text().replace("\n#", "").split())
    (run / "metrics.jsonl").write_text('{"steps": 4096, "noise_scale": 700.0}\n')
    found = tuned_by(config, overrides=[*LEARNING, "tune.race_s=0"], run=run)
    assert found.recorded.prediction.noise_scale == 700.0
    with pytest.raises(NoiseSourceError, match="no run can be read there"):
        tuned_by(config, overrides=LEARNING, run=tmp_path / "gone")
    with pytest.raises(NoiseSourceError, match="decides nothing where steps/s are asked for"):
        tuned_by(config, run=run)


def test_algorithm_2_and_serving_know_throughput_alone(config, machine, monkeypatch):
    monkeypatch.setattr(measuring, "train_for", lambda *given: pytest.fail("nothing trains"))
    found = tuned_by(config, overrides=[*LEARNING, "tune.algorithm=paper"])
    assert found.chosen.winner.num_env == 32
    serving = [
        "mode=serving", "tune.objective=learning", "env.num_env=16", "layout.gmi_per_gpu=1"
    ]  # fmt: skip
    assert tuned_by(config, overrides=serving).chosen.winner.num_env == 32
