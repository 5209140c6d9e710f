"""The fault injector does inject, where it is told to and nowhere else."""

import os
import signal
import subprocess
import sys
import time

import pytest

import faults

CODE = "import faults; from faults import Fault; faults.inject([{}], {}, {})"


def in_child(fault, gmi, step):
    return subprocess.Popen(
        [sys.executable, "-S", "-c", CODE.format(fault, gmi, step)],
        env={**os.environ, "PYTHONPATH": os.path.dirname(faults.__file__)},
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (faults.kill(gmi=2, at_step=5), -signal.SIGKILL),
        (faults.kill(gmi=2, at_step=5, by="SIGABRT"), -signal.SIGABRT),
        (faults.leave(gmi=2, at_step=5, code=9), 9),
        (faults.raise_error(gmi=2, at_step=5), 1),
    ],
)
def test_it_happens_to_that_gmi_at_that_step_only(fault, expected):
    for gmi, step in ((2, 4), (2, 6), (1, 5), (2, 5)):
        process = in_child(fault, gmi, step)
        _, errors = process.communicate()
        assert process.returncode == (expected if (gmi, step) == (2, 5) else 0)
        assert ("Injected: gmi 2 at step 5" in errors) == (process.returncode == 1)


def test_a_hanging_gmi_listens_to_nobody():
    with in_child(faults.hang(gmi=0, at_step=0), 0, 0) as process:
        ignores_term = 1 << (signal.SIGTERM - 1)
        while not ignores_term & _ignored(process.pid):
            time.sleep(0.001)
        process.terminate()
        assert process.poll() is None
        process.kill()
        assert process.wait() == -signal.SIGKILL


def _ignored(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1], 16) for line in file if line.startswith("SigIgn"))


def test_a_scripted_moment_comes_true_once_and_only_there(tmp_path, monkeypatch):
    path = tmp_path / "faults"
    faults.script(monkeypatch, path, (1, "reduce", 3), (1, "reduce", 3), (0, "evaluate", 9))
    code = "import faults; faults.strike({}, {!r}, {}); print('alive')"
    for gmi, point, iteration, expected in (
        (1, "reduce", 2, 0),
        (0, "reduce", 3, 0),
        (1, "simulate", 3, 0),
        (1, "reduce", 3, -signal.SIGKILL),
        (1, "reduce", 3, -signal.SIGKILL),  # it stands there twice
        (1, "reduce", 3, 0),
        (0, "evaluate", 9, -signal.SIGKILL),
    ):
        ended = subprocess.run(
            [sys.executable, "-S", "-c", code.format(gmi, point, iteration)],
            env={**os.environ, "PYTHONPATH": os.path.dirname(faults.__file__)},
            check=False,
        )
        assert ended.returncode == expected
    assert faults.struck(path) == 3
