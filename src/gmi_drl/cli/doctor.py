"""Finds out what of this machine works and what links it has, for `gmi-drl doctor`.

Backends are tried in processes of their own; links are measured, and kept where `plan` finds them.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.comm.errors import CommError
from gmi_drl.comm.links.links import Link, LinkKey
from gmi_drl.comm.plan.plan import Measure, plan_reduction
from gmi_drl.comm.plan.project import duration_text
from gmi_drl.comm.plan.torch_facts import ask_torch
from gmi_drl.gmi import GmiError, discover
from gmi_drl.gmi.backends.backend import backend_of
from gmi_drl.gmi.backends.trial import try_backend
from gmi_drl.gmi.discover import look
from gmi_drl.gmi.health import (
    HealthFinding,
    HealthState,
    backend_findings,
    gpu_findings,
    host_findings,
    left_behind,
    this_host,
)
from gmi_drl.launcher.view.tables import print_folded, print_table
from gmi_drl.placement import Device, Layout, LayoutError, Topology, format_cores, tcg_ex
from gmi_drl.placement.config.config import HardwareConfig
from gmi_drl.placement.faults import install
from gmi_drl.placement.resolve import choose_backend
from gmi_drl.placement.slicing import sliced
from gmi_drl.roles.envs.adapters import ADAPTERS

if TYPE_CHECKING:
    from rich.console import Console

GMIS_PER_GPU: Final = 2  # of the layout whose links are measured
_NUMEL: Final = 250_000  # of a gradient: a policy of 1 MB. Decides nothing about the links.
_LINKS: Final = {  # in the paper's terms
    "host": "B1, shared memory",
    "ring": "B2, ring between devices",
    "ring_bcast": "B2, broadcast by ring",
    "ipc": "GPU memory",
}
_STYLES: Final[dict[HealthState, str]] = {"ok": "green", "not here": "dim", "broken": "bold red"}


@dataclass(frozen=True)
class Diagnosis:
    """Holds all that was found out."""

    topology: Topology
    findings: tuple[HealthFinding, ...]
    links: Mapping[LinkKey, Link]

    @property
    def works(self) -> bool:
        """Says whether all works that this machine has."""
        return all(finding.state != "broken" for finding in self.findings)

    @property
    def verdict(self) -> str:
        """Sums it up in one sentence."""
        broken = [finding.name for finding in self.findings if finding.state == "broken"]
        works = [finding.name for finding in self.findings if finding.state == "ok"]
        usable = [n.removeprefix("backend ") for n in works if n.startswith("backend ")]
        on_gpu = any(device.kind == "gpu" for device in self.topology.devices)
        where = f"works with backends {', '.join(usable)}" if on_gpu else "works on CPU cores"
        broken_text = f"; broken: {', '.join(broken)}" if broken else ""
        return f"This machine {where}{broken_text}."

    def as_json(self) -> dict[str, Any]:
        """Returns everything as JSON's types and dataclasses of these."""
        return {
            "works": self.works,
            "verdict": self.verdict,
            "findings": self.findings,
            "topology": self.topology,
            "links": [
                dataclasses.asdict(key)
                | {name: getattr(link, name) for name in ("alpha_s", "beta_s_per_byte", "residual")}
                for key, link in sorted(self.links.items())
            ],
        }


def diagnose(
    measure: Measure = "missing", say: Callable[[str], None] = lambda what: None
) -> Diagnosis:
    """Looks at this machine. Takes seconds where backends are tried or links measured.

    `measure`: which links, as for `plan`; `say` is told what is being done. What killed runs have
    left behind is removed on the way.
    """
    leftovers = left_behind()  # first: a daemon left over would disturb the trials below
    machine, topology, host = look(), discover(), this_host()

    def attempt(backend: str, of: Topology) -> str:
        say(f"trying backend {backend}")
        return try_backend(backend, of)

    findings = [
        *gpu_findings(machine, topology),
        *backend_findings(topology, attempt),
        *_torch(topology, say),
        *simulator_findings(),
        *host_findings(host, topology),
        leftovers,
    ]
    if measure != "no":
        say("measuring links")
    links, link_findings = measured(topology, measure)
    return Diagnosis(topology, (*findings, *link_findings), links)


def measured(
    topology: Topology, measure: Measure
) -> tuple[Mapping[LinkKey, Link], tuple[HealthFinding, ...]]:
    """Returns the known links among two GMIs on each device, and a finding for each."""
    try:
        backend, _ = choose_backend("sync", topology, GMIS_PER_GPU)
        if why := dict(topology.unusable).get(backend):
            raise LayoutError(why)
        layout = _layout(topology, backend)
    except LayoutError as error:
        return {}, (HealthFinding("links", "not here", "not measured", str(error)),)
    if backend_of(backend).uses_mig:
        try:
            layout = _layout(backend_of(backend).idle_part(topology)[0], backend)
        except (GmiError, LayoutError):
            why = f"of the MIG instances fewer than {GMIS_PER_GPU} on each GPU are idle"
            remedy = "Measure when they are: gmi-drl doctor --measure."
            return {}, (HealthFinding("links", "not here", "not measured", why, remedy),)
    try:
        plan = plan_reduction("auto", layout, _NUMEL, measure=measure)
    except CommError as error:  # torch does not answer
        return {}, (HealthFinding("links", "broken", "cannot be measured", str(error)),)
    findings = [
        HealthFinding(_LINKS[key.kind], "ok", _described(key, link))
        for key, link in sorted(plan.links.items())
    ]
    unknown = {key for row in plan.rows for key in row.links} - plan.links.keys()
    names = ", ".join(sorted({_LINKS[key.kind] for key in unknown}))
    if unknown and measure == "no":
        findings.append(HealthFinding("links", "not here", "not measured", names))
    elif unknown:
        remedy = "Measure when the machine does less else: gmi-drl doctor --measure."
        why = "; ".join((names, *plan.notes))
        findings.append(HealthFinding("links", "broken", "cannot be measured", why, remedy))
    return plan.links, tuple(findings)


def _layout(topology: Topology, backend: str) -> Layout:
    return sliced(tcg_ex(topology, GMIS_PER_GPU, 1, backend), HardwareConfig())


def _described(key: LinkKey, link: Link) -> str:
    ranks = f"{key.at_once} x {key.ranks}" if key.at_once > 1 else str(key.ranks)
    rate = "" if not link.beta_s_per_byte else f", then {link.bandwidth / 1e9:.3g} GB/s"
    return f"{ranks} GMIs: {duration_text(link.alpha_s)}{rate}"


def _torch(topology: Topology, say: Callable[[str], None]) -> Iterator[HealthFinding]:
    """Yields findings on torch, its CUDA, NCCL and cupy."""
    count = sum(device.kind == "gpu" for device in topology.devices)
    if not count:
        yield HealthFinding("torch", "ok", installed("torch") or "of unknown version")
        yield HealthFinding("NCCL", "not here", "-", "there is no GPU that can be used")
        return
    say("asking torch")
    try:
        torch = ask_torch(compute=True)
    except CommError as error:
        yield HealthFinding("torch", "broken", "-", str(error))
        return
    build = "https://pytorch.org/get-started/locally has the command for CUDA."
    value = f"{torch.version}, CUDA {torch.cuda}"
    if torch.cuda is None:
        yield HealthFinding("torch", "broken", torch.version, "it is built without CUDA", build)
    elif torch.error or not torch.num_gpus:
        yield HealthFinding(
            "torch", "broken", value,
            f"it cannot compute on a GPU: {torch.error}" if torch.error else "it sees no GPU",
            "Its CUDA may be newer than the driver's, or have no kernels for this GPU: update the "
            f"driver, or torch. {build}",
        )  # fmt: skip
    else:
        yield HealthFinding("torch", "ok", value)
    if torch.nccl is None:
        why = "torch has none, so that gradients go by the host"
        yield HealthFinding("NCCL", "not here", "-", why)
    else:
        yield HealthFinding("NCCL", "ok", ".".join(map(str, torch.nccl)))
    if importlib.util.find_spec("cupy") is None:
        why = "GMIs of a GPU then reduce through the host"
        yield HealthFinding("cupy", "not here", "-", why, install("cuda"))
    else:
        yield HealthFinding("cupy", "ok", "GMIs of a GPU reduce in its memory")


def simulator_findings() -> Iterator[HealthFinding]:
    """Lists the adapters whose packages are no part of a plain installation."""
    for adapter, details in ADAPTERS.items():
        versions = {package: installed(package) for package in details.packages.values()}
        if not versions or not details.ids:  # adapters without ids need packages of NVIDIA's site
            continue
        missing = [package for package, number in versions.items() if number is None]
        present = ", ".join(f"{p} {versions[p]}" for p in versions if p not in missing)
        name, why = f"adapter {adapter}", f"not installed: {', '.join(missing)}"
        if missing:
            yield HealthFinding(name, "not here", present or "-", why, install(adapter))
        else:
            yield HealthFinding(name, "ok", present)


def installed(package: str) -> str | None:
    """Returns a package's version; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def print_diagnosis(console: Console, diagnosis: Diagnosis) -> None:
    """Prints the devices, how GPUs reach each other, every finding, and the verdict."""
    if any(device.kind == "gpu" for device in diagnosis.topology.devices):
        _print_gpus(console, diagnosis.topology)
    _print_findings(console, diagnosis.findings)
    style = "bold green" if diagnosis.works else "bold red"
    console.print(diagnosis.verdict, style=style, highlight=False, soft_wrap=True)


def _print_gpus(console: Console, topology: Topology) -> None:
    rows = []
    for device in topology.devices:
        capability = ".".join(map(str, device.capability)) if device.capability else "-"
        memory = f"{device.mem_bytes / 2**30:.0f} GiB" if device.mem_bytes else "-"
        mig = "-" if device.mig_mode is None else _mig(device)
        node = "-" if device.numa_node is None else str(device.numa_node)
        row = [str(device.index), device.name, str(device.sm_count or "-"), memory, capability]
        rows.append([*row, device.compute_mode or "-", mig, node, format_cores(device.cores)])
    columns = ["GPU", "name", "SMs", "memory", "capability", "mode", "MIG", "NUMA", "cores"]
    print_table(console, "GPUs", columns, rows)
    if len(topology.devices) > 1 and topology.links:
        names = [f"GPU {device.index}" for device in topology.devices]
        peers = topology.peers or [[True] * len(names)] * len(names)
        rows = [
            [name, *(_short(link) + ("" if peer else "*") for link, peer in zip(*row, strict=True))]
            for name, *row in zip(names, topology.links, peers, strict=True)
        ]
        print_table(console, "Links (* no peer access)", ["", *names], rows)


def _mig(device: Device) -> str:
    counts = Counter(instance.profile for instance in device.mig)
    profiles = ", ".join(f"{count} x {profile}" for profile, count in counts.items())
    return (profiles or "on, empty") if device.mig_mode else "off"


def _short(link: str) -> str:
    """Shortens the name of a link, so that eight of them fit in a row."""
    shorter = {"host bridge": "bridge", "NUMA node": "node", "PCIe switch": "PCIe"}
    shorter |= {"PCIe switches": "PCIe+", "same board": "board", "": "-"}
    return shorter.get(link, link.replace("NVLink x", "NV"))


def _print_findings(console: Console, findings: tuple[HealthFinding, ...]) -> None:
    from rich.text import Text

    rows: list[list[str | Text]] = []
    for finding in findings:
        value = finding.value if finding.value != "-" else ""
        lines = ((value, ""), (finding.why, "dim"), (finding.remedy, "yellow"))
        cell = Text("\n").join(Text(line, style) for line, style in lines if line) or Text("-")
        rows.append([finding.name, Text(finding.state, _STYLES[finding.state]), cell])
    print_folded(console, "Findings", ["what", "state", "found"], rows)
