"""Launches on hosts that are this machine, with real launchers and a Ray that is faked."""

import contextlib
import os
import socket
import time
from pathlib import Path

import fake_ray
import gmi_drl
from fake_ray import FakeHost

CORES = sorted(os.sched_getaffinity(0))
ADDRESSES = ("127.0.0.2", "127.0.0.3")
NO_KEY = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(60)  # a greeting of ZeroMQ's


def launched(folder, *, hosts=(), cluster=(), on_loss="fail", **config):
    """Trains on the hosts that are given, or on two; returns the result."""
    hosts = [*hosts] or [*map(FakeHost, ADDRESSES)]
    with fake_ray.cluster(*hosts) as address:
        cluster = {
            "address": address, "hosts": len(hosts), "trusted": True, "on_loss": on_loss,
            **dict(cluster),
        }  # fmt: skip
        return launched_here(folder, cluster=cluster, **config)


def launched_here(folder, *, run=(), callbacks=(), **config):
    """Trains on this machine, or on the cluster that is given; returns the result."""
    config = {
        "version": 1,
        "env": {"id": "CartPole-v1", "num_env": 8},
        "algorithm": {"network": [16], "minibatches": 1, "epochs": 1},
        "hardware": {"backend": "cpu", "cores": CORES[:1]},
        "run": {"folder": str(folder), "log": [], "eval_episodes": 0, **dict(run)},
        **config,
    }
    return gmi_drl.launch(
        config, view="plain", callbacks=callbacks, import_path=Path(__file__).parent
    )


def ports(addresses):
    """The (address, port) of all sockets that listen at some addresses."""
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_ = line.split()
        number, port = local.split(":")
        address = socket.inet_ntoa(int(number, 16).to_bytes(4, "little"))
        if state == "0A" and address in addresses:  # it listens
            found.append((address, int(port, 16)))
    return found


class Intruder(gmi_drl.Callback):
    """After the first iteration, speaks to every port of the run until it is thrown out there."""

    def __init__(self, addresses):
        self._addresses = addresses

    def on_start(self, run):
        self._request_stop, self.tried = run.request_stop, 0
        self._deadline_s = time.monotonic() + 100

    def on_iteration(self, iteration, metrics):
        if time.monotonic() > self._deadline_s:
            self._request_stop("nobody has counted strangers")
        elif not self.tried:
            for where in ports(self._addresses):
                with socket.create_connection(where, timeout=20) as stranger:
                    stranger.sendall(NO_KEY)
                    with contextlib.suppress(ConnectionResetError):
                        while stranger.recv(4096):  # its own greeting, and then the end
                            pass
                self.tried += 1
        elif metrics["refused"] >= self.tried:
            self._request_stop("strangers were refused")
