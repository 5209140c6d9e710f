"""`gmi-drl doctor`: what of this machine works, and what links it has.

Everything is found out by doing it, as far as it leaves nothing behind: backends are tried in
processes of their own, links are measured with the primitives of a reduction and kept where `plan`
finds them.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gmi_drl.comm.errors import CommError
from gmi_drl.comm.plan.links import Link, LinkKey
from gmi_drl.comm.plan.plan import Measure, plan_reduction
from gmi_drl.comm.plan.project import duration_text
from gmi_drl.comm.plan.torch_facts import ask_torch
from gmi_drl.gmi import GmiError, discover
from gmi_drl.gmi.backends.backend import backend_of
from gmi_drl.gmi.backends.trial import try_backend
from gmi_drl.gmi.discover import look
from gmi_drl.gmi.health.device_health import (
    HealthFinding,
    backend_findings,
    gpu_findings,
    left_behind,
)
from gmi_drl.gmi.health.host_health import host_findings, this_host
from gmi_drl.placement import Layout, LayoutError, Topology, tcg_ex
from gmi_drl.placement.backends import choose_backend
from gmi_drl.placement.config.hardware import HardwareConfig
from gmi_drl.placement.extras import install
from gmi_drl.placement.slicing import sliced

from .doctor_packages import installed, simulator_findings

GMIS_PER_GPU: Final = 2  # of the layout whose links are measured
_NUMEL: Final = 250_000  # of a gradient: a policy of 1 MB. Decides nothing about the links.
_LINKS: Final = {  # in the paper's terms
    "host": "B1, shared memory",
    "ring": "B2, ring between devices",
    "ring_bcast": "B2, broadcast by ring",
    "ipc": "GPU memory",
}


@dataclass(frozen=True)
class Diagnosis:
    """All that was found."""

    topology: Topology
    findings: tuple[HealthFinding, ...]
    links: Mapping[LinkKey, Link]

    @property
    def works(self) -> bool:
        """Whether all works that this machine has."""
        return all(finding.state != "broken" for finding in self.findings)

    @property
    def verdict(self) -> str:
        """In one sentence."""
        broken = [finding.name for finding in self.findings if finding.state == "broken"]
        usable = [
            finding.name.partition(" ")[2]
            for finding in self.findings
            if finding.name.startswith("backend ") and finding.state == "ok"
        ]
        on_gpu = any(device.kind == "gpu" for device in self.topology.devices)
        where = f"works with backends {', '.join(usable)}" if on_gpu else "works on CPU cores"
        if not broken:
            return f"This machine {where}."
        return f"This machine {where}; broken: {', '.join(broken)}."

    def as_json(self) -> dict[str, Any]:
        """Everything as JSON's types."""
        return {
            "works": self.works,
            "verdict": self.verdict,
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
            "topology": dataclasses.asdict(self.topology),
            "links": [
                {
                    **dataclasses.asdict(key),
                    "alpha_s": link.alpha_s,
                    "beta_s_per_byte": link.beta_s_per_byte,
                    "residual": link.residual,
                }
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
    leftovers = left_behind()  # first: a daemon that hangs on would be in the way of what is tried
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
    links, found = measured(topology, measure)
    return Diagnosis(topology, (*findings, *found), links)


def measured(
    topology: Topology, measure: Measure
) -> tuple[Mapping[LinkKey, Link], tuple[HealthFinding, ...]]:
    """The links among two GMIs on each device, those that are known, and a finding for each."""
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
    except (CommError, GmiError) as error:  # torch does not answer, or a slice cannot be made
        return {}, (HealthFinding("links", "broken", "cannot be measured", str(error)),)
    found = [
        HealthFinding(_LINKS[key.kind], "ok", _described(key, link))
        for key, link in sorted(plan.links.items())
    ]
    unknown = {key for row in plan.rows for key in row.links} - plan.links.keys()
    names = ", ".join(sorted({_LINKS[key.kind] for key in unknown}))
    if unknown and measure == "no":
        found.append(HealthFinding("links", "not here", "not measured", names))
    elif unknown:
        remedy = "Measure when the machine does less else: gmi-drl doctor --measure."
        why = "; ".join((names, *plan.notes))
        found.append(HealthFinding("links", "broken", "cannot be measured", why, remedy))
    return plan.links, tuple(found)


def _layout(topology: Topology, backend: str) -> Layout:
    return sliced(tcg_ex(topology, GMIS_PER_GPU, 1, backend), HardwareConfig())


def _described(key: LinkKey, link: Link) -> str:
    each = f"{key.at_once} x {key.ranks}" if key.at_once > 1 else str(key.ranks)
    rate = "" if not link.beta_s_per_byte else f", then {link.bandwidth / 1e9:.3g} GB/s"
    return f"{each} GMIs: {duration_text(link.alpha_s)}{rate}"


def _torch(topology: Topology, say: Callable[[str], None]) -> Iterator[HealthFinding]:
    """torch with its CUDA, NCCL, and cupy: of interest where there is a GPU."""
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
        yield HealthFinding(
            "NCCL", "not here", "-", "torch has none, so that gradients go by the host"
        )
    else:
        yield HealthFinding("NCCL", "ok", ".".join(map(str, torch.nccl)))
    if importlib.util.find_spec("cupy") is None:
        yield HealthFinding(
            "cupy", "not here", "-", "GMIs of a GPU then reduce through the host",
            install("cuda"),
        )  # fmt: skip
    else:
        yield HealthFinding("cupy", "ok", "GMIs of a GPU reduce in its memory")
