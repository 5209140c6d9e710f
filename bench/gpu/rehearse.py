#!/usr/bin/env python3
"""Rehearses the half hour on a GPU node without a network: each step of slot.sh, within its limits.

    bench/gpu/rehearse.py                       builds the pack and a bare node; takes about an hour
    bench/gpu/rehearse.py --short               a few cells of each step, cut off after --step-s
    bench/gpu/rehearse.py --parts .pack --node /path/to/python3.12

A folder stands for the node, with an interpreter that has torch and the other packages of such a
node, but not this project. A *call* is one command there: it gets the working tree without its git
folder, one part of the pack, an empty output folder, no network, and at most ten minutes. Steps run
on CPU cores (SLOT_DRY of slot.sh). After step `first` the node is lost: the next call gets a fresh
one, and continues from the files that were returned.

It prints one JSON line, also written to bench/results/gpu/rehearsal.json: each limit, and how much
of it was used. The exit code is 1 if a limit was exceeded or a step failed, and 2 if the rehearsal
cannot start.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import report

ROOT: Final = Path(__file__).resolve().parents[2]
# What a node with torch for CUDA 13 has installed; scripts/gpu-pack (HAS) leaves these out.
NODE: Final = (
    "numpy", "torch==2.11.0", "cupy-cuda13x", "nvidia-ml-py", "hypothesis", "imageio", "matplotlib",
    "psutil", "pytest", "pytest-timeout", "pyyaml", "rich", "tensorboard", "typer",
)  # fmt: skip
LIMITS: Final = {
    "call_s": 600.0,  # of one command
    "slot_s": 1800.0,  # of the calls up to `reduction`, which have to fit into one slot
    "tree_mib": 64.0,  # what travels with a command
    "files": 8.0,  # given back by a command
    "file_mib": 16.0,
    "out_mib": 64.0,
    "folders": 2.0,  # between the output folder and a file
}
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_MIB: Final = 1 << 20
_LOST_AFTER: Final = "first"
_SLOT_ENDS: Final = "reduction"
# Loopback is down in a new network namespace, and gloo and ZeroMQ listen there.
_LOOPBACK_UP: Final = """
import fcntl, os, socket, struct, sys
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))  # SIOCSIFFLAGS
os.execvp(sys.argv[1], sys.argv[1:])
"""


@dataclass
class Node:
    """The machine that is played: its interpreter, its temporary folder, and the working tree."""

    python: Path
    folder: Path
    used: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LIMITS, 0.0))
    calls: list[dict[str, Any]] = field(default_factory=list)
    cells: dict[str, Any] = field(default_factory=dict)  # of the suite, as last given back
    faults: list[str] = field(default_factory=list)

    @property
    def tree(self) -> Path:
        return self.folder / "tree"

    def call(self, words: Sequence[str], carry: Path | None, step_s: float | None) -> None:
        """Runs one command there: `slot.sh` with these words."""
        self._send(carry)
        out = self.folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        began_s = time.monotonic()
        code, output = self._run(["bash", "bench/gpu/slot.sh", *words], out, step_s)
        seconds = time.monotonic() - began_s
        self._record_use("call_s", seconds)
        self._check_files(out)
        self.calls.append({"words": list(words), "seconds": round(seconds, 1), "exit": code})
        if code not in (0, 3 if "unpack" in words else 0, 124 if step_s else 0):
            self.faults.append(f"slot.sh {' '.join(words)} ended with {code}:\n{output[-2000:]}")
        self._check_cells(out, words)
        shutil.copytree(out, self.folder / "given", dirs_exist_ok=True)

    def lose(self) -> None:
        """Replaces it by a fresh machine, whose working tree has only what was given back."""
        shutil.rmtree(self.folder / "tmp", ignore_errors=True)

    def _send(self, carry: Path | None) -> None:
        """Copies the tracked and the new files there, and replaces what is carried."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
            capture_output=True, check=True, timeout=60,
        ).stdout.decode()  # fmt: skip
        nbytes = 0
        for name in filter(None, listed.split("\0")):
            source, target = ROOT / name, self.tree / name
            if not source.is_symlink() and not source.is_file():
                continue  # deleted, and not yet committed
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
            nbytes += source.lstat().st_size
        # Returned files are put where slot.sh looks for earlier results.
        returned = self.folder / "given"
        if returned.exists():
            shutil.copytree(returned, self.tree / "bench" / "results" / "gpu", dirs_exist_ok=True)
        shutil.rmtree(self.tree / ".pack", ignore_errors=True)
        if carry is not None:
            shutil.copytree(carry, self.tree / ".pack" / carry.name)
            nbytes += sum(p.stat().st_size for p in carry.rglob("*") if p.is_file())
        self._record_use("tree_mib", nbytes / _MIB)

    def _run(self, command: Sequence[str], out: Path, step_s: float | None) -> tuple[int, str]:
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        environment = {
            "PATH": f"{self.python.parent}:/usr/bin:/bin", "HOME": str(self.folder),
            "TMPDIR": str(temporary), "PACK": str(temporary / "pack"), "OUT": str(out),
            "STATE": str(temporary / "state"),
            "PYTHON": str(self.python), "SLOT_DRY": "1", "GMI_DRL_COMMIT": report.commit(),
            "PIP_NO_INDEX": "1", "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        if step_s is not None:
            environment["SLOT_LIMIT_S"] = str(int(step_s))
        log = self.folder / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*_offline(), *command], cwd=self.tree, env=environment, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(LIMITS["call_s"] + 60)
            except subprocess.TimeoutExpired:
                code = 137
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return code, log.read_text(errors="replace")

    def _check_files(self, out: Path) -> None:
        files = [path for path in out.rglob("*") if not path.is_dir()]
        sizes = [path.lstat().st_size / _MIB for path in files]
        self._record_use("files", len(files))
        self._record_use("file_mib", max(sizes, default=0.0))
        self._record_use("out_mib", sum(sizes))
        for path in files:
            inside = path.relative_to(out)
            self._record_use("folders", len(inside.parts) - 1)
            if not all(_NAME.fullmatch(part) for part in inside.parts):
                self.faults.append(f"{inside}: a name may have letters, digits and . _ - only")
            if path.is_symlink() or not path.is_file():
                self.faults.append(f"{inside}: no plain file, so it does not come back")

    def _check_cells(self, out: Path, words: Sequence[str]) -> None:
        """Checks that no cell measured before is missing, or was measured again."""
        for path in out.glob("*/suite.json"):
            cells = {cell["key"]: cell for cell in json.loads(path.read_text())["cells"]}
            changed = [key for key, cell in self.cells.items() if cells.get(key) != cell]
            if changed:
                self.faults.append(f"slot.sh {' '.join(words)}: lost or run again: {changed}")
            self.cells = cells

    def _record_use(self, limit: str, amount: float) -> None:
        self.used[limit] = max(self.used[limit], amount)


def _offline() -> list[str]:
    """Returns the command that runs another one in a namespace without a network."""
    for words in (["unshare", "--net"], ["unshare", "--map-root-user", "--net"]):
        command = [*words, sys.executable, "-c", _LOOPBACK_UP]
        with contextlib.suppress(OSError):
            if not subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
                return command
    raise SystemExit(
        "no network namespace can be made here, so nothing shows that the steps need no network. "
        "Run as root, or allow user namespaces (kernel.unprivileged_userns_clone=1)."
    )


def calls(parts: Sequence[Path]) -> list[tuple[list[str], Path | None]]:
    """Returns the words of slot.sh in each call, and the part of the pack that it carries."""
    unpacking: list[tuple[list[str], Path | None]] = [
        (["unpack", str(number)], part) for number, part in enumerate(parts, 1)
    ]
    final_call = unpacking.pop()
    unpacking.append(([*final_call[0], "facts"], final_call[1]))
    work = (
        ["first"], ["headline"], ["serving", "reduction"], ["seeds", "trials"],
        ["num_env", "update"], ["rest"],
    )  # fmt: skip
    return unpacking + [(words, None) for words in work]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gmi-rehearsal-")))
        parts_in = options.parts or _built(folder / "pack")
        parts = sorted(parts_in.glob("part-*"), key=lambda path: int(path.name.split("-")[1]))
        if not parts:
            print(f"{parts_in} has no part-1. Build it: scripts/gpu-pack build", file=sys.stderr)
            return 2
        node = Node(options.node or _node(folder / "node"), folder / "machine")
        node.folder.mkdir()
        slot_s = 0.0
        in_slot = True
        for words, carry in calls(parts):
            report.say(f"call: slot.sh {' '.join(words)}")
            node.call(words, carry, options.step_s if options.short else None)
            seconds = node.calls[-1]["seconds"]
            report.say(f"  exit code {node.calls[-1]['exit']} after {seconds:.0f} s")
            if in_slot:
                slot_s += seconds
                in_slot = _SLOT_ENDS not in words
            if _LOST_AFTER in words:
                report.say("the machine is lost; the next one has what it gave back in its tree")
                node.lose()
                for number, part in enumerate(parts, 1):
                    node.call(["unpack", str(number)], part, None)
        node.used["slot_s"] = slot_s
        return _report(node, parts, "short" if options.short else "whole")


def _report(node: Node, parts: Sequence[Path], kind: str) -> int:
    exceeded = [name for name, limit in LIMITS.items() if node.used[name] > limit]
    node.faults += [
        f"{name}: {node.used[name]:.1f}; the limit is {LIMITS[name]:g}" for name in exceeded
    ]
    versions = json.loads(
        subprocess.run(
            [node.python, "-c", "import json, sys, torch, numpy; "
             "print(json.dumps([sys.version.split()[0], torch.__version__, numpy.__version__]))"],
            capture_output=True, check=True, timeout=120,
        ).stdout
    )  # fmt: skip
    report.emit(
        "gpu/rehearsal", kind, value=round(node.used["slot_s"], 1), unit="s",
        peer=LIMITS["slot_s"], ratio=LIMITS["slot_s"] / max(node.used["slot_s"], 1e-9),
        limits={
            name: {"limit": limit, "used": round(node.used[name], 2)}
            for name, limit in LIMITS.items()
        },
        calls=node.calls,
        part_mib=[
            round(sum(p.stat().st_size for p in part.rglob("*") if p.is_file()) / _MIB, 2)
            for part in parts
        ],
        node=dict(zip(("python", "torch", "numpy"), versions, strict=True)),
        cells=len(node.cells),
        network="none (a namespace of its own)",
        faults=node.faults,
        note="CPU cores in place of the GPU: shows that the half hour works, no figure of a GPU",
    )  # fmt: skip
    for fault in node.faults:
        report.say(fault)
    return int(bool(node.faults))


def _built(folder: Path) -> Path:
    """Builds a pack for the node in `folder`, and returns it."""
    command = [sys.executable, str(ROOT / "scripts" / "gpu-pack"), "build", "--out", str(folder)]
    if subprocess.run(command, check=False, stdout=sys.stderr).returncode:
        raise SystemExit("the pack cannot be built: see above")
    return folder


def _node(folder: Path) -> Path:
    """Makes a bare environment like the node's from the package index; returns its interpreter."""
    python = shutil.which("python3.12")
    if python is None:
        raise SystemExit("no python3.12 on PATH to play the node with. Name one with --node.")
    report.say(f"making a node of {python} and {', '.join(NODE)}")
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    installer = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *NODE]
    if subprocess.run(installer, check=False, stdout=sys.stderr).returncode:
        raise SystemExit("the node's packages cannot be installed: see above, or use --node")
    return folder / "bin" / "python"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = report.parser(__doc__)
    add = parser.add_argument
    add("--short", action="store_true", help="cut each step off after --step-s")
    add("--step-s", type=float, default=75.0, metavar="S")
    add("--parts", type=Path, metavar="FOLDER", help="of a pack; default: build one")
    add("--node", type=Path, metavar="PYTHON",
        help="that plays the node; default: an environment of python3.12")  # fmt: skip
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
