"""Memory that a GPU copies from and to, against a double of the CUDA runtime: what is called when.

Registered once, before anything is copied; waited for before it changes hands; unregistered last.
"""

import gc
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch

from gmi_drl.comm import create_group
from gmi_drl.comm.experience.compressor import _Views
from gmi_drl.comm.experience.schema import PacketLayout
from gmi_drl.comm.reducers.staged import StagedReducer
from gmi_drl.comm.shm import pinned
from gmi_drl.comm.transports import StreamSpec, create_link
from gmi_drl.runtime import Memfd

CUDA, CPU = torch.device("cuda"), torch.device("cpu")
TIMEOUT = timedelta(seconds=5)


class Runtime:
    """What is called of CUDA, in order. `error` is what registering gives."""

    def __init__(self):
        self.calls, self.error, self.registered = [], 0, {}

    def cudart(self):
        return self

    def cudaHostRegister(self, address, nbytes, flags):
        self.calls.append("register")
        if not self.error:
            assert address not in self.registered
            self.registered[address] = nbytes
        return self.error

    def cudaHostUnregister(self, address):
        self.calls.append("unregister")
        del self.registered[address]
        return 0

    def event(self, blocking):
        assert blocking  # nobody spins
        runtime = self

        class Event:
            def record(self, stream):
                runtime.calls.append(f"record on {stream}")

            def synchronize(self):
                runtime.calls.append("wait")

        return Event()


@pytest.fixture
def cuda(monkeypatch):
    monkeypatch.setattr(pinned, "_warned", False)
    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", runtime.cudart)
    monkeypatch.setattr(torch.cuda, "Event", runtime.event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "the current stream")
    monkeypatch.setattr(pinned, "_forget_last_error", lambda device: runtime.calls.append("forget"))
    return runtime


WAITED = ["record on the current stream", "wait"]


def sent(sender, value):
    slot = sender.reserve(0)
    slot.memory[:] = value
    sender.send(slot, 8, sequence=0, step=0, policy_version=0)


def test_a_link_registers_once_at_each_end_waits_at_each_turn_and_unregisters(cuda):
    link = create_link("gmi 0", "gmi 1")
    with link.receiver(TIMEOUT) as receiver:
        receiver.pin(CUDA)
        assert cuda.calls == []  # there is no memory yet
        with link.sender(b"", [StreamSpec(8, 2)], TIMEOUT) as sender:
            sender.pin(CUDA)
            sender.pin(CUDA)
            assert cuda.calls == ["register"]
            slot = sender.reserve(0)
            assert cuda.registered[min(cuda.registered)] >= 8
            cuda.calls.clear()
            sender.send(slot, 8, sequence=0, step=0, policy_version=0)
            assert cuda.calls == WAITED
            cuda.calls.clear()
            packet = receiver.poll()
            assert cuda.calls == ["register"]
            receiver.release(packet)
            assert cuda.calls == ["register", *WAITED]
            cuda.calls.clear()
        assert cuda.calls == [*WAITED, "unregister"]
        cuda.calls.clear()
    assert cuda.calls == [*WAITED, "unregister"]
    receiver.close()
    assert cuda.calls == [*WAITED, "unregister"]


def test_on_cores_nothing_is_asked_of_cuda(cuda):
    link = create_link("gmi 0", "gmi 1")
    with link.receiver(TIMEOUT) as receiver, link.sender(b"", [StreamSpec(8, 2)]) as sender:
        receiver.pin(CPU)
        sender.pin(CPU)
        sent(sender, 5)
        receiver.release(receiver.poll())
    assert cuda.calls == []


def test_a_link_that_cannot_be_registered_says_why_and_carries_all_the_same(cuda):
    cuda.error = 2
    link = create_link("gmi 0", "gmi 1")
    with link.receiver(TIMEOUT) as receiver, link.sender(b"", [StreamSpec(8, 2)]) as sender:
        with pytest.warns(RuntimeWarning, match=r"error 2; link from gmi 0 to gmi 1: packets are"):
            sender.pin(CUDA)
        assert cuda.calls == ["register", "forget"]
        receiver.pin(CUDA)
        sent(sender, 5)
        assert receiver.poll().memory.tolist() == [5] * 8
        assert cuda.calls.count("register") == 2  # not said again: warnings are errors
    assert "unregister" not in cuda.calls


class OnHost(StagedReducer):
    """A bucket whose memory of a GPU is the host's."""

    def _place(self, device):
        return super()._place(CPU)


def test_a_bucket_is_registered_with_all_its_slots_until_its_group_ends(cuda, monkeypatch):
    stream = SimpleNamespace(synchronize=lambda: None, wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    spec = create_group(["gmi 0", "gmi 1"])

    def reduce(rank):
        group = spec.join(rank, TIMEOUT)
        staged = OnHost(group.bucket("gradient", 1000), CUDA)
        sizes = list(cuda.registered.values())
        staged.buffer[:] = rank
        mean = staged.reduce().tolist()
        group.close()
        return sizes, mean

    with ThreadPoolExecutor(2) as pool:
        for found in [pool.submit(reduce, rank) for rank in range(2)]:
            sizes, mean = found.result(timeout=60)
            assert min(sizes) >= 2 * 4000  # a slot for each, and the result
            assert mean == [0.5] * 1000
    assert cuda.registered == {}
    assert cuda.calls.count("register") == cuda.calls.count("unregister") == 2


def test_memory_that_was_never_closed_stays_mapped_until_it_is_unregistered(cuda):
    memory = Memfd.create("pinned", 4096).map()
    kept = pinned.PinnedMemory(memory, CUDA, "copies are")
    (address,) = cuda.registered
    del memory
    gc.collect()
    torch.frombuffer(kept._end.peek()[2][2], dtype=torch.uint8)[0] = 1  # still there
    assert cuda.registered == {address: 4096}
    del kept
    gc.collect()
    assert cuda.registered == {}


def test_copies_into_a_slot_are_left_under_way_only_where_its_memory_is_pinned(monkeypatch):
    memory = torch.zeros(64, dtype=torch.uint8)
    layout = PacketLayout((), 0, 0)
    assert not _Views(memory, layout, 1, {}).pinned
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: True)
    assert not _Views(memory, layout, 1, {}).pinned  # CUDA was not started: nothing is asked of it
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert _Views(memory, layout, 1, {}).pinned
    assert not _Views(memory, layout, 1, {"image": memory}).pinned  # LZ4 reads it before `send`
