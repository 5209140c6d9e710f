"""Starts a Ray cluster of several hosts on this one, and roles and launches that run on it.

As a program: `python bodies_clusters.py HOSTS` prints the address and ends with its input;
`python bodies_clusters.py launch JSON` launches CONFIG with what it is given beside.
"""

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import gmi_drl
from gmi_drl import runtime
from gmi_drl.comm import GroupFinished

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
            time.sleep(0.05)  # between two looks
        return self.GMI_id


class LateDeath(gmi_drl.DRL_role):
    """GMI 0 finishes at once; GMI 1 dies after that, and comes back."""

    recoverable = True

    def GMI_run(self):
        self.mgr.await_set_up()
        group, lives = self.mgr.context.group, self.mgr.context.process + 1
        try:
            group.reform()
            group.barrier()
            if self.GMI_id == 1:
                finished = self.mgr.context.private / "hosts" / "outcome.json"
                while not finished.exists():  # handed here by the launching program
                    time.sleep(0.01)  # between two looks
                os.kill(os.getpid(), signal.SIGKILL)
            group.finish("well done")
        except GroupFinished as done:
            return {"lives": lives, "outcome": done.outcome}
        return {"lives": lives}


def cluster(hosts):
    """Starts one, and ends it when the input does; a line of input kills the last raylet.

    Prints the address, and the pid of that raylet.
    """
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="gdt-ray-", dir="/tmp")  # paths of its sockets are long
    options = {"num_cpus": 1, "object_store_memory": 80_000_000}
    started = Cluster(
        initialize_head=True,
        head_node_args={**options, "include_dashboard": False, "temp_dir": folder},
    )
    try:
        for host in range(1, hosts):
            node = started.add_node(**options, node_ip_address=f"127.0.0.{host + 1}")
        raylet = node.all_processes["raylet"][0].process
        print(started.address, raylet.pid, sep="\n", flush=True)
        for _ in sys.stdin:
            raylet.kill()
            raylet.wait()  # its workers take a zombie for alive
    finally:
        started.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    if sys.argv[1] == "launch":
        config = {**CONFIG, **json.loads(sys.argv[2])}
        gmi_drl.launch(config, view="plain", import_path=Path(__file__).parent)
    else:
        cluster(int(sys.argv[1]))
