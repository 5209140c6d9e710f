"""Chooses the backend that `auto` means by GMI-DRL's rules (section 3.2) and the machine.

Training shares a GPU by MPS, whose processes reduce gradients in its memory; serving takes MIG,
which isolates them, where instances exist. Compute capability 7.0 up to 8.0 has MPS alone, and what
is older has neither.
"""

from __future__ import annotations

from .mig.instances import whole_instances
from .topology import Device, Topology

_VOLTA = (7, 0)  # the first whose MPS limits SMs
_AMPERE = (8, 0)  # the first with MIG


def choose_backend(mode: str, topology: Topology, gmi_per_gpu: int) -> tuple[str, str]:
    """Returns the backend for `gmi_per_gpu` GMIs (at most) on each device, and why."""
    gpus = [device for device in topology.devices if device.kind == "gpu"]
    if not gpus:
        return "cpu", "there is no GPU"
    each = f"{gmi_per_gpu} GMIs on each GPU" if gmi_per_gpu > 1 else "one GMI on each GPU"
    unusable = dict(topology.unusable)
    if all(gpu.mig_mode for gpu in gpus):
        least = min(len(whole_instances(gpu)) for gpu in gpus)
        if mode == "serving" and least >= gmi_per_gpu:
            return "mig", f"serving wants GMIs isolated, and there are MIG instances for {each}"
        return "mig", "the GPUs are in MIG mode, where nothing but their instances can be used"
    if gmi_per_gpu == 1:
        return "direct", f"{each} has it to itself"
    old = next((gpu for gpu in gpus if _before(gpu, _VOLTA)), None)
    if old is not None:
        return "direct", (
            f"GPU {old.index} is of compute capability {_dotted(old)}; MPS limits SMs from 7.0 on"
        )
    if "mps" in unusable:
        without = f"there is no MPS here ({unusable['mps']})"
        if len(gpus) == 1 and "green" not in unusable:
            return "green", f"{without}, and one GPU can be cut within one process"
        return "direct", without
    if mode == "serving":
        first = next((gpu for gpu in gpus if _before(gpu, _AMPERE)), None)
        if first is not None:
            return "mps", f"compute capability {_dotted(first)} of GPU {first.index} has no MIG"
        return "mps", f"{each}, and there are no MIG instances for them"
    return "mps", f"{each}, which train: MPS limits their SMs and memory, and lets them share both"


def _before(gpu: Device, capability: tuple[int, int]) -> bool:
    return gpu.capability is not None and gpu.capability < capability


def _dotted(gpu: Device) -> str:
    return ".".join(map(str, gpu.capability or ()))
