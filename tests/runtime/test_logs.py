"""Logs that are too long begin anew, and texts that are too long are cut; their ends are kept."""

import os
import re
from datetime import timedelta
from pathlib import Path

import pytest

import bodies_tasks
from bodies_runtime import Probe
from gmi_drl import runtime
from gmi_drl.runtime.errors import truncate
from gmi_drl.runtime.process import logs

LONG = timedelta(seconds=60)


def test_a_log_that_is_too_long_begins_anew_and_its_end_is_kept(tmp_path):
    path = tmp_path / "a.log"
    with open(path, "ab", buffering=0) as log:  # as a process has it
        for line in range(100):
            log.write(b"line %d\n" % line)
        logs.rotate(str(path), 10_000)
        assert os.listdir(tmp_path) == ["a.log"]
        logs.rotate(str(path), 200)
        assert path.read_bytes() == b""
        kept = (tmp_path / "a.log.1").read_text()
        assert len(kept) == 200
        assert kept.endswith("line 98\nline 99\n")
        log.write(b"and on\n")
        assert logs.log_tail(path).endswith("\nline 98\nline 99\nand on")
        log.write(b"x" * 300)
        logs.rotate(str(path), 200)
    assert (tmp_path / "a.log.1").read_text() == "x" * 200
    assert sorted(os.listdir(tmp_path)) == ["a.log", "a.log.1"]


def test_what_is_no_file_or_is_missing_is_left_alone(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path / "none", tmp_path):
        logs.rotate(str(path), 0)
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_log_for_whose_end_there_is_no_room_stays_as_it_is(tmp_path, monkeypatch):
    path = tmp_path / "a.log"
    path.write_text("line\n" * 100)

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "sendfile", full)
    logs.rotate(str(path), 200)
    assert path.read_text() == "line\n" * 100
    assert os.listdir(tmp_path) == ["a.log"]


class Prints(Probe):
    def print_bytes(self, nbytes):
        line = "a line of a program that prints for weeks\n"
        for _ in range(nbytes // len(line) + 1):
            os.write(1, line.encode())  # as native code does
        print("the last line", flush=True)


@pytest.fixture
def fresh():
    runtime.init()
    yield
    runtime.shutdown()


@pytest.mark.parametrize("kept", [True, False])
def test_an_actor_that_prints_without_end_fills_no_disk_and_its_death_shows_the_end(
    fresh, tmp_path, kept
):
    most = logs.LOG_BYTES if kept else logs.PRIVATE_LOG_BYTES
    options = {"log": tmp_path / "actor.log"} if kept else {}
    actor = runtime.remote(Prints).options(**options).remote()
    runtime.get(actor.print_bytes.remote(most), LONG)
    (path,) = tmp_path.glob("*.log") if kept else runtime.run_directory().glob("[0-9]*.log")
    bodies_tasks.until(lambda: path.stat().st_size == 0, "a log that begins anew")
    assert Path(f"{path}.1").stat().st_size == most
    with pytest.raises(runtime.ActorDiedError) as caught:
        runtime.get(actor.die.remote(1), LONG)
    assert caught.value.log_tail.splitlines()[-2:] == ["the last line", "about to die"]
    assert Path(f"{path}.1").exists() == kept


def test_a_text_is_cut_in_its_middle_and_says_how_much_is_missing():
    assert truncate("short") == "short"
    text = truncate("begin" + "x" * 50_000_000 + "end")
    assert len(text) < 40_000
    assert text.startswith("begin")
    assert text.endswith("end")
    assert re.search(r"49,967,240 of 50,000,008 characters are left out here", text)


class Verbose(ValueError):
    def __init__(self, text):
        super().__init__(text)
        self.text = text
        self.number = 3


def raises_much():
    raise Verbose("begin" + "x" * 50_000_000 + "end")


def test_an_exception_of_fifty_megabytes_arrives_cut(fresh):
    with pytest.raises(Verbose) as caught:
        runtime.get(runtime.remote(raises_much).remote(), LONG)
    error = caught.value
    for text in (str(error), error.remote_traceback, error.text, error.cause.args[0]):
        assert len(text) < 40_000
        assert "characters are left out here" in text
        assert text.rstrip().endswith("xend")
    assert error.number == 3
