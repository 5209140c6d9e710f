"""Starts a Ray cluster of several hosts on this one, and roles and launches that run on it.

As a program: `python bodies_clusters.py HOSTS [NAMESPACE=ADDRESS...]` prints the address and ends
with its input; hosts are where they are said to be, the head first.
`python bodies_clusters.py launch JSON [NAMESPACE]` launches CONFIG with what it is given beside;
`python bodies_clusters.py drained ADDRESS` says when Ray drains the last host.
"""

import ctypes
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import gmi_drl
from gmi_drl import runtime
from gmi_drl.comm import GroupFinished

_SUBREAPER = 36  # what has lost its parent becomes this program's

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
    """GMI 0 finishes at once; GMI 1 dies after that, and comes back.

    Both tell how many descriptors their processes may have.
    """

    recoverable = True

    def GMI_run(self):
        self.mgr.await_set_up()
        group = self.mgr.context.group
        told = {
            "lives": self.mgr.context.process + 1,
            "max_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        }
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
            return told | {"outcome": done.outcome}
        return told


def descendants(*pids):
    """These processes' children, and theirs, by pid."""
    parents, found = {}, [*pids]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                stat = (entry / "stat").read_text()
                parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[len(pids) :]


def go_into(namespace):
    """Moves this thread, and those it starts, into a namespace of the network; "" is none."""
    if namespace:
        from cluster import enter

        enter(namespace)


def cluster(places):
    """Starts one, and ends it when the input does; lines of input say what to kill.

    `places`: the namespace of the network, or "", and the address of each host; the head is first.
    Killed is the last `raylet`, or the `head`: its control service. `hang` stops that as a signal
    does, and `drain` has Ray drain the last host. Prints the address, and the pid of that raylet.
    """
    from ray._private import services
    from ray._raylet import GcsClient
    from ray.cluster_utils import Cluster
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason

    ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    # By Ray's own, 15, agents and all that they start do next to nothing on a busy machine.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
    folder = tempfile.mkdtemp(prefix="gdt-ray-", dir="/tmp")  # paths of its sockets are long
    options = {"num_cpus": 1, "object_store_memory": 80_000_000}
    (own, address), *others = places
    go_into(own)  # as do the processes that are started from here
    head_options = {"include_dashboard": False, "temp_dir": folder, "node_ip_address": address}
    started = Cluster(initialize_head=True, head_node_args={**options, **head_options})
    try:
        for namespace, address in others:
            go_into(namespace)
            node = started.add_node(**options, node_ip_address=address)
            go_into(own)
        head = started.head_node
        # Programs of this machine join the node that wrote there last; of Ray 2.60, the head.
        if write_address := getattr(services, "write_node_ip_address", None):
            write_address(head.get_session_dir_path(), head.node_ip_address)
        raylet = node.all_processes["raylet"][0].process
        control = head.all_processes["gcs_server"][0].process
        victims = {"raylet": raylet, "head": control}
        print(started.address, raylet.pid, sep="\n", flush=True)
        for line in sys.stdin:
            if line.strip() == "drain":
                reason = DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION
                GcsClient(address=started.address).drain_node(node.node_id, reason, "a test", 0)
            elif line.strip() == "hang":
                control.send_signal(signal.SIGSTOP)
            else:
                victim = victims[line.strip()]
                victim.kill()
                victim.wait()  # workers of a raylet take a zombie for alive
        control.send_signal(signal.SIGCONT)
    finally:
        started.shutdown()
        for pid in descendants(os.getpid()):  # agents of Ray's that wait for a head that is gone
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def drained(address):
    """Holds the last host by an actor, and says when it is held and when Ray drains it."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from gmi_drl.launcher.hosts.drains import Drains
    from gmi_drl.runtime.engines.ray import nodes

    class Holder:
        def answer(self):
            return True

    nodes.join(address, trusted=True)
    (node,) = [n["NodeID"] for n in nodes.hosts() if n["NodeManagerAddress"] == "127.0.0.2"]
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    holder = ray.remote(num_cpus=1)(Holder).options(scheduling_strategy=there).remote()
    ray.get(holder.answer.remote(), timeout=60)  # else Ray would end the node at once
    drains = Drains(address)
    print("it is held, and", "drained" if drains.nodes else "not drained", flush=True)
    while drains.nodes != {node}:
        time.sleep(0.05)  # between two looks
    print("it is drained", flush=True)
    drains.close()
    nodes.leave()


if __name__ == "__main__":
    if sys.argv[1] == "launch":
        go_into("".join(sys.argv[3:]))
        config = {**CONFIG, **json.loads(sys.argv[2])}
        gmi_drl.launch(config, view="plain", import_path=Path(__file__).parent)
    elif sys.argv[1] == "drained":
        drained(sys.argv[2])
    else:
        count, *places = sys.argv[1:]
        loopback = [("", None), *(("", f"127.0.0.{n}") for n in range(2, int(count) + 1))]
        cluster([place.split("=") for place in places] or loopback)
