#!/usr/bin/env python3
"""Checks in one command which assumptions of GMI-DRL hold on a GPU.

    bench/gpu/probe/probe.py [--only CHECK ...] [--minutes 4.8] [--results FOLDER]

The table in docs/gpu-backends.md lists the checks in their order, and what to do where one fails.
Each check runs in a process of its own with a deadline; one that fails, hangs or crashes is a row
of the table, and so is a missing package. The table goes to standard error. All results go as JSON,
with machine, versions, commit and date, to bench/results/gpu/<machine>/probe.json; the file is
written after each check, so that a probe that is ended leaves its results. The exit code is 0 also
where there is no GPU, 1 if a check failed, 2 for a folder that cannot be written, and 143 if
SIGTERM ended the probe.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import report
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gmi_drl.gmi import DiscoveryError, discover
from gmi_drl.gmi.backends.mps.control import missing_programs
from gmi_drl.gmi.discover import look
from gmi_drl.gmi.lease import sweep
from gmi_drl.placement import Device, GmiSpec, Layout, Topology
from gmi_drl.runtime.cache_files import replace_file
from gpu.probe.assumptions import ASSUMPTIONS
from gpu.probe.node import folder_of, versions

HERE: Final = Path(__file__).parent
MINUTES: Final = 4.8  # checks for which no time is left are left out
_WIDTH: Final = 160  # of the table, in a file

Row = dict[str, Any]  # check, what, value, ok, and expected, why, workaround


class Ended(Exception):
    """The probe has got SIGTERM."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = report.parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=ASSUMPTIONS, default=list(ASSUMPTIONS))
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all checks together")
    parser.add_argument(
        "--results", type=Path, metavar="FOLDER", default=report.GPU_RESULTS,
        help="in which a folder of this machine is made; default: bench/results/gpu",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    topology = found_gpus()
    if topology is None:
        print("no GPU here: nothing probed")
        return 0
    device, rows, took_s = topology.devices[0], list[Row](), dict[str, float]()
    end_s = time.monotonic() + 60 * options.minutes
    try:
        path = written(options.results, device, rows, took_s, options.only)
    except OSError as error:
        parser.error(f"--results {options.results}: {error}. Give a folder that can be written.")
    previous_handler = signal.signal(signal.SIGTERM, _end)
    try:
        with tempfile.TemporaryDirectory(prefix="gmi-probe-") as folder:
            layout = Path(folder) / "layout.json"
            layout.write_text(one_gmi(topology).to_json())
            for index, name in enumerate(options.only):
                if name != "node":  # that check reports programs that are not on PATH
                    reach_programs()
                began_s = time.monotonic()
                try:
                    checked(name, layout, min(ASSUMPTIONS[name].deadline_s, end_s - began_s), rows)
                    for swept in sweep():  # a check that was ended may have left a daemon
                        if swept.error:
                            rows.append(row(name, "left behind", swept.error, False))
                finally:  # results are kept, whatever ends this
                    took_s[name] = round(time.monotonic() - began_s, 1)
                    written(options.results, device, rows, took_s, options.only[index + 1 :])
    except Ended:
        sweep()
        print(f"ended by SIGTERM; what was found until then: {path}")
        return 128 + signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
    show(device, rows, took_s)
    print(f"{sum(r['ok'] is False for r in rows)} of {len(rows)} rows are not as they should be: "
          f"{path}")  # fmt: skip
    return int(any(r["ok"] is False for r in rows))


def _end(*_: object) -> None:
    raise Ended


def reach_programs() -> None:
    """Adds the folder of MPS's programs to PATH for the checks that follow, if it is not there."""
    for folder in {folder_of(name) for name in missing_programs()} - {None}:
        os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}{folder}"


def found_gpus() -> Topology | None:
    """Returns this machine's GPUs; None where there are none, or none that answers."""
    try:
        topology = discover()
    except DiscoveryError as error:
        print(f"GPUs cannot be asked: {error}")
        return None
    return topology if topology.devices[0].kind == "gpu" else None


def one_gmi(topology: Topology) -> Layout:
    """Returns a layout that carries the topology to the checks; each makes its own from it."""
    device = topology.devices[0]
    spec = GmiSpec(0, 0, ("trainer",), "direct", device.cores[:1], 1, device_uuid=device.uuid)
    return Layout("tcg_ex", topology, (spec,))


def checked(name: str, layout: Path, deadline_s: float, rows: list[Row]) -> None:
    """Adds the rows of one check, which runs in its own process group, killed at the deadline.

    It is also killed when this process gets SIGTERM: then Ended is raised once `rows` are complete.
    """
    if deadline_s <= 0:
        rows.append(row(name, "not run", None, False, why="the minutes for all checks are over"))
        return
    command = [sys.executable, str(HERE / "checks.py"), name, str(layout)]
    outcome, interrupt = "was interrupted", None
    with tempfile.TemporaryFile() as output, subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            process.wait(deadline_s)
            outcome = f"ended with {process.returncode}"
        except subprocess.TimeoutExpired:
            outcome = f"was not done after {deadline_s:.0f} s"
        except Ended as error:
            outcome, interrupt = "was ended, as the probe was", error
        finally:
            with contextlib.suppress(ProcessLookupError):  # the process group has ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        lines = output.read().decode(errors="replace").splitlines()
    for line in lines:
        with contextlib.suppress(json.JSONDecodeError):
            answer = json.loads(line)
            rows += [answer] if isinstance(answer, dict) and answer.get("check") == name else []
    if not outcome.endswith(" 0"):
        tail = [line for line in lines if not line.startswith("{")][-8:]
        rows.append(row(name, outcome, None, False, why="\n".join(tail)))
    if interrupt is not None:
        raise interrupt


def row(check: str, what: str, value: Any, ok: bool | None, **more: Any) -> Row:
    """Returns a row; `ok` is None where there is nothing to be right or wrong."""
    fields = {"check": check, "what": what, "value": value, "ok": ok}
    return {**fields, "workaround": ASSUMPTIONS[check].workaround, **more}


def show(device: Device, rows: Sequence[Row], took_s: Mapping[str, float]) -> None:
    """Prints the table on standard error."""
    table = Table(title=f"{device.name}, {device.sm_count} SMs: {sum(took_s.values()):.1f} s")
    for column in ("check", "what", "value", "", "expected, or why; the way round"):
        table.add_column(column, overflow="fold")
    marks = {True: "[green]ok[/]", False: "[red]no[/]", None: ""}
    for entry in rows:
        explanation = str(entry.get("why") or entry.get("expected", ""))
        if entry["ok"] is not True and "workaround" in entry:
            explanation = f"{explanation}\n-> {entry['workaround']}".strip()
        value = "" if entry["value"] is None else str(entry["value"])
        table.add_row(entry["check"], entry["what"], value, marks[entry["ok"]], escape(explanation))
    terminal = sys.stderr.isatty()
    Console(stderr=True, width=None if terminal else _WIDTH).print(table)


def written(
    results: Path,
    device: Device,
    rows: Sequence[Row],
    took_s: Mapping[str, float],
    left: Sequence[str],
) -> Path:
    """Writes the rows with machine, versions, commit and date, and returns the path.

    `took_s` is by check, `left` are the checks still to run. The file is replaced atomically.
    """
    machine = look()
    document = {
        "gpu": {
            "name": device.name, "sm_count": device.sm_count, "mem_bytes": device.mem_bytes,
            "capability": device.capability, "compute_mode": device.compute_mode,
            "mig_mode": device.mig_mode,
        },
        "rows": list(rows),
        "left": list(left),
        "took_s": dict(took_s),
        "seconds": round(sum(took_s.values()), 1),
        "versions": {
            "python": sys.version.split()[0], "driver": machine.driver,
            "cuda": ".".join(map(str, machine.cuda or ())), **versions(),
        },
        "machine": report.machine(),
        "commit": report.commit(),
        "date": report.utc_now(),
    }  # fmt: skip
    folder = results / report.slug(device.name)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "probe.json"
    replace_file(path, json.dumps(document, indent=1) + "\n")
    return path


if __name__ == "__main__":
    sys.exit(main())
