"""Which backend `auto` means, on each kind of machine, and that it says why."""

import dataclasses

import pytest

from gmi_drl.placement import Device, MigInstance, Topology
from gmi_drl.placement.resolve import choose_backend

GIB = 1 << 30


def gpus(count=1, capability=(9, 0), mig_mode=False, instances=0, **unusable):
    each = tuple(MigInstance(f"MIG-{n}", "1g.10gb", n, 1, 9 * GIB) for n in range(instances))
    return Topology(
        tuple(
            Device(
                i, "gpu", "a GPU", (i,), f"GPU-{i}", 132, 80 * GIB, capability, mig_mode=mig_mode,
                mig=each,
            )
            for i in range(count)
        ),
        unusable=tuple(unusable.items()),
    )  # fmt: skip


IN_MIG_MODE = gpus(2, mig_mode=True, instances=3)
V100, P100 = gpus(8, (7, 0), None), gpus(1, (6, 0), None)
NO_MPS = gpus(mps="nvidia-cuda-mps-control is not installed")


@pytest.mark.parametrize(
    ("mode", "topology", "gmi_per_gpu", "backend", "why"),
    [
        ("sync", Topology.from_cores([0, 1]), 2, "cpu", "there is no GPU"),
        ("sync", gpus(), 1, "direct", "one GMI on each GPU has it to itself"),
        ("sync", gpus(8), 4, "mps", "4 GMIs on each GPU, which train"),
        ("async", gpus(2), 4, "mps", "4 GMIs on each GPU, which train"),
        ("serving", gpus(), 4, "mps", "there are no MIG instances"),
        ("serving", IN_MIG_MODE, 3, "mig", "serving wants GMIs isolated"),
        ("serving", IN_MIG_MODE, 4, "mig", "nothing but their instances"),
        ("sync", IN_MIG_MODE, 1, "mig", "nothing but their instances"),
        ("serving", V100, 2, "mps", "compute capability 7.0 of GPU 0 has no MIG"),
        ("sync", P100, 2, "direct", "capability 6.0; MPS limits SMs from 7.0 on"),
        ("sync", NO_MPS, 2, "green", "nvidia-cuda-mps-control is not installed"),
        ("sync", gpus(2, mps="no"), 2, "direct", "no MPS here (no)"),
        ("sync", gpus(mps="no", green="no driver"), 2, "direct", "no MPS here"),
    ],
)
def test_auto_takes_what_suits_the_mode_and_the_machine(mode, topology, gmi_per_gpu, backend, why):
    chosen, reason = choose_backend(mode, topology, gmi_per_gpu)
    assert (chosen, why in reason) == (backend, True), reason


def test_one_gpu_of_several_in_mig_mode_does_not_bring_mig_to_the_others():
    first = dataclasses.replace(gpus(2).devices[0], mig_mode=True)
    mixed = Topology((first, gpus(2).devices[1]))
    assert choose_backend("serving", mixed, 2)[0] == "mps"
