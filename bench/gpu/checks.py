"""The checks of `probe.py`, each in a process of its own: `checks.py NAME LAYOUT`.

What is found is printed at once, a row of JSON a line: what was found before a check is ended at
its deadline is not lost.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gmi_drl.gmi import LayoutSlices
from gmi_drl.gmi.lease import Lease
from gmi_drl.gmi.mps_control import CONTROL, SERVER, Daemon, MpsError
from gmi_drl.placement import GmiSpec, Layout
from gmi_drl.placement.topology import share

CLIENTS: Final = Path(__file__).parent / "clients.py"
_CLIENT_S: Final = 25
_ENDED_S: Final = 10


class Check:
    """One check: where its rows come from, and the GPU it is about."""

    def __init__(self, name: str, layout: Layout) -> None:
        self.name, self.topology = name, layout.topology
        self.device = layout.topology.devices[0]

    def row(self, what: str, value: Any, ok: bool | None, **more: Any) -> None:
        """Prints what was found; `ok` None where there is nothing to be right or wrong."""
        found = {"check": self.name, "what": what, "value": value, "ok": ok, **more}
        print(json.dumps(found), flush=True)

    def layout(self, backend: str, *percents: int | None) -> Layout:
        """GMIs on the first GPU, one for each share of its SMs."""
        uuid, cores = self.device.uuid, self.device.cores
        gmis = tuple(
            GmiSpec(
                i, 0, ("simulator", "agent", "trainer"), backend,
                share(cores, len(percents), i) or cores[:1], 1, percent, device_uuid=uuid,
            )
            for i, percent in enumerate(percents)
        )  # fmt: skip
        return Layout("tcg_ex", dataclasses.replace(self.topology, devices=(self.device,)), gmis)


def programs(check: Check) -> None:
    """MPS binaries."""
    for name in (CONTROL, SERVER):
        path = shutil.which(name)
        check.row(name, path, path is not None, expected="on PATH")


def shares(check: Check) -> None:
    """Attribute 133, and the SMs that a client sees at 25, 50 and 100 %, and outside MPS."""
    whole = check.device.sm_count or 0
    for backend, percent in (("direct", None), ("mps", 25), ("mps", 50), ("mps", 100)):
        with slices_of(check.layout(backend, percent)) as (gmis, slices):
            environment = slices.environment(gmis[0])
            seen = client("sees", environment)
        title = f"{backend} {percent} %" if percent else backend
        in_mps = backend == "mps"
        check.row(f"{title}: in MPS", seen["mps"], seen["mps"] == in_mps, expected=in_mps)
        wanted = whole * (percent or 100) // 100
        # A share is cut down to pairs of SMs, a static partition to chunks of them.
        parts = "CUDA_MPS_SM_PARTITION" in environment
        near = wanted - (8 if parts else 2) < seen["sm_count"] <= wanted + 1
        expected = f"{wanted}, less {'part of a chunk' if parts else 'one at most'}"
        check.row(f"{title}: SMs", seen["sm_count"], near, expected=expected)


def static(check: Check) -> None:
    """Whether the daemon knows static partitions (-S), and what it says if not."""
    lease = Lease.open("mps")
    try:
        number = lease.note({"device_uuid": check.device.uuid, "index": 0})
        daemon = Daemon(lease.directory, str(check.device.uuid))
        try:
            daemon.start(static=True)
            found, why = daemon.add_partition(1), ""
        except MpsError as error:
            found, why = None, str(error).splitlines()[0]
        finally:
            daemon.stop()
        lease.undone(number)
    finally:
        lease.close()
    check.row("static SM partitions", found, None, why=why or "CUDA 13.1 and later")


def ipc(check: Check, backend: str) -> None:
    """CUDA IPC between two processes: that it works, and what opening and waiting take."""
    half = None if backend == "direct" else 50
    with slices_of(check.layout(backend, half, half)) as (gmis, slices):
        exporter, importer = (slices.environment(spec) for spec in gmis)
        with started("exports", exporter) as process:
            assert process.stdout is not None
            handles = process.stdout.readline().strip()
            if not handles.startswith("{"):
                raise RuntimeError(f"the process that exports: {handles}{process.stdout.read()}")
            found = client("imports", importer, handles)
            process.communicate("over\n", timeout=_ENDED_S)
    check.row("memory is what was written", found["right"], found["right"])
    for what in ("open_memory_us", "open_event_us", "wait_event_us", "copy_10mib_us"):
        check.row(what, found[what], None)


def reduce(check: Check, backend: str) -> None:
    """Reductions among GMIs of one GPU, in its memory (ipc) and through the host (mpr)."""
    from gmi_drl.comm.measure import measure
    from gmi_drl.comm.stages import key_of, stages_of
    from gmi_drl.placement.reduction import reducing

    for count in (4, 2) if backend != "green" else (4,):
        percent = None if backend == "direct" else 100 // count
        layout = check.layout(backend, *[percent] * count)
        for strategy in ("ipc", "mpr"):
            stages = {key_of(s, layout): s for s in stages_of(strategy, reducing(layout))}
            (link,) = measure(stages, layout, timedelta(seconds=30)).values()
            for nbytes, seconds in link.samples:
                what = f"{strategy} of {count}, {nbytes >> 10} KiB: us"
                check.row(what, round(seconds * 1e6, 1), None)


def green(check: Check) -> None:
    """One split of the GPU: that contexts of its groups run on SMs no other has."""
    with slices_of(check.layout("green", 50, 25, 25)) as (gmis, slices):
        found = client("green", slices.environment(gmis[0]), str(check.device.capability[0]))
    sets = [set(sms) for sms in found["sms"]]
    apart = sum(map(len, sets)) == len(set().union(*sets))
    check.row("groups of SMs", found["groups"], None, expected=f"of {found['group_sms']} SMs")
    check.row("SMs of three contexts", [len(sms) for sms in sets], sets != [] and all(sets))
    check.row("no SM in two of them", apart, apart)
    match = [len(sms) for sms in sets] == found["said"]
    check.row("as many as the driver says", found["said"], match)
    check.row("torch works on the stream", found["torch"], found["torch"])


def terminate(check: Check) -> None:
    """terminate_client on a client at work: how it ends, and whether others get in afterwards."""
    with slices_of(check.layout("mps", 50, 50)) as (gmis, slices):
        with started("works", slices.environment(gmis[0])) as process:
            assert process.stdout is not None
            ready = process.stdout.readline().strip()
            if ready != "ready":
                raise RuntimeError(f"the process that works: {ready} {process.stdout.read()}")
            began_s = time.monotonic()
            slices.fence(gmis[0], process.pid)
            check.row("fence took s", round(time.monotonic() - began_s, 3), None)
            try:
                said, _ = process.communicate(timeout=_ENDED_S)
                end = f"exit code {process.returncode}"
            except subprocess.TimeoutExpired:
                process.kill()
                said, _ = process.communicate()
                end = "it went on until SIGKILL"
            found = re.findall(r"(?:CUDA_ERROR_|cudaError)\w+|CUDA error[^\n]*", said)
            check.row("the client's end", end, None, why=", ".join(found[:2]))
        began_s = time.monotonic()
        seen = client("sees", slices.environment(gmis[1]))
        took_s = round(time.monotonic() - began_s, 1)
        check.row("another client gets in", seen["mps"], seen["mps"], expected=f"after {took_s} s")


CHECKS: Final[dict[str, Callable[[Check], None]]] = {
    "programs": programs,
    "shares": shares,
    "static": static,
    "ipc_direct": lambda check: ipc(check, "direct"),
    "ipc_mps": lambda check: ipc(check, "mps"),
    "reduce_direct": lambda check: reduce(check, "direct"),
    "reduce_mps": lambda check: reduce(check, "mps"),
    "reduce_green": lambda check: reduce(check, "green"),
    "green": green,
    "terminate": terminate,
}


@contextlib.contextmanager
def slices_of(layout: Layout) -> Iterator[tuple[tuple[GmiSpec, ...], LayoutSlices]]:
    """The slices of a layout, given back in the end."""
    with LayoutSlices(layout) as slices:
        yield layout.gmis, slices


def _merged(environment: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a client; what a backend emptied is not in it."""
    whole = {**os.environ, **environment}
    return {k: v for k, v in whole.items() if v or not k.startswith("CUDA_MPS_")}


@contextlib.contextmanager
def started(name: str, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A client of `clients.py` that goes on; killed in the end if it still runs."""
    process = subprocess.Popen(
        [sys.executable, str(CLIENTS), name], env=_merged(environment),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    with process:
        try:
            yield process
        finally:
            process.kill()


def client(name: str, environment: Mapping[str, str], *arguments: str) -> Any:
    """What a client of `clients.py` answers; RuntimeError with what it said if it fails."""
    ended = subprocess.run(
        [sys.executable, str(CLIENTS), name, *arguments], env=_merged(environment),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=_CLIENT_S, check=False,
    )  # fmt: skip
    lines = ended.stdout.strip().splitlines()
    if ended.returncode or not lines:
        raise RuntimeError(f"client {name} ended with {ended.returncode}: {' '.join(lines[-3:])}")
    return json.loads(lines[-1])


if __name__ == "__main__":
    _name, _path = sys.argv[1:]
    CHECKS[_name](Check(_name, Layout.from_json(Path(_path).read_text())))
