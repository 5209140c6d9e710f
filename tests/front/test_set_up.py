"""The start of a run: who makes environments for longer than `comm.timeout_s` is waited for."""

import json
import os
import signal
import subprocess
import sys

import pytest

import bodies_set_up as bodies
import faults
import gmi_drl
from gmi_drl.gmi import GmiDied
from small_jobs import job_file, launch

KINDS = {
    "sync": ({}, {"trainer": bodies.LateHolistic}),
    "tdg_ex, agent": ({"layout__template": "tdg_ex"}, {"agent": bodies.LateAgent}),
    "tdg_ex, trainer": ({"layout__template": "tdg_ex"}, {"trainer": bodies.LateTrainer}),
    "async": (
        {"mode": "async", "hardware__num_gpus": 2, "layout__gmi_per_gpu": 1},
        {"agent": bodies.LateAgent},
    ),
    "serving": (
        {"mode": "serving", "layout__template": "tdg"},
        {"simulator": bodies.LateSimulator},
    ),
}


pytestmark = pytest.mark.usefixtures("warm")


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Has GMIs killed at moments; gives where they note what they do."""

    def written(*moments):
        faults.script(monkeypatch, tmp_path / "faults", *moments)
        return tmp_path / "faults"

    return written


def config(tmp_path, timeout_s=1.5, **changes):
    return job_file(
        tmp_path,
        changes,
        run={"total_steps": 8 * 8 * 8, "eval_episodes": 0},
        algorithm={"network": [8], "horizon": 8, "minibatches": 1},
        layout={"gmi_per_gpu": 2},
        comm={"timeout_s": timeout_s},
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_environments_that_take_longer_than_the_timeout_are_waited_for(tmp_path, script, kind):
    path, (changes, roles) = script(), KINDS[kind]
    result = launch(config(tmp_path, **changes), roles=roles)
    assert (result.state, result.restarts) == ("finished", 0)
    made_s = bodies.notes(path, "made_s")
    assert made_s
    for began_s in bodies.notes(path, "began_s"):  # making them is not training time
        assert began_s > max(made_s)


@pytest.mark.slow
def test_those_of_the_evaluation_too(tmp_path, script):
    path = script()
    roles = {"trainer": bodies.LateHolistic}
    result = launch(config(tmp_path, run__eval_episodes=4), roles=roles)
    assert result.eval_return is not None
    assert len(bodies.notes(path, "made_s")) == 2


@pytest.mark.slow
def test_one_that_is_killed_meanwhile_or_later_gets_that_time_again(tmp_path, script):
    path = script((1, "start", 0), (1, "iterate", 1), (0, "iterate", 2))
    roles = {"trainer": bodies.LateHolistic}
    # A process is replaced in less than the timeout, whatever else the machine does.
    result = launch(config(tmp_path, 5), roles=roles)
    assert (result.state, result.iteration) == ("finished", 4)
    assert result.restarts == faults.struck(path) == 3


@pytest.mark.slow
def test_one_that_fails_ends_the_run_at_once_and_is_named(tmp_path):
    with pytest.raises(GmiDied, match=r"(?s)gmi 1 .*no environments"):
        launch(config(tmp_path), roles={"trainer": bodies.Fails})


def test_logged_warnings_are_shown_once_whatever_their_numbers(tmp_path, capsys):
    result = gmi_drl.launch(config(tmp_path, 30), view="plain", roles={"trainer": bodies.Logs})
    shown = [line for line in capsys.readouterr().out.splitlines() if "ignored" in line]
    assert sorted(shown) == [f"warning: gmi {gmi}: 1 contacts were ignored" for gmi in (0, 1)]
    log = (result.folder / "logs" / "gmi1.log").read_text()
    assert f"{result.iteration} contacts were ignored" in log


@pytest.mark.slow
def test_before_training_the_first_interrupt_ends_the_run(tmp_path):
    path = config(tmp_path, roles={"trainer": {"class": "bodies_set_up:NeverMade"}})
    process = subprocess.Popen(
        [sys.executable, "-m", "gmi_drl", "launch", path, "--plain"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    try:
        seen = next(line for line in process.stdout if "makes environments" in line)
        assert seen
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert "stopping after this iteration" not in rest
    (state,) = (tmp_path / "runs").rglob("run.json")
    assert json.loads(state.read_text())["state"] == "stopped"
