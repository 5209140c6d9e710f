"""Applies CUDA's rules of what CUDA_VISIBLE_DEVICES lets a process see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ListedGpu:
    """A GPU that the driver lists."""

    number: int  # as nvidia-smi counts
    uuid: str
    mig: tuple[tuple[str, tuple[int, int]], ...] = ()  # MIG devices: uuid, ids of GI and CI


Chosen = list[tuple[int, list[str] | None]]


def visible(variable: str | None, gpus: Sequence[ListedGpu]) -> tuple[Chosen, list[str]]:
    """Lists the GPUs that are visible, in their order, and a reason for each that is not.

    A GPU goes with the uuids of its MIG devices that are named, or None for all it has. CUDA reads
    names from the left (an index, a UUID or a beginning of one that fits one GPU alone) and stops
    at the first that is none. An index here is nvidia-smi's, in the order of PCI addresses; to
    CUDA it is so with CUDA_DEVICE_ORDER=PCI_BUS_ID, so UUIDs are better.
    """
    if variable is None:
        return [(gpu.number, None) for gpu in gpus], []
    chosen: dict[int, list[str] | None] = {}
    for name in variable.split(","):
        named = _named(name.strip(), gpus)
        if named is None:
            break
        number, uuid = named
        if uuid is None:
            chosen[number] = None
        elif (uuids := chosen.setdefault(number, [])) is not None:
            uuids.append(uuid)
    why = f"is not in CUDA_VISIBLE_DEVICES={variable}"
    return list(chosen.items()), [f"GPU {g.number} {why}" for g in gpus if g.number not in chosen]


def _named(name: str, gpus: Sequence[ListedGpu]) -> tuple[int, str | None] | None:
    """Returns (number of a GPU, uuid of its MIG device or None); None if it names nothing."""
    if name.isdigit():
        return next(((gpu.number, None) for gpu in gpus if gpu.number == int(name)), None)
    if name.startswith("GPU-"):
        fitting = [(gpu.number, None) for gpu in gpus if gpu.uuid.startswith(name)]
        return fitting[0] if len(fitting) == 1 else None
    if not name.startswith("MIG-"):
        return None
    for gpu in gpus:
        for uuid, (instance, compute) in gpu.mig:
            # Drivers before 470 had the GPU's uuid and the ids of both instances in place of one.
            if name in (uuid, f"MIG-{gpu.uuid}/{instance}/{compute}"):
                return gpu.number, uuid
    return None
