"""Runs the process of a trial, which takes its slices and holds them until it is let go.

Reads (modules to import, [(spec, device), ...]) from standard input, says "entered" when all are
in, and ends when standard input is closed. Several GMIs have a thread each.
"""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TextIO

from .backend import take_slice

if TYPE_CHECKING:
    from gmi_drl.placement.layout import GmiSpec
    from gmi_drl.placement.topology import Device

Gmis = list[tuple["GmiSpec", "Device"]]


def main() -> None:
    """Runs the process. What goes wrong ends it with a traceback on standard error."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is not our word
    modules, gmis = pickle.load(sys.stdin.buffer)
    for name in modules:
        importlib.import_module(name)
    if len(gmis) == 1:
        take_slice(*gmis[0])
        _until_let_go(output)
    else:
        _in_threads(gmis, output)


def _in_threads(gmis: Gmis, output: TextIO) -> None:
    left = threading.Event()

    def hold(spec: GmiSpec, device: Device, inside: threading.Barrier) -> None:
        try:
            take_slice(spec, device)
        except BaseException:
            inside.abort()
            raise
        inside.wait()
        left.wait()

    with ThreadPoolExecutor(len(gmis)) as pool:
        inside = threading.Barrier(len(gmis) + 1)
        holds = [pool.submit(hold, spec, device, inside) for spec, device in gmis]
        try:
            inside.wait()
            _until_let_go(output)
        except threading.BrokenBarrierError:
            pass
        finally:
            left.set()
    errors = [error for held in holds if (error := held.exception()) is not None]
    for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
        raise error


def _until_let_go(output: TextIO) -> None:
    print("entered", file=output, flush=True)
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
