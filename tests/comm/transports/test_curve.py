"""Ports that strangers without any key come to."""

import contextlib
import socket

import pytest
import zmq

from fork_context import CONTEXT
from gmi_drl.comm.transports import curve
from links import assert_thrown_out, greeted


@contextlib.contextmanager
def guarded():
    """The monitor and the port of a socket that listens."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as one:
        one.linger = 0
        authenticator = curve.Authenticator(context, ())
        authenticator.guard(one, *zmq.curve_keypair())
        monitor = curve.ConnectionMonitor(one)
        try:
            yield monitor, one.bind_to_random_port("tcp://127.0.0.1")
        finally:
            monitor.close()
            authenticator.socket.close(0)


def greet(port):
    """A stranger's connection, when the other end has greeted."""
    return greeted(socket.create_connection(("127.0.0.1", port), timeout=20))


def test_a_frame_that_is_too_large_ends_the_connection_of_who_has_no_key():
    with guarded() as (_, port), greet(port) as stranger:
        assert_thrown_out(stranger)
        with greet(port):  # nobody else is disturbed
            pass


def _come_and_go(limit, connections, say):
    curve._MOST_EVENTS = limit
    with guarded() as (_, port):
        with contextlib.suppress(TimeoutError):  # libzmq's thread waits
            for _ in range(connections):
                with socket.create_connection(("127.0.0.1", port), timeout=1) as stranger:
                    stranger.recv(1)  # so that it is accepted
        try:
            greet(port).close()
            say.send("answers")
        except OSError:
            say.send("waits")
    say.send("closed")


@pytest.mark.parametrize(("limit", "state"), [(100_000, "answers"), (1, "waits")])
def test_many_connections_between_two_looks_keep_nobody_and_the_socket_closes(limit, state):
    listen, say = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_come_and_go, args=(limit, 1000, say))
    process.start()
    say.close()
    try:
        for expected in (state, "closed"):
            assert listen.poll(40), f"not {expected} after 40 s"
            assert listen.recv() == expected
    finally:
        process.kill()
        process.join()
        listen.close()
