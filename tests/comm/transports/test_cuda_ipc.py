"""Links in device memory: what can be checked without a GPU, and with one."""

from datetime import timedelta

import pytest
import torch

import bodies_links as bodies
from gmi_drl.comm.errors import LinkEnded, LinkError
from gmi_drl.comm.transports import (
    StreamSpec,
    choose_kind,
    create_link,
    cuda_ipc,
    shared,
    wait_any,
)
from links import End, pipe

LONG = timedelta(seconds=20)


def test_the_kind_follows_from_where_the_ends_are():
    assert choose_kind() == "ring"
    assert choose_kind(gpu=True) == "cuda"
    assert choose_kind(same_host=False, gpu=True) == "tcp"


def test_where_memory_cannot_be_shared_both_ends_say_why(monkeypatch):
    link = create_link("gmi 0, GPU 0", "gmi 1, GPU 0", gpu=True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(LinkError, match=r"no CUDA device .*gpu=False"):
        link.sender(b"", [StreamSpec(8, 1)])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    with pytest.raises(LinkError, match="expandable_segments"):
        link.receiver()


def test_slots_lie_apart():
    assert cuda_ipc.offsets([StreamSpec(1, 2), StreamSpec(513, 1)]) == [0, 512, 1024, 2048]


class Recorded:
    """An event that is over at once, or when told."""

    over = True

    def __init__(self, interprocess=False):
        pass

    def ipc_handle(self):
        return b"event"

    @classmethod
    def from_ipc_handle(cls, device, handle):
        assert handle == b"event"
        return cls()

    def record(self):
        pass

    def wait(self, stream):
        pass

    def query(self):
        return Recorded.over


@pytest.fixture(params=["processes", "threads"])
def no_gpu(monkeypatch, request):
    """Device memory is memory of this process, which both ends are in, whatever they believe."""
    monkeypatch.setattr(cuda_ipc, "_is_here", lambda _: request.param == "threads")
    exported = []

    def share(storage):
        exported.append(storage)
        return (3, len(exported) - 1, b"handle")

    monkeypatch.setattr(cuda_ipc, "check_device", lambda name: None)
    monkeypatch.setattr(cuda_ipc, "_DEVICE", "cpu")
    monkeypatch.setattr(torch.UntypedStorage, "_share_cuda_", share)
    monkeypatch.setattr(
        torch.UntypedStorage, "_new_shared_cuda", lambda device, index, handle: exported[index]
    )
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", Recorded)
    monkeypatch.setattr(Recorded, "over", True)
    monkeypatch.setattr(shared, "lives", lambda pid, started: False)


def test_slots_go_back_when_the_device_has_read_them_and_not_before(no_gpu, monkeypatch):
    link = create_link("gmi 0, GPU 0", "gmi 1, GPU 0", gpu=True)
    sender, receiver = link.sender(b"s", [StreamSpec(100, 2), StreamSpec(8, 1)]), link.receiver()
    assert receiver.schema == b"s"
    for value in (1, 2):
        slot = sender.reserve(0)
        slot.memory[:9] = value
        sender.send(slot, 9, sequence=value, step=0, policy_version=4)
    assert (sender.try_reserve(0), sender.under_way(0)) == (None, 2)
    first, second = receiver.poll(), receiver.poll()
    assert first.header == (0, 0, 0, 1, 0, 4, 9)
    assert (first.memory.tolist(), second.memory.tolist()) == ([1] * 9, [2] * 9)
    monkeypatch.setattr(Recorded, "over", False)
    receiver.release(second)
    assert sender.under_way(0) == 2
    monkeypatch.setattr(Recorded, "over", True)
    assert not receiver.ready()  # looking is enough
    assert sender.under_way(0) == 1
    with pytest.raises(ValueError, match="released already"):
        receiver.release(second)


def test_packets_of_one_slot_have_one_place(no_gpu):
    """Receivers keep what they make of a slot, by its place."""
    link = create_link("gmi 0, GPU 0", "gmi 1, GPU 0", gpu=True)
    sender, receiver = link.sender(b"s", [StreamSpec(8, 2), StreamSpec(8, 1)]), link.receiver()
    places = set()
    for value in range(12):
        slot = sender.reserve(value % 2)
        slot.memory[:] = value
        sender.send(slot, 8, sequence=value, step=0, policy_version=0)
        packet = receiver.poll()
        places.add((packet.header.stream, packet.place))
        assert packet.memory.tolist() == [value] * 8
        receiver.release(packet)
    assert places <= {(0, 0), (0, 1), (1, 0)}


def test_replaced_ends_find_each_other_and_what_died_with_a_sender_is_passed_over(no_gpu):
    link = create_link("gmi 0, GPU 0", "gmi 1, GPU 0", gpu=True)

    def send(sender, value):
        slot = sender.reserve(0)
        slot.memory[:] = value
        sender.send(slot, 8, sequence=value, step=0, policy_version=0)

    for incarnation in range(6):  # more than there are slots for exports
        sender, receiver = link.sender(b"s", [StreamSpec(8, 2)]), link.receiver()
        assert sender.incarnation == incarnation
        if incarnation:
            assert receiver.poll() is None  # 99 was sent before
        send(sender, incarnation)
        assert receiver.poll().memory.tolist() == [incarnation] * 8
        receiver = link.receiver()  # is given again what was not released
        packet = receiver.poll()
        assert packet.header[1:4] == (incarnation, packet.header.number, incarnation)
        receiver.release(packet)
        send(sender, 99)
    sender.close()
    assert receiver.poll().header.sequence == 99
    with pytest.raises(LinkEnded):
        receiver.poll()


@pytest.mark.gpu
def test_what_a_process_writes_on_the_gpu_another_reads_there():
    link = create_link("gmi 0, GPU 0", "gmi 1, GPU 0", gpu=True)
    over, say_over = pipe()
    with End(bodies.send_on_gpu, link, over), link.receiver(LONG) as receiver:
        assert receiver.schema == b"gpu"
        for number in range(20):  # more than there are slots
            assert wait_any([receiver], LONG)
            packet = receiver.poll()
            assert packet.header.sequence == number
            assert packet.memory.device.type == "cuda"
            assert bool((packet.memory.view(torch.int64) == number).all())
            receiver.release(packet)
        say_over.send(True)


@pytest.mark.gpu
def test_what_a_killed_sender_held_is_passed_over():
    link = create_link("gmi 0, GPU 0", "gmi 1, GPU 0", gpu=True)
    over, _ = pipe()
    with End(bodies.send_on_gpu, link, over) as end, link.receiver(LONG) as receiver:
        assert wait_any([receiver], LONG)
        receiver.release(receiver.poll())
        end.process.kill()
        end.process.join()
        assert wait_any([receiver], LONG)
        assert receiver.poll() is None
