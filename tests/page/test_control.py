"""Stop and checkpoint: who trains a run is asked, and nobody else ever."""

import json
import subprocess
import sys

import pytest

import pages
from gmi_drl.launcher.folder.run_folder import lock_of
from gmi_drl.page.app import app_of
from gmi_drl.page.control import CannotAsk, ask_for_checkpoint, stop
from gmi_drl.roles.state import request

LAUNCHER = """
import signal, sys
from pathlib import Path
from gmi_drl.runtime import shared_lock
if sys.argv[2] == "background":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
if sys.argv[2] != "deaf":
    def ask(number, frame): print("asked by", signal.Signals(number).name, flush=True); sys.exit(0)
    signal.signal(signal.SIGTERM, ask)
    if sys.argv[2] != "background": signal.signal(signal.SIGINT, ask)
else:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
if sys.argv[1]: lock = shared_lock.begin(Path(sys.argv[1]))
print("ready", flush=True)
signal.pause()
"""


@pytest.fixture
def launcher():
    """Starts a process that holds the lock of a run, and says which signal it gets."""
    started = []

    def start(path, how="foreground"):
        lock = "" if path is None else str(lock_of(path))
        process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, lock, how], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(10)
        process.stdout.close()


def said(path, **changes):
    return json.loads((path / "run.json").read_text()) | changes


@pytest.mark.parametrize(("how", "number"), [("foreground", "SIGINT"), ("background", "SIGTERM")])
def test_the_launcher_is_asked_as_by_ctrl_c(tmp_path, launcher, how, number):
    """A shell's background job ignores SIGINT; a launch takes SIGTERM as the same."""
    path = pages.make_run(tmp_path, state="running")
    process = launcher(path, how)
    assert stop(path, said(path, pid=process.pid)) == process.pid
    assert process.stdout.readline() == f"asked by {number}\n"


def test_a_launcher_that_would_die_of_it_is_left_alone(tmp_path, launcher):
    path = pages.make_run(tmp_path, state="running")
    process = launcher(path, "deaf")
    with pytest.raises(CannotAsk, match=f"kill {process.pid}"):
        stop(path, said(path, pid=process.pid))
    assert process.poll() is None


BOTH = pytest.mark.parametrize("ask", [stop, ask_for_checkpoint])


@BOTH
def test_a_process_that_does_not_train_the_run_is_left_alone(tmp_path, launcher, ask):
    """Its number is in run.json because the launcher was killed, or because somebody wrote it."""
    path = pages.make_run(tmp_path, state="running")
    bystander = launcher(None)
    with pytest.raises(CannotAsk, match="does not train this run"):
        ask(path, said(path, pid=bystander.pid))
    launcher(path)  # that another one trains it makes no difference
    with pytest.raises(CannotAsk, match="does not train this run"):
        ask(path, said(path, pid=bystander.pid))
    assert bystander.poll() is None
    assert not request.is_requested(path)


@BOTH
@pytest.mark.parametrize("pid", [0, 1, -1, "1", None, True, 2**40, 1.5])
def test_a_number_that_is_no_process_is_refused(tmp_path, pid, ask):
    path = pages.make_run(tmp_path, state="running")
    with pytest.raises((CannotAsk, OverflowError)):
        ask(path, said(path, pid=pid))
    assert not request.is_requested(path)


@BOTH
def test_a_process_that_is_gone_is_told(tmp_path, launcher, ask):
    path = pages.make_run(tmp_path, state="running")
    process = launcher(None)
    process.kill()
    process.wait(10)
    with pytest.raises(CannotAsk, match="is gone"):
        ask(path, said(path, pid=process.pid))
    assert not request.is_requested(path)


@BOTH
def test_a_run_that_has_ended_is_asked_for_nothing(tmp_path, launcher, ask):
    path = pages.make_run(tmp_path)
    process = launcher(path)
    with pytest.raises(CannotAsk, match="nobody to ask"):
        ask(path, said(path, pid=process.pid))
    assert process.poll() is None
    assert not request.is_requested(path)


def test_a_run_that_serves_has_nothing_to_save(tmp_path, launcher):
    path = pages.make_run(tmp_path, state="running")
    config = path / "config.yaml"
    config.write_text(config.read_text().replace("mode: sync", "mode: serving"))
    with pytest.raises(CannotAsk, match="serves a policy"):
        ask_for_checkpoint(path, said(path, pid=launcher(path).pid))
    assert not request.is_requested(path)


def test_a_request_writes_through_no_link(tmp_path, launcher):
    path, elsewhere = pages.make_run(tmp_path, state="running"), tmp_path / "elsewhere"
    (path / request.FILE).symlink_to(elsewhere)
    ask_for_checkpoint(path, said(path, pid=launcher(path).pid))
    assert not elsewhere.exists()
    elsewhere.write_text("kept")
    request.take_request(path)
    assert elsewhere.read_text() == "kept"
    assert not request.is_requested(path)


def test_the_page_asks_a_run_where_it_may(tmp_path, launcher):
    path = pages.make_run(tmp_path, state="running")
    process = launcher(path)
    (path / "run.json").write_text(json.dumps(said(path, pid=process.pid)))
    live, access = pages.live_of(tmp_path, control=True), pages.access()
    browser = pages.Browser(app_of(live, access))
    browser.get(f"/login?token={access.token}")
    (run,) = live.catalog.as_json()["runs"]
    answer = browser.post(f"/runs/{run['id']}/checkpoint", {"X-GMI-DRL": "1"})
    assert (answer.status, answer.json()) == (200, {"asked": process.pid})
    assert request.is_requested(path)
    again = browser.post(f"/runs/{run['id']}/checkpoint", {"X-GMI-DRL": "1"})
    assert again.status == 200  # one is asked for already
    answer = browser.post(f"/runs/{run['id']}/stop", {"X-GMI-DRL": "1"})
    assert (answer.status, answer.json()) == (200, {"asked": process.pid})
    assert process.stdout.readline() == "asked by SIGINT\n"
    process.wait(10)
    again = browser.post(f"/runs/{run['id']}/stop", {"X-GMI-DRL": "1"})
    assert again.status == 409
    assert "is gone" in again.json()["error"]
    for route in ("stop", "checkpoint"):
        assert browser.post(f"/runs/../{route}", {"X-GMI-DRL": "1"}).status in (404, 405)
        assert browser.post(f"/runs/0123/{route}", {"X-GMI-DRL": "1"}).status == 404
