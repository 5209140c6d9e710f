"""`tune` with real processes: what is found launches, and what fails or is killed is survived."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gmi_drl.launcher.colocated_runs import records_folder
from gmi_drl.launcher.plan.planning import find_devices, planned
from gmi_drl.launcher.start.launcher import launch
from gmi_drl.placement import Topology, load_config
from gmi_drl.selector.record.record import promise_of, read
from gmi_drl.selector.tune import tuning
from gmi_drl.selector.tune.profile.profiler import train_for
from gmi_drl.selector.tune.space import space_of
from tune_machine import CONFIG, tuned_by, written
from waits import until

BODY = Path(__file__).parents[1] / "bodies_tune.py"


@pytest.mark.slow
def test_what_is_tuned_launches_as_it_is(tmp_path, monkeypatch, warm):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tuning.tune_picture, "draw", lambda recorded, folder: [])
    path = written(
        tmp_path / "auto.yaml",
        {
            **CONFIG,
            "run": {"folder": str(tmp_path / "runs"), "total_steps": 512, "eval_episodes": 0},
            "algorithm": {"network": [8]},
            "layout": {"gmi_per_gpu": 1},
            "tune": {**CONFIG["tune"], "max_num_env": 4},
        },
    )
    found = tuned_by(path, budget=12)
    assert found.steps_per_s > 0
    assert planned(found.config).gmis[0].num_env == 4
    assert promise_of(found.config, find_devices(found.config), tmp_path) is not None
    result = launch(found.output, view="none")
    assert (result.state, result.steps) == ("finished", 512)


@pytest.mark.slow
def test_a_race_trains_for_its_seconds_and_a_dead_role_loses_it(tmp_path, warm):
    data = {**CONFIG, "algorithm": {"network": [8]}, "run": {"folder": str(tmp_path)}}
    config, topology = load_config(data), Topology.from_cores(sorted(os.sched_getaffinity(0)))
    one = space_of(config, topology)[0].rows[0][0]
    trained = train_for(0.5, one, config, topology, tmp_path)
    assert trained.seconds >= 0.5
    assert trained.points
    assert all(value >= 1.0 for _, value in trained.points)  # what a step of CartPole pays
    short = load_config({**data, "run": {"folder": str(tmp_path), "total_steps": 640}})
    done = train_for(30.0, one, short, topology, tmp_path)
    assert done.seconds == 30.0  # its return stays what it is
    assert done.points[-1][0] < 30.0
    (tmp_path / "narrow.py").write_text(NARROW.replace("512", "1"))
    config = load_config({**data, "roles": {"trainer": "narrow:Narrow"}})
    failed = train_for(0.5, one, config, topology, tmp_path)
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
    monkeypatch.setattr(tuning.tune_picture, "draw", lambda recorded, folder: [])
    (tmp_path / "narrow.py").write_text(NARROW)
    path = written(
        tmp_path / "auto.yaml",
        {
            **CONFIG,
            "roles": {"trainer": "narrow:Narrow"},
            "layout": {"gmi_per_gpu": 1},
            "tune": {**CONFIG["tune"], "min_num_env": 256, "max_num_env": 1024},
        },
    )
    found = tuned_by(path, budget=18)
    assert found.chosen.winner.num_env in (256, 384)
    profiles = read(found.record).profiles
    failed = [answer for ask, answer in profiles if ask.candidate.num_env >= 512]
    assert failed
    assert all("no more than 511" in one.text and one.reason == "crash" for one in failed)


@pytest.mark.slow
def test_of_two_tuners_at_once_the_second_takes_what_the_first_found(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = {**CONFIG, "layout": {"gmi_per_gpu": 1}, "tune": {**CONFIG["tune"], "max_num_env": 6}}
    path = written(tmp_path / "auto.yaml", data)
    tuners = [
        subprocess.Popen(
            [sys.executable, BODY, path, "--plain", "--budget", "10", "-o", tmp_path / name],
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
    path = written(tmp_path / "auto.yaml", {**CONFIG, "tune": {**CONFIG["tune"], "max_num_env": 8}})
    command = [sys.executable, BODY, path, "--plain", "--budget", "20"]

    def lines():
        found = list(records_folder().glob("*.jsonl"))
        return found[0].read_bytes().split(b"\n")[:-1] if found else []  # whole ones

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        until(lambda: len(lines()) >= 3 or process.poll() is not None, "a measurement", 60)
        assert process.poll() is None, process.stdout.read().decode()
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    before = lines()
    again = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stdout + again.stderr
    after = lines()
    assert after[: len(before)] == before
    recalled = [line for line in again.stdout.splitlines() if "  on record" in line]
    assert len(recalled) == len(before) - 1  # beside the header
    assert len(after) > len(before)
    assert "tuned.yaml" in again.stdout
    assert read(tmp_path / "tuned.report" / "record.jsonl").fresh
