"""References in a process that learns from the driver that objects are there."""

import contextlib
import signal
import sys
import threading

import pytest

from gmi_drl.runtime.api import refs
from gmi_drl.runtime.wire import packing


class ToldInPieces:
    """Takes in one message of the driver in each round, as a connection may."""

    reads = False

    def __init__(self, *messages):
        self.messages = list(messages)
        self.wanted = []

    def note(self, id, change, soon=True):
        pass

    def want(self, slots, values):
        self.wanted += [(slot.id, values) for slot in slots]

    def unwant(self, slots):
        pass

    def block(self, gate, timeout_s):
        while not gate.open and self.messages:
            self.messages.pop(0)()
        return gate.open

    def stored(self, slot, deadline_s):
        raise AssertionError("it is not in the object store")


@contextlib.contextmanager
def told_of(slot, *messages):
    before, refs.current = refs.current, ToldInPieces(*messages)
    try:
        yield refs.ObjectRef(slot), refs.current
    finally:
        refs.current = before


@pytest.mark.parametrize("known_before", [False, True])
def test_a_value_is_waited_for_though_it_is_told_again_that_it_is_there(known_before):
    slot = refs.Slot(b"object", "call")
    if known_before:
        slot.arrived()
    body = packing.pack(3, "a value").body
    with told_of(slot, slot.arrived, lambda: slot.fill(body)) as (ref, driver):
        assert refs.get_value(ref) == 3
        assert driver.wanted == [(b"object", True)]
        assert not driver.messages


def test_an_interrupt_that_does_not_end_the_wait_for_the_lock_ends_the_wait():
    """As one that another thread receives, or that comes just before the lock is waited for."""
    gate, main = refs.Gate(1), threading.get_ident()
    last = threading.Timer(20, gate.arrived)

    def interrupt():
        while sys._current_frames()[main].f_code is not refs.Gate.wait.__code__:
            pass
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    threads = [last, threading.Thread(target=interrupt)]
    for thread in threads:
        thread.start()
    with pytest.raises(KeyboardInterrupt):
        gate.wait(None)
    assert not gate.open
    last.cancel()
    for thread in threads:
        thread.join()
    assert not gate.wait(0.01)
    gate.arrived()
    assert gate.wait(None)
