"""What `gmi-drl doctor` prints."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from gmi_drl.gmi.health.device_health import Finding, State
from gmi_drl.launcher.view.tables import print_table
from gmi_drl.placement import Topology, format_cores

if TYPE_CHECKING:
    from rich.console import Console

    from .doctor import Diagnosis

_STYLES: Final[dict[State, str]] = {"ok": "green", "not here": "dim", "broken": "bold red"}
_LEAST: Final = 30  # columns of text that are still readable


def print_diagnosis(console: Console, diagnosis: Diagnosis) -> None:
    """The devices, how GPUs reach each other, every finding, and the verdict."""
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
        rows.append(
            [
                str(device.index),
                device.name,
                str(device.sm_count or "-"),
                memory,
                capability,
                device.compute_mode or "-",
                "-" if device.mig_mode is None else _mig(topology, device.index),
                "-" if device.numa_node is None else str(device.numa_node),
                format_cores(device.cores),
            ]
        )
    columns = ["GPU", "name", "SMs", "memory", "capability", "mode", "MIG", "NUMA", "cores"]
    print_table(console, "GPUs", columns, rows)
    if len(topology.devices) > 1 and topology.links:
        names = [f"GPU {device.index}" for device in topology.devices]
        short = [[_short(link) for link in row] for row in topology.links]
        print_table(
            console,
            "Links (* no peer access)",
            ["", *names],
            [
                [name, *(f"{link}{_mark(topology, i, j)}" for j, link in enumerate(row))]
                for i, (name, row) in enumerate(zip(names, short, strict=True))
            ],
        )


def _mig(topology: Topology, index: int) -> str:
    device = topology.devices[index]
    counts: dict[str, int] = {}
    for one in device.mig:
        counts[one.profile] = counts.get(one.profile, 0) + 1
    shown = ", ".join(f"{count} x {profile}" for profile, count in counts.items())
    return (shown or "on, empty") if device.mig_mode else "off"


def _short(link: str) -> str:
    """Narrow enough for eight of them in a row."""
    shorter = {"host bridge": "bridge", "NUMA node": "node", "PCIe switch": "PCIe"}
    shorter |= {"PCIe switches": "PCIe+", "same board": "board", "": "-"}
    return shorter.get(link, link.replace("NVLink x", "NV"))


def _mark(topology: Topology, i: int, j: int) -> str:
    return "" if not topology.peers or topology.peers[i][j] else "*"


def _print_findings(console: Console, findings: tuple[Finding, ...]) -> None:
    if console.is_terminal:
        from rich.table import Table
        from rich.text import Text

        table = Table(title="Findings", title_justify="left")
        for column in ("what", "state", "found"):
            table.add_column(column, overflow="fold")
        for finding in findings:
            found = Text(finding.value if finding.value != "-" else "")
            for line, style in ((finding.why, "dim"), (finding.remedy, "yellow")):
                if line:
                    found.append(f"{chr(10) if found else ''}{line}", style)
            state = Text(finding.state, _STYLES[finding.state])
            table.add_row(Text(finding.name), state, found)
        console.print(table)
        return
    before = max(len(finding.name) for finding in findings) + max(map(len, _STYLES)) + 6
    width = max(_LEAST, console.width - before)
    rows = []
    for finding in findings:
        said = [finding.value if finding.value != "-" else "", finding.why, finding.remedy]
        lines = [
            line
            for text in filter(None, said)
            for line in textwrap.wrap(text, width, break_on_hyphens=False)
        ]
        rows.append([finding.name, finding.state, lines[0] if lines else "-"])
        rows += [["", "", line] for line in lines[1:]]
    print_table(console, "Findings", ["what", "state", "found"], rows)
