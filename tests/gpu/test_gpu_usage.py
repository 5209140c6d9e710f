"""What a process uses of one real GPU, by NVML: `pytest -m gpu`."""

import subprocess
import sys

import pytest

from gmi_drl.gmi import discover
from gmi_drl.gmi.usage.meter import DeviceMeter
from gmi_drl.placement import GmiSpec, Layout

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]
MIB = 1 << 20
WORK = """
import sys, torch
held = torch.ones(512 << 18, device="cuda")
one = torch.ones(2048, 2048, device="cuda")
print("", flush=True)
for _ in range(2000):
    one = (one @ one).clamp_(0, 1)
torch.cuda.synchronize()
print("", flush=True)
sys.stdin.read()
"""


def test_memory_and_activity_of_a_process():
    topology = discover(1)
    if topology.devices[0].kind != "gpu":
        pytest.skip("no GPU on this machine answers")
    spec = GmiSpec(0, 0, ("simulator", "agent"), "direct", (0,), 4)
    layout, meter = Layout("tcg", topology, (spec,)), DeviceMeter()
    process = subprocess.Popen(
        [sys.executable, "-c", WORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        process.stdout.readline()
        meter.look(layout, {0: process.pid})
        meter.begin()
        process.stdout.readline()
        meter.look(layout, {0: process.pid})
        found = meter.end()
    finally:
        meter.close()
        process.communicate()
    assert 512 * MIB < found.mem_bytes < 4096 * MIB  # CUDA's own share differs
    assert 0 < found.share < 1
    if topology.devices[0].capability >= (9, 0):  # the counters came with Hopper
        assert 0.1 < found.sm_activity <= 1
