"""Links in device memory: what can be checked without a GPU, and with one."""

import gc
from datetime import timedelta

import pytest
import torch

import bodies_links as bodies
from fake_ipc import FakeIpc
from fake_streams import Stream
from gmi_drl.comm.errors import LinkEnded, LinkError
from gmi_drl.comm.shm import liveness
from gmi_drl.comm.transports import (
    StreamSpec,
    create_link,
    cuda_ipc,
    wait_any,
)
from links import End, pipe

LONG = timedelta(seconds=20)


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


@pytest.fixture(params=["processes", "threads"])
def no_gpu(monkeypatch, request):
    """Device memory is memory of this process, which both ends are in, whatever they believe."""
    monkeypatch.setattr(cuda_ipc, "_is_here", lambda _: request.param == "threads")
    monkeypatch.setattr(cuda_ipc, "check_device", lambda name: None)
    monkeypatch.setattr(cuda_ipc, "_DEVICE", "cpu")
    monkeypatch.setattr(liveness, "is_alive", lambda pid, started: False)
    device = FakeIpc(monkeypatch)
    yield device
    gc.collect()
    assert not device.held, "memory that nobody uses and nobody gets"


def fill(device, slot, value, nbytes=8):
    """As a kernel does it: some time after this, unless somebody waits."""
    device.put(lambda: slot.memory[:nbytes].fill_(value))


def seen(device, packet):
    """What is read of a packet in the current stream."""
    found = []
    device.put(lambda: found.append(packet.memory.tolist()))
    device.current.synchronize()
    return found[0]


def test_slots_go_back_when_the_device_has_read_them_and_not_before(no_gpu):
    link = create_link("gmi 0, GPU 0", "gmi 1, GPU 0", gpu=True)
    sender, receiver = link.sender(b"s", [StreamSpec(100, 2), StreamSpec(8, 1)]), link.receiver()
    assert receiver.schema == b"s"
    for value in (1, 2):
        slot = sender.reserve(0)
        fill(no_gpu, slot, value, 9)
        sender.send(slot, 9, sequence=value, step=0, policy_version=4)
    assert (sender.try_reserve(0), sender.under_way(0)) == (None, 2)
    no_gpu.current = reading = Stream(no_gpu, "reading")
    first, second = receiver.poll(), receiver.poll()
    assert first.header == (0, 0, 0, 1, 0, 4, 9)
    assert (seen(no_gpu, first), seen(no_gpu, second)) == ([1] * 9, [2] * 9)
    read = []
    no_gpu.put(lambda: read.append(second.memory.clone()))
    receiver.release(second)
    assert not receiver.ready()
    assert sender.under_way(0) == 2
    reading.synchronize()
    assert not receiver.ready()  # looking is enough
    assert sender.under_way(0) == 1
    assert read[0].tolist() == [2] * 9
    with pytest.raises(ValueError, match="released already"):
        receiver.release(second)


def test_packets_of_one_slot_have_one_place(no_gpu):
    """Receivers keep what they make of a slot, by its place."""
    link = create_link("gmi 0, GPU 0", "gmi 1, GPU 0", gpu=True)
    sender, receiver = link.sender(b"s", [StreamSpec(8, 2), StreamSpec(8, 1)]), link.receiver()
    places = set()
    for value in range(12):
        slot = sender.reserve(value % 2)
        fill(no_gpu, slot, value)
        sender.send(slot, 8, sequence=value, step=0, policy_version=0)
        packet = receiver.poll()
        places.add((packet.header.stream, packet.place))
        assert seen(no_gpu, packet) == [value] * 8
        receiver.release(packet)
    assert places <= {(0, 0), (0, 1), (1, 0)}


def test_replaced_ends_find_each_other_and_what_died_with_a_sender_is_passed_over(no_gpu, request):
    link = create_link("gmi 0, GPU 0", "gmi 1, GPU 0", gpu=True)

    def send(sender, value):
        slot = sender.reserve(0)
        fill(no_gpu, slot, value)
        sender.send(slot, 8, sequence=value, step=0, policy_version=0)

    processes = "processes" in request.node.name
    for incarnation in range(6):  # more than there are slots for exports
        if processes:
            no_gpu.kill()
        sender, receiver = link.sender(b"s", [StreamSpec(8, 2)]), link.receiver()
        assert sender.incarnation == incarnation
        if incarnation:
            assert receiver.poll() is None  # 99 was sent before
        send(sender, incarnation)
        assert seen(no_gpu, receiver.poll()) == [incarnation] * 8
        if processes:
            no_gpu.kill_receiver()
        receiver = link.receiver()  # is given again what was not released
        packet = receiver.poll()
        assert packet.header[1:4] == (incarnation, packet.header.number, incarnation)
        receiver.release(packet)
        send(sender, 99)
    sender.close()
    assert receiver.poll().header.sequence == 99
    with pytest.raises(LinkEnded):
        receiver.poll()


def test_memory_stays_until_its_sender_has_gone_and_what_was_received_is_let_go(no_gpu):
    link = create_link("gmi 0, GPU 0", "gmi 1, GPU 0", gpu=True)
    sender, receiver = link.sender(b"s", [StreamSpec(8, 2)]), link.receiver()
    slot = sender.reserve(0)
    fill(no_gpu, slot, 7)
    sender.send(slot, 8, sequence=0, step=0, policy_version=0)
    del slot
    packet = receiver.poll()
    sender.close()
    del sender
    gc.collect()
    assert seen(no_gpu, packet) == [7] * 8
    receiver.release(packet)
    receiver.close()
    del packet, receiver  # the fixture looks at what torch still keeps


def test_the_double_is_particular_about_what_opens_an_export(monkeypatch):
    device = FakeIpc(monkeypatch)
    memory = torch.zeros(8, dtype=torch.uint8)
    export = memory.untyped_storage()._share_cuda_()
    assert (len(export), device.held) == (8, 1)
    opening = torch.UntypedStorage._new_shared_cuda
    with pytest.raises(RuntimeError, match="8 items"):
        opening(0, *export[1:3])
    with pytest.raises(TypeError, match="invalid combination"):
        opening(0, *export[1:7], None)
    with pytest.raises(RuntimeError, match="invalid argument"):
        opening(0, b"?" * 64, *export[2:])
    opened = opening(0, *export[1:])
    with pytest.raises(RuntimeError, match="received from another process"):
        opened._share_cuda_()
    del opened
    gc.collect()
    assert device.held == 0
    torch.UntypedStorage._release_ipc_counter_cuda(*export[4:6])
    assert device.held == 1  # released too often, it is never free


@pytest.mark.gpu
def test_what_a_process_writes_on_the_gpu_another_reads_there():
    link = create_link("gmi 0, GPU 0", "gmi 1, GPU 0", gpu=True)
    over, say_over = pipe()
    with End(bodies.send_on_gpu, link, over), link.receiver(LONG) as receiver:
        assert receiver.schema == b"gpu"
        for number in range(20):  # more than there are slots
            packet = None
            while packet is None:  # its memory comes before the first one
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
        first = None
        while first is None:  # its memory comes before the first packet
            assert wait_any([receiver], LONG)
            first = receiver.poll()
        receiver.release(first)
        del first
        end.process.kill()
        end.process.join()
        assert wait_any([receiver], LONG)
        assert receiver.poll() is None
