"""Says which strategies can run on this machine, and why the others cannot.

`link_facts` asks torch for its NCCL in a child process; a launcher starts neither CUDA nor torch.
"""

from __future__ import annotations

import importlib.util
from typing import Final, Literal, NamedTuple

from gmi_drl.comm.reducers.strategies import REDUCERS
from gmi_drl.placement.faults import install
from gmi_drl.placement.reduction import MPL, Strategy, shape_fault
from gmi_drl.placement.topology import Topology

from .torch_facts import ask_torch

# NCCL release notes, 2.30.3.
_TWO_ON_A_GPU: Final = (
    "NCCL refuses two ranks on one GPU (2.30.3 and later take them with "
    "NCCL_MULTI_RANK_GPU_ENABLE=1, an experiment that can hang and is not used)"
)


class LinkFacts(NamedTuple):
    """The facts that decide which strategies can run, by device in the topology's order."""

    kind: Literal["cpu", "gpu"]
    nccl: tuple[int, ...] | None = None  # torch's; None without
    mig: tuple[bool, ...] = ()  # the GPU is cut into MIG instances
    cupy: bool = False
    gpus: tuple[int, ...] = ()  # what the topology calls them, if it has others beside

    @property
    def inside(self) -> Literal["host", "ipc"]:
        """Returns how HAR reduces inside a device."""
        return "ipc" if _ipc_fault(self) is None else "host"


def link_facts(topology: Topology) -> LinkFacts:
    """Collects the facts about these devices. On GPUs a child process asks torch for its NCCL.

    CommError when torch does not answer.
    """
    gpus = [device for device in topology.devices if device.kind == "gpu"]
    if not gpus:
        return LinkFacts("cpu")
    return LinkFacts(
        "gpu",
        ask_torch().nccl if len(gpus) > 1 else None,  # one GPU has no rings, and asking takes long
        tuple(bool(device.mig_mode) for device in gpus),
        importlib.util.find_spec("cupy") is not None,
        tuple(device.index for device in gpus),
    )


def why_not(strategy: Strategy, mpl: MPL, facts: LinkFacts) -> str | None:
    """Says why `strategy` cannot run (the rule that is broken, and the remedy); None if it can.

    `mpl`: GMI ids by device, of the devices in `facts`, none of them empty.
    """
    broken = fault(strategy, mpl, facts)
    return None if broken is None else "; ".join((broken[0], broken[1][:1].lower() + broken[1][1:]))


def fault(strategy: Strategy, mpl: MPL, facts: LinkFacts) -> tuple[str, str] | None:
    """Returns the same as (rule, remedy), as `gmi_drl.placement.Fault` takes them."""
    broken = shape_fault(strategy, mpl)
    if broken and REDUCERS[strategy].rings and facts.kind == "gpu" and len(mpl[0]) > len(mpl) > 1:
        return f"{broken[0]}: {_TWO_ON_A_GPU}", broken[1]
    if broken is None and REDUCERS[strategy].ipc:
        return _ipc_fault(facts)
    if broken is None and REDUCERS[strategy].rings and facts.kind == "gpu":
        return _rings_fault(facts)
    return broken


def _ipc_fault(facts: LinkFacts) -> tuple[str, str] | None:
    if facts.kind != "gpu":
        return "there is no GPU whose memory the GMIs could share", "Use mpr, or auto."
    if any(facts.mig):
        return (
            f"GPU {_mig_gpu(facts)} is cut into MIG instances, whose memory other processes "
            "cannot open (CUDA IPC)",
            "Use mpr, or auto, or turn MIG off.",
        )
    if not facts.cupy:
        return "cupy is not installed", f"Use {install('cuda')}, or mpr."
    return None


def _rings_fault(facts: LinkFacts) -> tuple[str, str] | None:
    if facts.nccl is None:
        return (
            "torch has no NCCL, which rings between GPUs need",
            "Use mpr, or auto, or install a torch that is built for CUDA.",
        )
    if any(facts.mig):
        return (
            f"GPU {_mig_gpu(facts)} is cut into MIG instances, which NCCL "
            f"{'.'.join(map(str, facts.nccl))} does not join",
            "Use mpr, or auto, or turn MIG off.",
        )
    return None


def _mig_gpu(facts: LinkFacts) -> int:
    """Returns the first GPU that is cut, as the topology calls it."""
    index = facts.mig.index(True)
    return facts.gpus[index] if facts.gpus else index
