"""Launchers that are asked to end before they train: nothing of what they have made stays."""

import contextlib
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

import boxes
import fake_gpus
import fake_nvml
from gmi_drl.gmi import discover
from gmi_drl.launcher import interrupts
from gmi_drl.launcher.interrupts import every_signal_counts, terminate_as_interrupt
from gmi_drl.report.run_list import list_runs
from waits import until

BODY = Path(__file__).parents[1] / "bodies_interrupted.py"


@pytest.mark.parametrize(
    ("where", "numbers"),
    [
        ("links", [signal.SIGTERM]),
        ("gang", [signal.SIGTERM]),
        ("gang", [signal.SIGHUP, signal.SIGTERM, signal.SIGTERM]),  # as a terminal that is closed
    ],
)
def test_a_launcher_that_has_just_begun_gives_everything_back(
    tmp_path, monkeypatch, where, numbers
):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake_nvml.install(monkeypatch, *boxes.h200())
    fake_gpus.install(monkeypatch, tmp_path, discover())
    path, mark = tmp_path / "pole.yaml", tmp_path / "held"
    path.write_text(
        yaml.safe_dump(
            {
                "version": 1,
                "run": {"name": "t", "folder": str(tmp_path / "runs")},
                "env": {"id": "CartPole-v1", "num_env": 8},
                "hardware": {"backend": "mps"},
                "layout": {"gmi_per_gpu": 2},
            }
        )
    )
    process = subprocess.Popen(
        [sys.executable, BODY, where, path, mark], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        until(lambda: mark.exists() or process.poll() is not None, "that it has come there")
        assert process.poll() is None, process.stdout.read().decode()
        assert fake_gpus.mps_pids()
        for number in numbers:
            process.send_signal(number)
        output, _ = process.communicate(timeout=40)
        assert process.returncode == 130, output.decode()
    finally:
        process.kill()
        process.communicate()
    assert fake_gpus.mps_pids() == []
    assert not list(Path(os.environ["XDG_RUNTIME_DIR"]).glob("gmi-lease-*"))
    (run,) = list_runs(tmp_path / "runs")
    assert run.state == "stopped"


def raised(numbers):
    """How many of these signals raise, one after the other, here."""
    count = 0
    for number in numbers:
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            count += 1
    return count


@pytest.fixture(autouse=True)
def hang_up_heard():
    """Where the tests run under nohup, SIGHUP is ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_the_first_signal_stops_and_the_others_do_not_disturb_giving_back(monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    with terminate_as_interrupt(), terminate_as_interrupt():
        assert raised([signal.SIGTERM, signal.SIGHUP, signal.SIGTERM]) == 1
        monkeypatch.setattr(interrupts, "_GIVING_BACK", timedelta(0))  # it takes too long
        assert raised([signal.SIGTERM]) == 1
    assert signal.getsignal(signal.SIGTERM) == before


def test_while_a_run_is_watched_every_signal_counts():
    with terminate_as_interrupt():
        assert raised([signal.SIGTERM]) == 1  # somebody has swallowed it
        with contextlib.suppress(KeyboardInterrupt), every_signal_counts():
            assert raised([signal.SIGTERM] * 2) == 2
            signal.raise_signal(signal.SIGHUP)
        assert raised([signal.SIGTERM]) == 0


def test_a_signal_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    try:
        with terminate_as_interrupt():
            assert raised([signal.SIGHUP]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
