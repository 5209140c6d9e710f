"""Counters that outlive their processes."""

import signal
import subprocess
import sys

import pytest

from gmi_drl.comm.shm.tally import create_tally

DYING = """
import os, signal, sys
from gmi_drl.comm.shm.tally import TallySpec
from gmi_drl.runtime.store.memfd import Memfd
tally = TallySpec(("lives", "steps"), Memfd(int(sys.argv[1]))).open()
tally[1, "steps"] = 2**64 - 1
tally[2, "lives"] += 1
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_counters_are_there_after_their_writer_was_killed():
    spec = create_tally(3, ("lives", "steps"))
    command = [sys.executable, "-c", DYING, str(spec.memfd.fd)]
    ended = subprocess.run(command, pass_fds=[spec.memfd.fd], timeout=50)
    assert ended.returncode == -signal.SIGKILL
    tally = spec.open()
    assert tally.row(1) == {"lives": 0, "steps": 2**64 - 1}
    assert [tally[gmi, "lives"] for gmi in range(3)] == [0, 0, 1]


def test_a_tally_without_rows_or_names_is_refused():
    for gmis, names in ((0, ("a",)), (1, ())):
        with pytest.raises(ValueError, match="one or more of both"):
            create_tally(gmis, names)
