"""Runs the checks' clients, processes that use the GPU, and prints their answers as rows."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from gmi_drl.gmi import LayoutSlices
from gmi_drl.placement import GmiSpec, Layout
from gmi_drl.placement.topology import share

from .assumptions import ASSUMPTIONS

CLIENTS: Final = Path(__file__).parent / "clients.py"
_CLIENT_S: Final = 25
_LINES: Final = 6  # of what went wrong


class NotHere(Exception):
    """A package that a client needs is not installed."""


class Check:
    """One check: it prints rows, and knows the GPU that it is about."""

    def __init__(self, name: str, layout: Layout) -> None:
        self.name, self.topology = name, layout.topology
        self.device = layout.topology.devices[0]

    def row(self, what: str, value: Any, ok: bool | None, **more: Any) -> None:
        """Prints a row; `ok` is None where there is nothing to be right or wrong.

        A row that can fail has a workaround: that of the check, or a `workaround` of its own.
        """
        if ok is not None:
            more = {"workaround": ASSUMPTIONS[self.name].workaround} | more
        fields = {"check": self.name, "what": what, "value": value, "ok": ok, **more}
        print(json.dumps(fields), flush=True)

    @contextlib.contextmanager
    def tried(self, what: str) -> Iterator[None]:
        """Turns an error in the block into a row, so that the check continues."""
        try:
            yield
        except NotHere as missing:
            workaround = ASSUMPTIONS[self.name].workaround
            self.row(what, f"not here: {missing}", None, workaround=workaround)
        except Exception as error:
            self.row(what, None, False, why=in_words(error))

    def layout(self, backend: str, *percents: int | None) -> Layout:
        """Returns a layout of GMIs on the first GPU, one for each share of its SMs."""
        uuid, cores = self.device.uuid, self.device.cores
        gmis = tuple(
            GmiSpec(
                i, 0, ("simulator", "agent", "trainer"), backend,
                share(cores, len(percents), i) or cores[:1], 1, percent, device_uuid=uuid,
            )
            for i, percent in enumerate(percents)
        )  # fmt: skip
        return Layout("tcg_ex", dataclasses.replace(self.topology, devices=(self.device,)), gmis)


def in_words(error: Exception) -> str:
    """Returns the error's type and the end of its text, without the frames of a traceback."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith(" ")]
    return f"{type(error).__name__}: " + "\n".join(lines[-_LINES:])


@contextlib.contextmanager
def slices_of(layout: Layout) -> Iterator[tuple[tuple[GmiSpec, ...], LayoutSlices]]:
    """Takes the slices of a layout, and releases them at the end."""
    with LayoutSlices(layout) as slices:
        yield layout.gmis, slices


def merged(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the whole environment of a client, without variables that a backend has emptied."""
    variables = {**os.environ, **environment}
    return {k: v for k, v in variables.items() if v or not k.startswith("CUDA_MPS_")}


@contextlib.contextmanager
def started(name: str, environment: Mapping[str, str], *arguments: str) -> Iterator[Running]:
    """Starts a client of `clients.py` in the background, and kills it if it runs at the end."""
    process = subprocess.Popen(
        [sys.executable, str(CLIENTS), name, *arguments], env=merged(environment),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    with process:
        try:
            yield Running(name, process)
        finally:
            process.kill()


class Running:
    """A client that runs until it is asked to end."""

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self.name, self.process, self.pid = name, process, process.pid

    def answer(self) -> Any:
        """Returns its next answer; RuntimeError with its output if it ends without one."""
        assert self.process.stdout is not None
        lines: list[str] = []
        for line in self.process.stdout:
            lines.append(line)
            if line.startswith("{"):
                break
        return _answer(self.name, lines, self.process.poll())

    def end(self, timeout_s: float = _CLIENT_S) -> str:
        """Tells it to end and waits until it has; returns what it prints meanwhile.

        subprocess.TimeoutExpired if it still runs.
        """
        return self.process.communicate("over\n", timeout=timeout_s)[0]


def client(name: str, environment: Mapping[str, str], *arguments: str) -> Any:
    """Runs a client of `clients.py` and returns its answer; RuntimeError if it fails."""
    completed = subprocess.run(
        [sys.executable, str(CLIENTS), name, *arguments], env=merged(environment),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=_CLIENT_S, check=False,
    )  # fmt: skip
    return _answer(name, completed.stdout.splitlines(), completed.returncode)


def _answer(name: str, lines: list[str], code: int | None) -> Any:
    """Returns the answer of the last JSON line; NotHere or RuntimeError if it has an error."""
    for line in reversed(lines):
        with contextlib.suppress(json.JSONDecodeError):
            answer = json.loads(line)
            if not isinstance(answer, dict):
                continue
            if "not_here" in answer:
                raise NotHere(answer["not_here"])
            if "error" in answer:
                raise RuntimeError(f"client {name}: {answer['error']}")
            return answer["answer"]
    text = "\n".join(line.rstrip() for line in lines[-_LINES:])
    raise RuntimeError(f"client {name} ended with {code} and no answer:\n{text}")
