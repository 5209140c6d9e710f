"""Finds what is well on this machine, what is not here, and what is broken: GPUs and backends.

Findings are made of what `look` and `discover` saw, and of backends that are tried.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import psutil

from gmi_drl.gmi import lease
from gmi_drl.gmi.backends.backend import CORE_BACKENDS, GPU_BACKENDS, backend_of
from gmi_drl.gmi.discover import Machine
from gmi_drl.gmi.errors import GmiError
from gmi_drl.placement.topology import Device, GpuProcess, Topology

HealthState = Literal["ok", "not here", "broken"]
_NVIDIA: Final = "0x10de"
_PCI: Final = Path("/sys/bus/pci/devices")
_DRIVER: Final = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"))
_LOST: Final = "Look for Xid lines in dmesg; reset the GPU (nvidia-smi -r) or restart the machine."


@dataclass(frozen=True)
class HealthFinding:
    """One thing that was looked at. Broken: it is here, and does not work as it should."""

    name: str
    state: HealthState
    value: str
    why: str = ""  # of a state that is not ok; of one that is: what to know about it
    remedy: str = ""


def gpu_findings(machine: Machine, topology: Topology) -> Iterator[HealthFinding]:
    """Checks driver, GPUs, how they reach each other, and who is on them."""
    yield _driver(machine)
    yield _gpus(machine)
    if machine.devices:
        yield _peers(topology)
        yield _processes(machine)


def backend_findings(
    topology: Topology, attempt: Callable[[str, Topology], str]
) -> Iterator[HealthFinding]:
    """Checks each backend. `attempt` tries one on this topology, and raises GmiError."""
    unusable = dict(topology.unusable)
    on_gpu = any(device.kind == "gpu" for device in topology.devices)
    for backend in CORE_BACKENDS:
        yield HealthFinding(f"backend {backend}", "ok", backend_of(backend).summary)
    for backend in GPU_BACKENDS:
        if not on_gpu or backend in unusable:
            said = unusable[backend] if on_gpu else "there is no GPU that can be used"
            why, _, remedy = said.partition("; ")
            yield HealthFinding(f"backend {backend}", "not here", "-", why, remedy)
            continue
        try:
            yield HealthFinding(f"backend {backend}", "ok", attempt(backend, topology))
        except GmiError as error:
            yield HealthFinding(f"backend {backend}", "broken", "-", str(error))
    if on_gpu and unusable.keys() >= set(GPU_BACKENDS):
        cut = all(device.mig_mode for device in topology.devices)
        first = next(name for name in GPU_BACKENDS if backend_of(name).uses_mig == cut)
        why, _, remedy = unusable[first].partition("; ")
        yield HealthFinding("GPU backends", "broken", "none can be used", why, remedy)


def left_behind() -> HealthFinding:
    """Undoes what launchers that were killed have left of daemons and MIG instances."""
    swept = [one for one in lease.sweep() if one.undone or one.error]
    failed = [f"{one.lease.directory}: {one.error}" for one in swept if one.error]
    if failed:
        count = f"{len(failed)} of {len(swept)}"
        return HealthFinding("left by killed runs", "broken", count, "; ".join(failed))
    value = f"{len(swept)}, now removed" if swept else "nothing"
    return HealthFinding("left by killed runs", "ok", value)


def _driver(machine: Machine) -> HealthFinding:
    if not machine.why_not:
        cuda = ".".join(map(str, machine.cuda)) if machine.cuda else "unknown"
        return HealthFinding(
            "driver", "ok", f"{machine.driver or 'unknown'}, runs CUDA up to {cuda}"
        )
    if any(path.exists() for path in _DRIVER):
        return HealthFinding(
            "driver", "broken", "-", machine.why_not,
            "See what nvidia-smi says. After an update of the driver, restart the machine.",
        )  # fmt: skip
    count = _on_the_bus()
    if not count:
        return HealthFinding("driver", "not here", "-", machine.why_not)
    return HealthFinding(
        "driver", "not here", "-", f"{machine.why_not}, and there are {count} NVIDIA devices on "
        "the PCI bus", "Install NVIDIA's driver; in a container, give it the GPUs (--gpus all).",
    )  # fmt: skip


def _gpus(machine: Machine) -> HealthFinding:
    counts: dict[str, int] = {}
    for device in machine.devices:
        counts[device.name] = counts.get(device.name, 0) + 1
    value = ", ".join(f"{count} x {name}" for name, count in counts.items()) or "none"
    if machine.lost:
        return HealthFinding("GPUs", "broken", value, "; ".join(machine.lost), _LOST)
    for device in machine.devices:
        gpu = f"GPU {device.index} ({device.name})"
        if device.compute_mode == "prohibited":
            why = f"{gpu} has compute mode prohibited: no process may use it"
            return HealthFinding("GPUs", "broken", value, why, f"nvidia-smi -i {device.uuid} -c 0")
        if device.mig_mode and not device.mig:
            return HealthFinding(
                "GPUs", "broken", value, f"{gpu} is in MIG mode and has no instance to be used by",
                "Make some (hardware.allow_create: true, or nvidia-smi mig -cgi), or turn MIG off: "
                f"nvidia-smi -i {device.uuid} -mig 0",
            )  # fmt: skip
    if not machine.devices:
        listed = "" if machine.why_not else "the driver lists none"
        why = "; ".join(machine.hidden) or listed
        return HealthFinding("GPUs", "not here", value, why)
    return HealthFinding("GPUs", "ok", value, "; ".join(machine.hidden))


def _peers(topology: Topology) -> HealthFinding:
    count = len(topology.devices)
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    if not pairs:
        return HealthFinding("peer access", "not here", "one GPU")
    reached = [(i, j) for i, j in pairs if topology.peers and topology.peers[i][j]]
    if len(reached) == len(pairs):
        return HealthFinding("peer access", "ok", f"all {count} GPUs read each other's memory")
    i, j = next(pair for pair in pairs if pair not in reached)
    return HealthFinding(
        "peer access", "ok" if reached else "not here", f"{len(reached)} of {len(pairs)} pairs",
        f"such as GPU {i} and GPU {j} ({topology.links[i][j] or 'unknown'}): what goes between "
        "them goes through the host" if topology.links else "the driver does not say",
    )  # fmt: skip


def _processes(machine: Machine) -> HealthFinding:
    names = [
        f"GPU {device.index}: {_called(process)}"
        for device in machine.devices
        for process in device.processes
    ]
    if not names:
        return HealthFinding("processes on GPUs", "ok", "none")
    held = next((d for d in machine.devices if d.processes and _exclusive(d)), None)
    if held is not None:
        return HealthFinding(
            "processes on GPUs", "broken", "; ".join(names),
            f"GPU {held.index} has compute mode exclusive, and somebody has it",
            "Wait for its process, end it, or choose other GPUs (CUDA_VISIBLE_DEVICES).",
        )  # fmt: skip
    return HealthFinding(
        "processes on GPUs", "ok", "; ".join(names),
        "a run shares SMs and memory with them, and what it measures is disturbed",
    )  # fmt: skip


def _exclusive(device: Device) -> bool:
    return device.compute_mode == "exclusive" and any(
        process.kind != "graphics" for process in device.processes
    )


def _called(process: GpuProcess) -> str:
    """Names a process and its user, where it can be seen from here."""
    memory = "" if process.mem_bytes is None else f", {process.mem_bytes / 2**30:.1f} GiB"
    who = ""
    with contextlib.suppress(psutil.Error):
        seen = psutil.Process(process.pid)
        who = f" ({seen.name()} of {seen.username()})"
    return f"{process.pid}{who}, {process.kind}{memory}"


def _on_the_bus() -> int:
    """Counts NVIDIA's display controllers on the PCI bus, given to us or not."""
    count = 0
    for device in _PCI.glob("*"):
        with contextlib.suppress(OSError):
            vendor = (device / "vendor").read_text().strip()
            count += vendor == _NVIDIA and (device / "class").read_text().startswith("0x03")
    return count
