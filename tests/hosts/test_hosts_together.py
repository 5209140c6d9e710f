"""Launches on two hosts that are this machine, with real launchers and a Ray that is faked."""

import contextlib
import json
import os
import socket
import time
from pathlib import Path

import pytest

import fake_ray
import gmi_drl
from fake_ray import FakeHost

CORES = sorted(os.sched_getaffinity(0))
ADDRESSES = ("127.0.0.2", "127.0.0.3")
NO_KEY = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(60)  # a greeting of ZeroMQ's


def launched(folder, *, run=(), callbacks=(), **config):
    """Trains on two hosts; returns the result."""
    with fake_ray.cluster(*map(FakeHost, ADDRESSES)) as address:
        config = {
            "version": 1,
            "env": {"id": "CartPole-v1", "num_env": 8},
            "algorithm": {"network": [16], "minibatches": 1, "epochs": 1},
            "hardware": {"backend": "cpu", "cores": CORES[:1]},
            "cluster": {"address": address, "hosts": 2, "trusted": True},
            "run": {"folder": str(folder), "log": [], "eval_episodes": 0, **dict(run)},
            **config,
        }
        return gmi_drl.launch(
            config, view="plain", callbacks=callbacks, import_path=Path(__file__).parents[1]
        )


def metrics_of(result):
    """The lines of metrics.jsonl."""
    lines = (result.folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def ports():
    """The (address, port) of all sockets that listen at the hosts' addresses."""
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_ = line.split()
        number, port = local.split(":")
        address = socket.inet_ntoa(int(number, 16).to_bytes(4, "little"))
        if state == "0A" and address in ADDRESSES:  # it listens
            found.append((address, int(port, 16)))
    return found


class Intruder(gmi_drl.Callback):
    """After the first iteration, speaks to every port of the run until it is thrown out there."""

    def on_start(self, run):
        self._request_stop, self.tried = run.request_stop, 0
        self._deadline_s = time.monotonic() + 100

    def on_iteration(self, iteration, metrics):
        if time.monotonic() > self._deadline_s:
            self._request_stop("nobody has counted strangers")
        elif not self.tried:
            for where in ports():
                with socket.create_connection(where, timeout=20) as stranger:
                    stranger.sendall(NO_KEY)
                    with contextlib.suppress(ConnectionResetError):
                        while stranger.recv(4096):  # its own greeting, and then the end
                            pass
                self.tried += 1
        elif metrics["refused"] >= self.tried:
            self._request_stop("strangers were refused")


@pytest.mark.slow
def test_strangers_are_refused_counted_and_told(tmp_path, capfd):
    intruder = Intruder()
    result = launched(tmp_path, callbacks=[intruder], run={"total_steps": 10**9})
    metrics = metrics_of(result)
    assert result.state == "stopped"
    assert intruder.tried == 2  # the port of each host's leader, and no other
    assert metrics[0]["refused"] == 0
    assert metrics[-1]["refused"] == 2
    told = "".join(capfd.readouterr())
    for gmi_id in (0, 1):
        assert f"gmi {gmi_id}: its port for other hosts has refused 1 conn" in told


@pytest.mark.slow
def test_a_gmi_that_dies_when_those_of_another_host_have_finished_has_their_outcome(tmp_path):
    (tmp_path / "run").mkdir()
    result = launched(tmp_path / "run", roles={"trainer": "bodies_clusters:LateDeath"})
    assert result.state == "finished"
    assert list(result.gmis) == [{"lives": 1}, {"lives": 2, "outcome": "well done"}]
