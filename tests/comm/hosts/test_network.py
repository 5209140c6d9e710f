"""Groups over several hosts that are namespaces of the network: training, cables, intruders."""

import contextlib
import os
import socket
import threading
import time

import numpy as np
import pytest
import zmq

import bodies_hosts as bodies
from cluster import Cluster, Network, enter, why_no_network
from gmi_drl.comm import ReduceTimeout
from gmi_drl.comm.hosts import read_endpoint
from ranks import pipe, run_ranks

WHY_NOT = why_no_network()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))


@pytest.fixture(scope="module")
def network():
    with Network(3) as network:
        yield network


@pytest.mark.parametrize("sizes", [(2, 2), pytest.param((1, 2, 1), marks=pytest.mark.slow)])
def test_training_on_hosts_equals_that_of_one_host(network, sizes):
    alone = run_ranks(bodies.train, 4, 10)
    with Cluster(bodies.train, sizes, 10, network=network) as cluster:
        outcomes = cluster.outcomes()
    for found in outcomes:
        np.testing.assert_allclose(found, alone[0], rtol=0, atol=1e-6)
        np.testing.assert_array_equal(found.view("u4"), outcomes[0].view("u4"))


@pytest.mark.slow
def test_a_cable_that_is_out_for_a_moment_delays_and_one_that_is_cut_is_named(network):
    listen, ready = pipe()
    args = [(ready, None), (None, None)]
    with Cluster(
        bodies.reduce_and_count, (1, 1), args_of=args, network=network, timeout_s=12.0
    ) as cluster:
        assert listen.poll(60)
        network.cut(1)
        time.sleep(2.0)  # shorter than the deadline
        network.mend(1)
        assert not cluster.hosts[0].ended(0, 2.0)
        network.cut(1)
        began_s = time.monotonic()
        outcomes = cluster.outcomes()
        waited_s = time.monotonic() - began_s
        network.mend(1)
    assert 4 < waited_s < 25
    for host, outcome in enumerate(outcomes):
        assert isinstance(outcome, ReduceTimeout), outcome
        assert f"of host {1 - host} at 10.77.0.{2 - host}) has not arrived" in str(outcome)


def test_intruders_are_refused_and_counted_and_disturb_nothing(network):
    listen, ready = pipe()
    told, stop = pipe()
    args = [(ready, told), (None, None), (None, None)]
    with Cluster(bodies.reduce_and_count, (2, 1), args_of=args, network=network) as cluster:
        assert listen.poll(60)
        ends = [read_endpoint(folder) for folder in cluster.folders]
        intruder = threading.Thread(target=intrude, args=(network.names[2], ends))
        intruder.start()
        intruder.join()
        stop.send("stop")
        outcomes = cluster.outcomes()
    assert [wrong for wrong, _ in outcomes] == [0, 0, 0]
    for leader in (0, 2):
        assert outcomes[leader][1].pop("connections") >= 5
        assert outcomes[leader][1] == {}


def intrude(namespace, ends):
    """Tries every port that listens, from another host: bytes, no key, a wrong one, wrong ones."""
    enter(namespace)
    context = zmq.Context()
    for end in ends:
        start = b"\xff" + bytes(8) + b"\x7f\x03\x00"
        long_command = b"\x06" + (300 << 20).to_bytes(8, "big")  # its head
        for raw in (
            os.urandom(300),
            start + b"NULL" + bytes(60),
            (start + b"CURVE").ljust(64, b"\0") + long_command,
        ):
            with socket.create_connection((end.address, end.port), timeout=10) as stranger:
                stranger.sendall(raw)
                stranger.settimeout(10)
                with contextlib.suppress(ConnectionResetError):
                    while stranger.recv(4096):  # until it is thrown out
                        pass
        mine, others = zmq.curve_keypair(), zmq.curve_keypair()
        for keys in (None, (end.key.encode(), mine), (others[0], mine)):
            one = context.socket(zmq.DEALER)
            one.linger = 0
            if keys:
                one.curve_serverkey, (one.curve_publickey, one.curve_secretkey) = keys
            monitor = one.get_monitor_socket(
                zmq.EVENT_HANDSHAKE_FAILED_AUTH
                | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
                | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
                | zmq.EVENT_DISCONNECTED
            )
            one.connect(f"tcp://{end.address}:{end.port}")
            one.send_multipart([b"GMPH" + bytes(24), b"hello"])
            assert monitor.poll(10_000)
            one.disable_monitor()
            monitor.close(0)
            one.close()
    context.term()
