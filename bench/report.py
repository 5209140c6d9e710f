"""Prints a JSON object a line for every measured claim, and keeps it in bench/results/."""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results"  # one file a benchmark
GPU_RESULTS = RESULTS / "gpu"
DRY_RESULTS = HERE.parent / "runs" / "bench" / "gpu"  # ignored by git: they say nothing of a GPU
RESULTS_HELP = "for a folder of this machine; bench/results/gpu, with --dry runs/bench/gpu"

_HEAD = ("bench", "machine", "commit")  # the fields that a results file has once


class Unwritable(OSError):
    """Results cannot be written to their folder."""


def utc_now() -> str:
    """Returns the date and time for results."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def slug(name: str) -> str:
    """Returns the name of a machine, say, as that of a file or a folder."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def say(text: str) -> None:
    """Prints a line for people on standard error."""
    print(text, file=sys.stderr, flush=True)


def parser(text: str | None, **options: Any) -> argparse.ArgumentParser:
    """Returns a parser whose help is the docstring of a benchmark.

    Each of `options` becomes an option with this default, of its type.
    """
    made = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in options.items():
        made.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    return made


def numbers(text: str) -> list[int]:
    """Parses the whole numbers of an option, with commas between them."""
    return [int(part) for part in text.split(",") if part]


def fractions(text: str) -> list[float]:
    """Parses the numbers of an option, with commas between them."""
    return [float(part) for part in text.split(",") if part]


def end(process: subprocess.Popen[Any], within_s: float = 20.0) -> None:
    """Asks a process to end, and kills it if it does not."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def keep(path: Path, text: str) -> None:
    """Writes a results file atomically, or leaves the old one; Unwritable says what to do."""
    from gmi_drl.runtime.cache_files import replace_file

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text)
    except OSError as error:
        raise Unwritable(
            f"{path} cannot be written: {error.strerror}. Make room there, or name another folder "
            "with --results."
        ) from error


def metrics_of(run: Path) -> list[dict[str, Any]]:
    """Returns the lines of metrics in the folder of a run that has ended."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def read_results(path: Path) -> dict[str, Any]:
    """Returns the results file of a benchmark; {} if there is none yet."""
    return json.loads(path.read_text()) if path.exists() else {}


def write_results(path: Path, document: Mapping[str, Any]) -> None:
    """Writes a results file atomically, with a line for each item of a list."""
    items = []
    for key, value in document.items():
        text = json.dumps(value)
        if isinstance(value, list):
            text = "[\n" + ",\n".join("  " + json.dumps(item) for item in value) + "\n ]"
        items.append(f" {json.dumps(key)}: {text}")
    keep(path, "{\n" + ",\n".join(items) + "\n}\n")


def rows_of(path: Path) -> dict[str, dict[str, Any]]:
    """Returns the rows of a results file by name, each with its machine and commit."""
    document = read_results(path)
    head = {key: document[key] for key in _HEAD if key in document}
    return {row["name"]: {**head, **row} for row in document.get("rows", [])}


def _replace_row(path: Path, row: Mapping[str, Any]) -> None:
    """Puts a row in the place of the one with its name.

    The file has machine and commit of the newest row once; rows of others have their own.
    """
    rows = rows_of(path) | {row["name"]: dict(row)}
    head = {key: row[key] for key in _HEAD}
    shared = head.items()
    short = [
        {key: value for key, value in rows[name].items() if (key, value) not in shared}
        for name in sorted(rows)
    ]
    write_results(path, {**read_results(path), **head, "rows": short})


def emit(
    bench: str,
    name: str,
    *,
    value: float | None,
    unit: str,
    peer: float | None = None,
    ratio: float | None = None,
    repeats: int = 1,
    spread: Sequence[float] | None = None,
    dry: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """Prints a row on standard output, and puts it into bench/results/<bench>.json.

    `value` and `peer` are medians of `repeats`, `spread` the lowest and highest of `value`;
    `ratio` is ours over the peer's, larger is better (it is inverted for times and memory).
    A row that is `dry` is not kept. Standard error gets a line for people.
    """
    row = {
        "bench": bench,
        "name": name,
        "value": value,
        "unit": unit,
        "peer": peer,
        "ratio": None if ratio is None else round(ratio, 4),
        "repeats": repeats,
        "spread": None if spread is None else list(spread),
        **more,
        "machine": more.get("machine", machine()),  # that of an earlier measurement, if given
        "commit": commit(),
        "date": utc_now(),
    }
    print(json.dumps(row | {"dry": True} if dry else row), flush=True)
    if not dry:
        _replace_row(RESULTS / f"{bench}.json", row)
    ours, others = (f"{x:,.5g}" if isinstance(x, (int, float)) else "-" for x in (value, peer))
    better = "" if ratio is None else f"{ratio:10.3f}"
    say(f"{name:<40}{ours:>12} {unit:<12.12}{others:>12}{better}")
    return row


def emit_median(
    bench: str,
    name: str,
    unit: str,
    samples: Sequence[float],
    *,
    peer: float | None = None,
    smaller_is_better: bool = False,
    digits: int | None = 1,
    **more: Any,
) -> dict[str, Any]:
    """Emits a row of a median, beside one figure of a peer or a limit if there is one.

    `more` may override what is computed.
    """
    value, ratio = statistics.median(samples), None
    if peer is not None and value:
        ratio = peer / value if smaller_is_better else value / peer
    fields = {
        "value": round(value, digits), "unit": unit, "peer": peer, "ratio": ratio,
        "repeats": len(samples), "spread": spread_of(samples, digits),
    }  # fmt: skip
    return emit(bench, name, **(fields | more))


def spread_of(samples: Sequence[float], digits: int | None = 1) -> list[float]:
    """Returns the lowest and the highest of some measurements."""
    return [round(min(samples), digits), round(max(samples), digits)]


def emit_pairs(
    bench: str,
    name: str,
    unit: str,
    ours: Sequence[float],
    peers: Sequence[float],
    *,
    smaller_is_better: bool = False,
    digits: int | None = 1,
    **more: Any,
) -> dict[str, Any]:
    """Emits a row of rounds in which ours and the peer took turns.

    It has the medians of both, and that of the ratio within a round. `more` may override them.
    """
    fields = {
        "peer": round(statistics.median(peers), digits), "peer_spread": spread_of(peers, digits),
        "ratio": statistics.median(ratios_of(ours, peers, smaller_is_better)),
    }  # fmt: skip
    return emit_median(bench, name, unit, ours, digits=digits, **(fields | more))


def ratios_of(
    ours: Sequence[float], peers: Sequence[float], smaller_is_better: bool = False
) -> list[float]:
    """Returns how much better ours was in each round."""
    return [b / a if smaller_is_better else a / b for a, b in zip(ours, peers, strict=True)]


def save_picture(figure: Any, folder: Path, name: str) -> None:
    """Writes a figure of matplotlib's as png and svg; equal figures give equal files."""
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        for kind, options in (("png", {"dpi": 130}), ("svg", {"metadata": {"Date": None}})):
            path = folder / f"{name}.{kind}"
            # A rename, so that an incomplete file never replaces the old picture.
            part = path.with_suffix(f".part.{kind}")
            figure.savefig(part, bbox_inches="tight", format=kind, **options)
            part.replace(path)
            say(str(path))


@functools.cache
def machine(memory: bool = True) -> str:
    """Describes the machine: processor, usable cores, memory and GPUs, but no host name.

    Without `memory` the text does not change when a virtual machine is given more memory.
    """
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = [line.split(":", 1)[1].strip() for line in info.splitlines() if "model name" in line]
    processor = models[0] if models else platform.machine()
    mem_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    gpus = [
        line.split(":", 1)[1].strip()
        for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
        for line in path.read_text().splitlines()
        if line.startswith("Model:")
    ]
    cores = len(os.sched_getaffinity(0))
    parts = [processor, f"{cores} cores", *([f"{mem_gib:.0f} GiB"] if memory else []), *gpus]
    return ", ".join([*parts, f"Python {platform.python_version()}"])


@functools.cache
def commit() -> str:
    """Returns the commit that is measured, with a + when files differ from it.

    The variable GMI_DRL_COMMIT gives it where the tree is a copy: without git, or as files that
    differ from an older commit.
    """
    if named := os.environ.get("GMI_DRL_COMMIT"):
        return named

    def git(*arguments: str) -> str:
        try:
            completed = subprocess.run(
                ["git", *arguments], cwd=HERE, capture_output=True, text=True, check=False,
                timeout=30,
            )  # fmt: skip
        except FileNotFoundError:
            return ""
        return completed.stdout.strip()

    head = git("rev-parse", "--short=12", "HEAD")
    if not head:
        return "unknown"
    return head + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
