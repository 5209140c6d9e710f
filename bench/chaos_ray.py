"""A Ray cluster of hosts that are this machine: what chaos.py strikes runs of mode hosts on.

As a program: `python chaos_ray.py HOSTS` prints its address, starts raylets anew that are killed,
and ends it with its input.
"""

from __future__ import annotations

import re
import secrets
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Final

_HOSTS: Final = 2
_RAYS_OWN: Final = re.compile(r"/ray/|ray::(?!NodeAgent)|chaos_ray\.py")
_NAMES: Final = {"raylet": re.compile(r"/raylet/raylet "), "agent": re.compile(r"ray::NodeAgent")}


class RayCluster:
    """Runs a cluster until it is closed; `environment` is that of the programs on its hosts."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self._program = subprocess.Popen(
            [sys.executable, __file__, str(_HOSTS)], env={**environment, **self.token},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        lines = (line.strip() for line in self._program.stdout)
        self.address = next(line for line in lines if re.fullmatch(r"[\d.]+:\d+", line))

    def close(self) -> None:
        """Ends the cluster."""
        self._program.communicate("")


def name_of(command: str) -> str | None:
    """Returns the name of a host's process, raylet or agent; None for any other."""
    host = "--node_ip_address=127."  # the head's raylet is not struck
    for name, pattern in _NAMES.items():
        if pattern.search(command) and (name != "raylet" or host in command):
            return name
    return None


def is_rays(command: str) -> bool:
    """Tells whether a process belongs to Ray itself, which stays when a run has ended."""
    return _RAYS_OWN.search(command) is not None


def _keep(hosts: int) -> None:
    """Starts a cluster with a head on which nothing runs; ends it with the input."""
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="gdc-ray-", dir="/tmp")  # Ray's socket paths are long
    options = {"object_store_memory": 80_000_000}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            **options, "num_cpus": 0, "include_dashboard": False, "temp_dir": folder,
        },
    )  # fmt: skip
    try:
        addresses = [f"127.0.0.{host + 2}" for host in range(hosts)]
        nodes = {
            address: cluster.add_node(**options, num_cpus=1, node_ip_address=address)
            for address in addresses
        }
        print(cluster.address, flush=True)
        while not select.select([sys.stdin], [], [], 0.5)[0]:
            for address, node in nodes.items():
                if node.all_processes["raylet"][0].process.poll() is not None:
                    cluster.remove_node(node, allow_graceful=False)
                    nodes[address] = cluster.add_node(
                        **options, num_cpus=1, node_ip_address=address
                    )
    finally:
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _keep(int(sys.argv[1]))
