#!/usr/bin/env python3
"""First checks on a GPU: what of GMI-DRL's ground holds on this machine, in one command.

    bench/gpu/probe.py [--only CHECK ...] [--results FOLDER]

MPS programs; the share that MPS clients see at 25, 50 and 100 %; static SM partitions; CUDA IPC
with and without MPS; same-GPU reductions; the SMs of green contexts; what terminate_client does.
Each check runs in a process of its own with a deadline; one that fails, hangs or crashes is a row
of the table. Within five minutes. The table goes to standard error, and everything as JSON, with
machine, versions, commit and date, to bench/results/gpu/<machine>/probe.json. Exit code 0 also
where there is no GPU; 1 if a check failed.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import report
from rich.console import Console
from rich.table import Table

from gmi_drl.gmi import DiscoveryError, discover
from gmi_drl.gmi.discover import look
from gmi_drl.gmi.lease import sweep
from gmi_drl.placement import Device, GmiSpec, Layout, Topology

HERE: Final = Path(__file__).parent
# In the order of the checks; a check that comes too late in the five minutes is left out.
DEADLINES_S: Final = {
    "programs": 10,
    "shares": 60,
    "static": 20,
    "ipc_direct": 30,
    "ipc_mps": 30,
    "reduce_direct": 35,
    "reduce_mps": 40,
    "reduce_green": 30,
    "green": 20,
    "terminate": 40,
}
BUDGET_S: Final = 290
_PACKAGES: Final = ("torch", "cuda-bindings", "cupy-cuda13x", "nvidia-ml-py")

Row = dict[str, Any]  # check, what, value, ok, and expected or why


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=DEADLINES_S, default=list(DEADLINES_S))
    parser.add_argument(
        "--results", type=Path, metavar="FOLDER", default=report.GPU_RESULTS,
        help="in which a folder of this machine is made; default: bench/results/gpu",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    topology = found_gpus()
    if topology is None:
        print("no GPU here: nothing probed")
        return 0
    began_s = time.monotonic()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="gmi-probe-") as folder:
        layout = Path(folder) / "layout.json"
        layout.write_text(one_gmi(topology).to_json())
        for name in options.only:
            left_s = BUDGET_S - (time.monotonic() - began_s)
            rows += checked(name, layout, min(DEADLINES_S[name], left_s))
            for swept in sweep():  # a check that was ended may have left a daemon
                rows += [row(name, "left behind", swept.error, False)] if swept.error else []
    seconds = round(time.monotonic() - began_s, 1)
    device = topology.devices[0]
    show(device, rows, seconds)
    path = written(options.results, device, rows, seconds)
    print(f"{sum(r['ok'] is False for r in rows)} of {len(rows)} rows are not as they should be: "
          f"{path}")  # fmt: skip
    return int(any(r["ok"] is False for r in rows))


def found_gpus() -> Topology | None:
    """This machine's GPUs; None where there are none, or none that answers."""
    try:
        topology = discover()
    except DiscoveryError as error:
        print(f"GPUs cannot be asked: {error}")
        return None
    return topology if topology.devices[0].kind == "gpu" else None


def one_gmi(topology: Topology) -> Layout:
    """A layout that carries the topology to the checks; each makes its own of it."""
    device = topology.devices[0]
    spec = GmiSpec(0, 0, ("trainer",), "direct", device.cores[:1], 1, device_uuid=device.uuid)
    return Layout("tcg_ex", topology, (spec,))


def checked(name: str, layout: Path, deadline_s: float) -> list[Row]:
    """The rows of one check, run in a process group of its own that is ended at the deadline."""
    if deadline_s <= 0:
        return [row(name, "not run", None, False, why=f"{BUDGET_S} s for all checks are over")]
    command = [sys.executable, str(HERE / "checks.py"), name, str(layout)]
    with tempfile.TemporaryFile() as output, subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            process.wait(deadline_s)
            how = f"ended with {process.returncode}"
        except subprocess.TimeoutExpired:
            how = f"was not done after {deadline_s:.0f} s"
        with contextlib.suppress(ProcessLookupError):  # it has gone, and all it started
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        output.seek(0)
        lines = output.read().decode(errors="replace").splitlines()
    rows: list[Row] = []
    for line in lines:
        with contextlib.suppress(json.JSONDecodeError):
            said = json.loads(line)
            rows += [said] if isinstance(said, dict) and said.get("check") == name else []
    if not how.endswith(" 0"):
        said = [line for line in lines if not line.startswith("{")][-8:]
        rows.append(row(name, how, None, False, why="\n".join(said)))
    return rows


def row(check: str, what: str, value: Any, ok: bool | None, **more: Any) -> Row:
    """One line of the table; `ok` None where there is nothing to be right or wrong."""
    return {"check": check, "what": what, "value": value, "ok": ok, **more}


def show(device: Device, rows: Sequence[Row], seconds: float) -> None:
    """The table, on standard error."""
    table = Table(title=f"{device.name}, {device.sm_count} SMs: {seconds} s")
    for column in ("check", "what", "value", "", "expected, or why"):
        table.add_column(column, overflow="fold")
    marks = {True: "[green]ok[/]", False: "[red]no[/]", None: ""}
    for one in rows:
        about = str(one.get("why") or one.get("expected", ""))
        value = "" if one["value"] is None else str(one["value"])
        table.add_row(one["check"], one["what"], value, marks[one["ok"]], about)
    Console(stderr=True).print(table)


def written(results: Path, device: Device, rows: Sequence[Row], seconds: float) -> Path:
    """Keeps the rows with all that says where they come from; the path."""
    machine = look()
    versions = {"python": sys.version.split()[0], "driver": machine.driver}
    versions["cuda"] = ".".join(map(str, machine.cuda or ()))
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    found = {
        "gpu": {
            "name": device.name, "sm_count": device.sm_count, "mem_bytes": device.mem_bytes,
            "capability": device.capability, "compute_mode": device.compute_mode,
            "mig_mode": device.mig_mode,
        },
        "rows": list(rows),
        "seconds": seconds,
        "versions": versions,
        "machine": report.machine(),
        "commit": report.commit(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }  # fmt: skip
    folder = results / re.sub(r"[^a-z0-9]+", "-", device.name.lower()).strip("-")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "probe.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    return path


if __name__ == "__main__":
    sys.exit(main())
