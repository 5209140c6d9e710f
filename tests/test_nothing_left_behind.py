"""The check that every test runs under does find what it looks for."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

LEAVES = """
import os, subprocess, threading, time
from pathlib import Path

kept = []
child = subprocess.Popen(["sleep", "60"])  # of before all tests

def teardown_module():
    child.kill()
    child.wait()

def test_patches_getpid(monkeypatch):
    stranger = int(os.environ["STRANGER"])
    monkeypatch.setattr(os, "getpid", lambda: stranger)

def test_leaves_everything():
    kept.append(subprocess.Popen(["sleep", "30"]))
    while not Path(f"/proc/{kept[0].pid}/cmdline").read_bytes().startswith(b"sleep"):
        time.sleep(0.001)  # Popen may return before exec has
    threading.Thread(target=time.sleep, args=(1,), name="forgotten").start()
    (Path(os.environ["XDG_RUNTIME_DIR"]) / "gmi-drl-1-x").mkdir()

def test_leaves_an_orphan():
    begun = "sleep 31 & until grep -q ^sleep /proc/$!/cmdline; do :; done"
    subprocess.run(["sh", "-c", begun], check=True)

def test_leaves_nothing():
    pass
"""


def test_what_is_left_behind_fails_the_test_that_left_it(tmp_path):
    text = Path(__file__).with_name("conftest.py").read_text()
    assert "_LINGER_S = 20.0" in text
    (tmp_path / "conftest.py").write_text(text.replace("_LINGER_S = 20.0", "_LINGER_S = 0.05"))
    (tmp_path / "test_it.py").write_text(LEAVES)
    # Whose child is not the tests' to kill, whatever one of them has patched.
    stranger = subprocess.Popen(["sh", "-c", "sleep 600; :"], start_new_session=True)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
            | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            | {"STRANGER": str(stranger.pid)},
        )
        assert stranger.poll() is None
    finally:
        os.killpg(stranger.pid, signal.SIGKILL)
        stranger.wait()
    output = done.stdout + done.stderr
    assert "4 passed, 2 errors" in output, output
    assert "test_patches_getpid left behind" not in output
    assert "test_leaves_everything left behind" in output
    assert "sleep 30" in output
    assert "thread forgotten" in output
    assert "gmi-drl-1-x" in output
    assert "test_leaves_an_orphan left behind" in output
    assert "sleep 31" in output
    pids = set(re.findall(r"process (\d+): sleep", output))  # CI prints the errors twice
    assert len(pids) == 2
    assert not any(map(_runs, pids))


def _runs(pid):
    try:
        stat = Path("/proc", pid, "stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
