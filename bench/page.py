#!/usr/bin/env python3
"""Measures how soon the page shows a run, and what it costs one that trains (docs/page.md).

    bench/page.py [--rounds 7] [--seconds 10] [--only open|memory|cost]
    bench/page.py --dry            small folders, one second: shows that it works

Claims: folders of a run of 1,000 iterations and of 100 runs are shown within a second; a viewer
costs a run one iteration in 200 at most, which is 0.5 %.

- `open/run_of_1000_iterations`, `open/folder_of_100_runs`: milliseconds from the request of a page
  that has just started until everything that it shows has come. The ratio is a second over it.
- `memory/run_of_100000_iterations`: MiB of the page's process when it has shown one, over those
  with a hundredth of the iterations: what it keeps is bounded.
- `browser/...`: the same in Chromium, until the curves are drawn, or the last row of the list is
  shown; where playwright and Chromium are installed.
- `cost/processor`: the CPU time of the page's process while a viewer looks at a run of CartPole on
  two GMIs, as a percentage of all that the machine's cores have in that time. On cores that all
  train it is what the run lacks. The ratio is 0.5 % over it: above 1 the claim holds.
- `cost/idle`: the same without a viewer.
- `cost/iterations`: milliseconds of an iteration with a viewer and without one, which take turns.
  It is noisy where an iteration is; the ratio is without over with.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import psutil
from report import emit_median, emit_pairs, parser

from gmi_drl.page.safe_files import id_of
from gmi_drl.placement import Topology, tcg_ex

EXAMPLE: Final = Path(__file__).resolve().parents[1] / "examples" / "cartpole.yaml"
CLAIM_PERCENT: Final = 0.5
CLAIM_MS: Final = 1000.0
TIMEOUT_S: Final = 120.0
WHOLE_RUN: Final = ("runs", "trials", "layout", "run", "curves", "log")


class PageBenchError(RuntimeError):
    """The page, or the run that it shows, has failed."""


def write_run(folder: Path, iterations: int) -> None:
    """Writes the folder of a finished run of two GMIs."""
    (folder / "logs").mkdir(parents=True)
    (folder / "config.yaml").write_text("run: {total_steps: 1000000}\nenv: {id: Ant-v5}\n")
    (folder / "layout.json").write_text(tcg_ex(Topology.from_cores([0, 1]), 2, 64).to_json())
    known = {"state": "finished", "env": "Ant-v5", "seed": 1, "started": 1.7e9}
    (folder / "run.json").write_text(json.dumps(known))
    for gmi in range(2):
        (folder / "logs" / f"gmi{gmi}.log").write_text("a line of a log\n" * 2000)
    with open(folder / "metrics.jsonl", "w", encoding="utf-8") as file:
        for number in range(1, iterations + 1):
            file.write(json.dumps(metrics(number)) + "\n")


def metrics(number: int) -> dict[str, Any]:
    """Returns a line of metrics as PPO on two GMIs writes it."""
    keys = ("return_mean", "length_mean", "kl", "policy_loss", "value_loss", "entropy",
            "bounds_loss", "clip_fraction", "learning_rate", "noise_scale")  # fmt: skip
    phases = {phase: 0.0123456 for phase in ("simulate", "infer", "train", "reduce")}
    return {
        "iteration": number, "steps": 2048 * number, "time_s": 0.4567 * number,
        "steps_per_s": 4484.234234, "episodes": 7, "mem_peak_bytes": 2**28,
        **{key: number / (1 + len(key)) for key in keys},
        **{f"{phase}_s": seconds for phase, seconds in phases.items()},
        "gmi_seconds": [phases, phases], "gmi_mem_peak_bytes": [2**28, 2**28],
    }  # fmt: skip


@contextlib.contextmanager
def page(folder: Path) -> Iterator[tuple[str, str, psutil.Process]]:
    """Starts the page; yields its address, its token and its process."""
    command = [sys.executable, "-m", "gmi_drl", "page", str(folder), "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        base, separator, token = process.stdout.readline().strip().partition("/login?token=")
        if not separator:
            raise PageBenchError(f"{' '.join(command)} has printed no link.")
        yield base.removeprefix("page: "), token, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def events(base: str, token: str, query: str) -> Iterator[str]:
    """Yields the names of the events of a page's stream; their content is parsed."""
    headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{base}/events{query}", headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as stream:
        name = ""
        for line in stream:
            if line.startswith(b"event: "):
                name = line[7:].decode().strip()
            elif line.startswith(b"data: "):
                json.loads(line[6:])
                yield name


def look_at(base: str, token: str, query: str, wanted: Sequence[str]) -> None:
    """Returns when all events in `wanted` have arrived."""
    missing = set(wanted)
    with contextlib.closing(events(base, token, query)) as stream:
        while missing:
            missing.discard(next(stream))


def opening_ms(folder: Path, query: str, wanted: Sequence[str]) -> float:
    """Times the first look at a page that has just started."""
    with page(folder) as (base, token, _):
        began = time.perf_counter()
        look_at(base, token, query, wanted)
        return 1000 * (time.perf_counter() - began)


def showing_mib(folder: Path) -> float:
    """Returns the memory of a page that has shown the run in `folder`."""
    (run,) = folder.glob("*/*")
    with page(folder) as (base, token, process):
        look_at(base, token, f"?run={id_of(run)}&gmi=0", WHOLE_RUN)
        return float(process.memory_info().rss / 2**20)


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Starts the browser; yields None where there is none."""
    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if executable is None or importlib.util.find_spec("playwright") is None:
        yield None
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()


def browsing_ms(browser: Any, folder: Path, drawn: str) -> float:
    """Times a browser from the login link until the last element, `drawn`, exists."""
    with page(folder) as (base, token, _), contextlib.closing(browser.new_page()) as tab:
        began = time.perf_counter()
        tab.goto(f"{base}/login?token={token}")
        tab.wait_for_selector(drawn, state="attached")
        return 1000 * (time.perf_counter() - began)


@contextlib.contextmanager
def training(folder: Path) -> Iterator[Path]:
    """Trains CartPole on two GMIs for as long as the block runs; yields the run's folder."""
    command = [sys.executable, "-m", "gmi_drl", "launch", str(EXAMPLE), "--quiet"]
    for setting in ("run.total_steps=1_000_000_000", "layout.gmi_per_gpu=2", "run.eval_episodes=1"):
        command += ["--set", setting]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)
    try:
        deadline_s = time.monotonic() + TIMEOUT_S
        while not any(path.stat().st_size for path in folder.glob("runs/*/*/metrics.jsonl")):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise PageBenchError(f"{' '.join(command)} does not train.")
            time.sleep(0.1)
        yield next(folder.glob("runs/*/*/metrics.jsonl")).parent
    finally:
        process.terminate()
        process.wait(60)


@contextlib.contextmanager
def viewer(base: str, token: str, query: str) -> Iterator[list[str]]:
    """Views the page while the block runs; yields the names of the events so far."""
    received: list[str] = []
    ends = threading.Event()

    def look() -> None:
        with contextlib.suppress(OSError), contextlib.closing(events(base, token, query)) as stream:
            for name in stream:
                received.append(name)
                if ends.is_set():
                    return

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield received
    finally:
        ends.set()
        thread.join(TIMEOUT_S)


def iterations(folder: Path) -> int:
    """Counts the iterations that a run has done."""
    return (folder / "metrics.jsonl").read_bytes().count(b"\n")


def costs(rounds: int, seconds: float) -> tuple[list[float], list[float], list[list[float]]]:
    """Returns CPU percentages with and without a viewer, and both times of an iteration."""
    cores = len(os.sched_getaffinity(0))
    watched: list[float] = []
    idle: list[float] = []
    times_ms: list[list[float]] = [[], []]
    with (
        tempfile.TemporaryDirectory(prefix="gmi-page-") as name,
        training(Path(name)) as run,
        page(Path(name)) as (base, token, process),
    ):
        query = f"?run={id_of(run.resolve())}&gmi=0"

        def spell(shares: list[float], times: list[float]) -> None:
            iterations_before, cpu_before = iterations(run), process.cpu_times()
            began = time.perf_counter()
            time.sleep(seconds)
            wall_s, cpu_after = time.perf_counter() - began, process.cpu_times()
            spent_s = cpu_after.user + cpu_after.system - cpu_before.user - cpu_before.system
            shares.append(100 * spent_s / wall_s / cores)
            times.append(1000 * wall_s / max(1, iterations(run) - iterations_before))

        for _ in range(rounds):
            with viewer(base, token, query) as received:
                _until(lambda received=received: "curves" in received)
                count = len(received)
                spell(watched, times_ms[0])
                if received[count:].count("curves") < seconds / 3:
                    raise PageBenchError("the viewer has not seen the run move")
            spell(idle, times_ms[1])
    return watched, idle, times_ms


def _until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not is_so():
        if time.monotonic() > deadline_s:
            raise PageBenchError("the page has shown nothing")
        time.sleep(0.05)


def main(arguments: Sequence[str] | None = None) -> None:
    options_of = parser(__doc__, rounds=7)
    options_of.add_argument("--seconds", type=float, default=10.0, help="of each look at a run")
    options_of.add_argument("--only", choices=("open", "memory", "cost"))
    options_of.add_argument("--dry", action="store_true", help="small and short; keeps nothing")
    options = options_of.parse_args(arguments)
    rounds, seconds = (1, 3.0) if options.dry else (options.rounds, options.seconds)
    lines, runs = (20, 3) if options.dry else (1000, 100)
    if options.only in (None, "open"):
        measure_opening(rounds, lines, runs, options.dry)
    if options.only in (None, "memory"):
        measure_memory(rounds, lines, options.dry)
    if options.only in (None, "cost"):
        measure_costs(rounds, seconds, options.dry)


def measure_opening(rounds: int, lines: int, runs: int, dry: bool) -> None:
    """Measures how long a run of `lines` iterations, and a folder of `runs` runs, take to open."""
    with tempfile.TemporaryDirectory(prefix="gmi-page-") as name, chromium() as browser:
        folder = Path(name).resolve()
        write_run(folder / "one" / "ant" / "t0", lines)
        for number in range(runs):
            write_run(folder / "many" / "ant" / f"t{number:03d}", lines // 10)
        query = f"?run={id_of(folder / 'one' / 'ant' / 't0')}&gmi=0"
        single, multiple = folder / "one", folder / "many"
        last_row = f"#runs-table tbody tr:nth-child({runs})"
        cases: dict[str, Callable[[], float]] = {
            "open/run_of_1000_iterations": lambda: opening_ms(single, query, WHOLE_RUN),
            "open/folder_of_100_runs": lambda: opening_ms(multiple, "", ("runs",)),
        }
        if browser is not None:
            cases |= {
                "browser/run_of_1000_iterations": lambda: browsing_ms(
                    browser, single, "#charts .chart:nth-child(13) canvas"
                ),
                "browser/folder_of_100_runs": lambda: browsing_ms(browser, multiple, last_row),
            }
        for case, measure in cases.items():
            durations_ms = [measure() for _ in range(rounds)]
            emit_median(
                "page", case, "ms", durations_ms, peer=CLAIM_MS, smaller_is_better=True, dry=dry
            )


def measure_memory(rounds: int, lines: int, dry: bool) -> None:
    """Measures the memory of a page for a run of `lines` lines, and for a hundred times more."""
    with tempfile.TemporaryDirectory(prefix="gmi-page-") as name:
        short, long = Path(name).resolve() / "short", Path(name).resolve() / "long"
        write_run(short / "ant" / "t0", lines)
        write_run(long / "ant" / "t0", 100 * lines)
        samples_mib = [(showing_mib(long), showing_mib(short)) for _ in range(rounds)]
    emit_pairs(
        "page", f"memory/run_of_{100 * lines}_iterations", "MiB",
        *zip(*samples_mib, strict=True), smaller_is_better=True, dry=dry,
    )  # fmt: skip


def measure_costs(rounds: int, seconds: float, dry: bool) -> None:
    """Measures what a viewer costs a run."""
    watched, idle, times_ms = costs(rounds, seconds)
    for case, shares in (("cost/processor", watched), ("cost/idle", idle)):
        emit_median(
            "page", case, "%", shares, peer=CLAIM_PERCENT, smaller_is_better=True, digits=4,
            seconds=seconds, dry=dry,
        )  # fmt: skip
    emit_pairs(
        "page", "cost/iterations", "ms", *times_ms, smaller_is_better=True, digits=2,
        seconds=seconds, dry=dry,
    )  # fmt: skip


if __name__ == "__main__":
    main()
