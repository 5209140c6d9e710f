"""A launcher on a GPU that is not there, held where its slices are made and a process is started.

Arguments: where it is held ("links": they are measured; "gang"), a config, and a file that it
writes then.
"""

import sys
import time
from pathlib import Path

import pytest

import boxes
import fake_nvml
import private_leases  # noqa: F401
from gmi_drl.cli import main as cli
from gmi_drl.comm.plan import measure
from gmi_drl.gmi import gang
from gmi_drl.launcher.plan.planning import reduction_of
from gmi_drl.launcher.start import jobs

HELD = {"links": measure, "gang": gang}


def main(where, config, mark):
    patch = pytest.MonkeyPatch()
    fake_nvml.install(patch, *boxes.h200())
    if where == "links":
        anew = lambda config, layout, **how: reduction_of(config, layout, "anew", **how)  # noqa: E731
        patch.setattr(jobs, "reduction_of", anew)
    start = HELD[where].start_process

    def held(*arguments, **options):
        start(*arguments, **options)
        Path(mark).touch()
        while True:
            time.sleep(0.01)  # a signal that comes just before one sleep is seen after it

    patch.setattr(HELD[where], "start_process", held)
    return cli.main(["launch", config, "--plain"])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
