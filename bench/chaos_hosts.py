#!/usr/bin/env python3
"""Is `gmi-drl` on a cluster of two hosts, both this machine: what chaos.py launches of mode hosts.

The launchers of both hosts are real, and the Ray that starts them is that of the tests.
"""

import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import fake_ray
from fake_ray import FakeHost
from gmi_drl.cli.main import main
from gmi_drl.launcher.hosts import agent

if __name__ == "__main__":
    agent.SILENCE_S = math.inf  # agents share this process, and one that is not asked would end it
    with fake_ray.cluster(FakeHost("127.0.0.2"), FakeHost("127.0.0.3")) as address:
        raise SystemExit(main([*sys.argv[1:], "--set", f"cluster.address={address}"]))
