"""Starts a Ray cluster of several hosts on this one, and roles and launches that run on it.

As a program: `python bodies_clusters.py HOSTS` prints the address and ends with its input;
`python bodies_clusters.py launch JSON` launches CONFIG with what it is given beside.
"""

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

import gmi_drl
from gmi_drl import runtime

CONFIG = {
    "version": 1,
    "env": {"id": "CartPole-v1", "num_env": 8},
    "algorithm": {"network": [16], "minibatches": 2, "epochs": 2},
    "hardware": {"backend": "cpu"},
}


class Waiter(gmi_drl.DRL_role):
    """Runs until it is stopped, and says when all are there."""

    recoverable = True

    def GMI_run(self):
        self.mgr.await_set_up()
        self.mgr.report({"kind": "note", "message": f"gmi {self.GMI_id} of host is there"})
        while not runtime.stop_requested():
            time.sleep(0.05)
        return self.GMI_id


def cluster(hosts):
    """Starts one, and ends it when the input does."""
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="gdt-ray-", dir="/tmp")  # paths of its sockets are long
    options = {"num_cpus": 1, "object_store_memory": 80_000_000}
    started = Cluster(
        initialize_head=True,
        head_node_args={**options, "include_dashboard": False, "temp_dir": folder},
    )
    try:
        for _ in range(hosts - 1):
            started.add_node(**options)
        print(started.address, flush=True)
        sys.stdin.read()
    finally:
        started.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    if sys.argv[1] == "launch":
        config = {**CONFIG, **json.loads(sys.argv[2])}
        gmi_drl.launch(config, view="plain", import_path=Path(__file__).parent)
    else:
        cluster(int(sys.argv[1]))
