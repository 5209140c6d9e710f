"""Memory of one real GPU: what is counted, and copies by the host's: `pytest -m gpu`."""

from datetime import timedelta

import pytest

from gmi_drl.comm.shm.pinned import PinnedMemory
from gmi_drl.comm.transports import StreamSpec, create_link
from gmi_drl.gmi.usage.memory import DeviceMemory
from gmi_drl.placement import Device, GmiSpec, Layout, Topology
from gmi_drl.runtime import Memfd

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]
MIB = 1 << 20


def test_what_torch_holds_is_in_the_peak_and_stays_there():
    import torch

    device = Device(0, "gpu", "GPU", (0,), mem_bytes=1 << 40)
    layout = Layout("tcg", Topology((device,)), (GmiSpec(0, 0, ("agent",), "direct", (0,), 1),))
    memory = DeviceMemory(layout, 0, torch.device("cuda"), pytest.fail)
    memory.bound()
    before = memory.look()
    held = torch.empty(before + 64 * MIB, dtype=torch.uint8, device="cuda")
    peak = memory.look()
    assert peak >= before + 64 * MIB
    del held
    torch.cuda.empty_cache()
    assert memory.look() == peak


def test_shared_memory_that_is_registered_is_pinned_and_carries_what_a_gpu_has():
    import torch

    shared = Memfd.create("pinned", MIB).map()
    host = torch.frombuffer(shared, dtype=torch.uint8)
    assert not host.is_pinned()
    pinned = PinnedMemory(shared, torch.device("cuda"), "copies are")
    assert pinned.why_not == ""
    assert host.is_pinned()
    numbers = torch.randint(0, 255, (MIB,), dtype=torch.uint8, device="cuda")
    host.copy_(numbers, non_blocking=True)
    pinned.wait()
    assert torch.equal(host, numbers.cpu())
    pinned.close()
    assert not host.is_pinned()


def test_packets_of_a_pinned_link_are_whole_when_they_arrive():
    import torch

    device, size = torch.device("cuda"), 4 * MIB
    link = create_link("gmi 0", "gmi 1")
    timeout = timedelta(seconds=30)
    with (
        link.receiver(timeout) as receiver,
        link.sender(b"", [StreamSpec(size, 2)], timeout) as sender,
    ):
        sender.pin(device)
        receiver.pin(device)
        for value in range(20):  # each slot is used again and again
            slot = sender.reserve(0)
            full = torch.full((size,), value, dtype=torch.uint8, device=device)
            slot.memory.copy_(full, non_blocking=slot.memory.is_pinned())
            sender.send(slot, size, sequence=value, step=0, policy_version=0)
            packet = receiver.poll()
            taken = torch.empty(size, dtype=torch.uint8, device=device)
            taken.copy_(packet.memory, non_blocking=packet.memory.is_pinned())
            receiver.release(packet)
            assert bool((taken == value).all())
