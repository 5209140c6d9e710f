"""Tries a backend on this machine: its slices are made, entered by processes, and given back.

It does what a run does before its roles are built, in other processes, and takes seconds.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import signal
import subprocess
import sys
import time
from datetime import timedelta
from typing import Final

from gmi_drl.gmi.errors import GmiError
from gmi_drl.gmi.slices import LayoutSlices
from gmi_drl.placement import counted
from gmi_drl.placement.config.config import HardwareConfig
from gmi_drl.placement.layout import GmiSpec, Layout, LayoutError
from gmi_drl.placement.slicing import sliced
from gmi_drl.placement.topology import Topology

from .backend import backend_of
from .usable import why_not_on

Process = subprocess.Popen[bytes]

DEADLINE: Final = timedelta(seconds=60)  # CUDA takes seconds to start on a machine of many GPUs


def trial_layout(backend: str, topology: Topology) -> Layout:
    """Lays GMIs of this backend on every GPU that allows it; LayoutError if none does."""
    gmis: list[GmiSpec] = []
    for device in topology.devices:
        count = 0 if why_not_on(device, backend) else backend_of(backend).trial_gmis
        for _ in range(count):
            gmis.append(
                GmiSpec(
                    len(gmis), device.index, (), backend, (), num_env=0, device_uuid=device.uuid
                )
            )
    return sliced(Layout("trial", topology, tuple(gmis)), HardwareConfig())


def try_backend(backend: str, topology: Topology, deadline: timedelta = DEADLINE) -> str:
    """Tries a backend, and says what was tried; GmiError says what does not work.

    Nothing is left behind. `topology` is of GPUs, and `backend` is not among its `unusable`. What
    others have is let be; where there is nothing else, nothing is tried, and it is no fault.
    """
    begin_s = time.monotonic()
    topology, busy = backend_of(backend).idle_part(topology)
    if backend_of(backend).uses_mig and not any(device.mig for device in topology.devices):
        return "all instances are in use, not tried"
    try:
        layout = trial_layout(backend, topology)
    except LayoutError as error:
        raise GmiError(str(error)) from None
    with LayoutSlices(layout) as slices:
        _enter(layout, slices, deadline)
    gpus = len({gmi.gpu_id for gmi in layout.gmis})
    each = counted(backend_of(backend).trial_gmis, "GMI")
    on = "" if gpus == 1 else f" on each of {gpus} GPUs"
    tried = f"{each}{on} started and verified in {time.monotonic() - begin_s:.1f} s"
    return "; ".join((tried, *(f"all of GPU {index} are in use, not tried" for index in busy)))


def _enter(layout: Layout, slices: LayoutSlices, deadline: timedelta) -> None:
    """Starts a process for each GMI (each device, if they are threads), all at once."""
    groups: dict[int, list[GmiSpec]] = {}
    for spec in layout.gmis:
        threads = backend_of(spec.backend).gmis_are_threads
        groups.setdefault(spec.gpu_id if threads else spec.gmi_id, []).append(spec)
    end_s = time.monotonic() + deadline.total_seconds()
    children: list[tuple[GmiSpec, Process]] = []
    try:
        for specs in groups.values():
            environment = dict(os.environ)
            for spec in specs:
                environment.update(slices.environment(spec))
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", f"{__package__}.trial_child"],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            children.append((specs[0], child))
            devices = layout.topology.devices
            with contextlib.suppress(BrokenPipeError):  # it has ended; its last words say why
                assert child.stdin is not None
                gmis = [(spec, devices[spec.gpu_id]) for spec in specs]
                child.stdin.write(pickle.dumps((_modules(specs[0]), gmis)))
                child.stdin.flush()
        for spec, child in children:
            _wait_entered(spec, child, end_s, deadline)
        for spec, child in children:
            _wait_left(spec, child, end_s, deadline)
    finally:
        living = [(spec, child) for spec, child in children if child.poll() is None]
        slices.fence_all((spec, child.pid) for spec, child in living)
        for _, child in living:
            child.kill()
        for _, child in children:
            child.wait()
            for pipe in (child.stdin, child.stdout, child.stderr):
                with contextlib.suppress(BrokenPipeError):
                    if pipe is not None:
                        pipe.close()


def _modules(spec: GmiSpec) -> tuple[str, ...]:
    """Names what is imported before the slice is taken: threads have torch's streams."""
    return ("torch",) if backend_of(spec.backend).gmis_are_threads else ()


def _wait_entered(spec: GmiSpec, child: Process, end_s: float, deadline: timedelta) -> None:
    """Returns when it is in its slice; GmiError if it does not come there."""
    assert child.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        if not selector.select(max(0.0, end_s - time.monotonic())):
            raise _late(spec, "entered", deadline)
    if not child.stdout.readline():  # it has ended, or is about to
        _wait_left(spec, child, end_s, deadline)
        raise GmiError(_last_words("", 0))


def _wait_left(spec: GmiSpec, child: Process, end_s: float, deadline: timedelta) -> None:
    """Lets it go; GmiError if it did not end well."""
    try:
        _, said = child.communicate(timeout=max(0.0, end_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise _late(spec, "left", deadline) from None
    if child.returncode:
        raise GmiError(_last_words(said.decode(errors="replace"), child.returncode))


def _late(spec: GmiSpec, what: str, deadline: timedelta) -> GmiError:
    return GmiError(
        f"GMI {spec.gmi_id} on GPU {spec.gpu_id} has not {what} its slice within "
        f"{deadline.total_seconds():g} s. Look at nvidia-smi: a GPU that hangs has to be reset."
    )


def _last_words(said: str, code: int) -> str:
    """Returns the error a process ended with, without traceback and class."""
    lines = [line for line in said.strip().splitlines() if line.strip()]
    if not lines:
        ended = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"a process ended with {ended} on its way into its slice"
    frame = max((i for i, line in enumerate(lines) if line.startswith("  File ")), default=-1)
    begin = next((i for i in range(frame + 1, len(lines)) if not lines[i][0].isspace()), 0)
    text = "\n".join(lines[begin:])
    name, separator, rest = text.partition(": ")
    return rest if separator and name.startswith("gmi_drl.") else text
