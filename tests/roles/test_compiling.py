"""Who compiles: one alone, then all at once; and nobody waits for one that is gone."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from gmi_drl.roles.envs.compiling import first_alone

LIMIT_S = 60
KILLED = """
import os, pathlib, sys
from gmi_drl.roles.envs.compiling import first_alone
with first_alone(pathlib.Path(sys.argv[1])):
    os.kill(os.getpid(), 9)
"""


def test_the_first_is_alone_and_the_others_come_together_when_it_is_done(tmp_path):
    path, inside, most_before, told = tmp_path / "compiled", [], [], []
    done, meet = threading.Event(), threading.Barrier(3, timeout=LIMIT_S)

    def make(first):
        with first_alone(path, on_first=lambda: told.append(first)):
            if not done.is_set():
                inside.append(first)
                most_before.append(len(inside))
                threading.Event().wait(0.2)  # while the others are waiting
                done.set()
            else:
                meet.wait()  # only if all the others are in their bodies at the same time

    with ThreadPoolExecutor(4) as pool:
        for made in [pool.submit(make, n) for n in range(4)]:
            made.result(LIMIT_S)
    assert most_before == [1]
    assert len(told) == 1


def test_one_that_fails_or_is_killed_lets_the_next_one_be_the_first(tmp_path):
    path = tmp_path / "compiled"
    with pytest.raises(OSError, match="no compiler"), first_alone(path):
        raise OSError("no compiler")
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(path)], timeout=LIMIT_S, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert killed.returncode == -9
    assert not path.exists()
    with first_alone(path):
        pass
    assert path.exists()


def test_patience_with_one_that_takes_for_ever_ends(tmp_path):
    path = tmp_path / "compiled"
    with first_alone(path), first_alone(path, timedelta(0)):
        pass  # both are in
    assert path.exists()
