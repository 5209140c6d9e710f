#!/usr/bin/env python3
"""Strikes small runs of every mode at random moments, and checks what docs/reliability.md says.

    bench/chaos.py --kills 1000 --seed 1          prints one JSON line, and keeps it as a result
    bench/chaos.py --kills 1000 --raw cases.jsonl goes on with the cases in that file
    bench/chaos.py --kills 100 --modes appo,es    only cases of these modes, as a result of its own
    bench/chaos.py --only 100042 --modes appo     that case again, telling what it does
    bench/chaos.py --kills 50 --modes hosts --ray    on a Ray cluster: kills alone

A case is a run of one mode, drawn with its strikes from the case's seed. A strike is one blow or
two to processes of the run (its launcher, its fork server, launchers of its hosts, its GMIs and
workers), at a random moment: SIGKILL, SIGSTOP for less or for more than the deadline of a hang,
SIGTERM and SIGINT to the launcher, a disk that is full for a while, a clock that jumps by a minute
or a day (`time.time` of the run's processes alone), or a device that is lost: cores that the
launcher may not use any more. In mode `resize` it comes while the run becomes another layout.
With --ray, runs of mode `hosts` are on a real Ray cluster of two hosts and a head, all of them this
machine, and each blow is a kill, also of an agent or of a raylet, which is started again. After
each strike the run continues or ends as the page says; a run that ended is resumed, and the last
resume must finish. A third of the cases have a slow disk.

Full disks, and shared memory of a case's own, need the right to mount: without it full
disks are skipped, and counted.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from chaos_checks import check_finished, ended, judge
from chaos_modes import MODES
from chaos_run import LIBC, Fault, Run
from chaos_strikes import Blow, Dealt, deal, drawn
from report import emit, parser

_NEW_NAMESPACE, _PRIVATE, _SUBREAPER = 0x20000, 0x44000, 36  # of unshare, mount and prctl
_TO_CHANGE_S: Final = 1.5  # the longest time from asking for a resize to a blow


@dataclass
class Outcome:
    """Tells what came of one case."""

    seed: int
    mode: str
    blows: list[list[str]] = field(default_factory=list)  # victim, blow, what came of the strike
    skipped: int = 0  # blows without a victim, and those that are not allowed here
    told: list[str] = field(default_factory=list)
    failure: str = ""
    seconds: float = 0.0


class Case:
    """One run and its strikes, all drawn from `seed`; `folder` is empty and for it alone."""

    def __init__(
        self, mode: str, seed: int, folder: Path, on_ray: bool, tell: Callable[[str], None]
    ) -> None:
        self.outcome, self._on_ray = Outcome(seed, mode), on_ray
        self._tell_line, self._began_s = tell, time.monotonic()
        self._random = random.Random(seed)
        self._blows: list[Blow] = []  # that were dealt
        is_slow = self._random.random() < 1 / 3
        if is_slow:
            self._tell("the disk is slow")
        self._run = Run(mode, seed, folder, slow=is_slow, on_ray=on_ray, tell=self._tell)

    def strike(self, strikes: int) -> Outcome:
        """Strikes the run so many times, and lets it come to its end."""
        run = self._run
        try:
            for _ in range(strikes):
                if run.launcher is None:
                    run.launch(self._random.randrange(3_000, 40_000))
                self._strike_once()
            for _ in range(3):  # the run that is under way, and another if it was a short one
                if run.launcher is None:
                    run.launch(2_000)
                run.until(lambda: not run.runs(), "the run's end")
                if ended(run, self._blows) == 0:
                    break
            check_finished(run, self._blows)
        except Fault as fault:
            self.outcome.failure = str(fault)
            self._tell(f"FAILED: {fault}")
            self._tell("".join(f"\n    | {line}" for line in run.output()[-3000:].splitlines()))
        finally:
            run.close()
            self.outcome.seconds = round(time.monotonic() - self._began_s, 1)
        return self.outcome

    def _strike_once(self) -> None:
        """Waits for a moment, strikes, and checks the outcome."""
        run = self._run
        blows = drawn(self._random, self.outcome.mode, on_ray=self._on_ray)
        self._wait_for_a_moment()
        if run.mode == "resize":
            run.ask_resize()
            time.sleep(self._random.uniform(0, _TO_CHANGE_S))
        began, since = run.progress(), len(run.output())
        dealt: list[tuple[float, Dealt]] = []  # the time at which each blow ends
        for blow in blows:
            time.sleep(blow.after_s)
            if (hit := deal(blow, run)) is None:
                self.outcome.skipped += 1
            else:
                dealt.append((time.monotonic() + blow.lasts_s, hit))
                self._blows.append(blow)
        summary = " and ".join(f"{hit.blow.what} {hit.name}" for _, hit in dealt)
        self._tell(f"{summary or 'nothing to strike'} at {began}")
        result = "?"
        try:
            for until_s, hit in sorted(dealt, key=lambda pair: pair[0]):
                while time.monotonic() < until_s and run.runs():
                    time.sleep(0.02)
                if hit.undo is not None:
                    hit.undo()
            result = judge(run, [hit for _, hit in dealt], self._blows, since)
        finally:
            self._tell(f"  {result}")
            for _, hit in dealt:
                self.outcome.blows.append([hit.blow.victim, hit.blow.what, result])

    def _wait_for_a_moment(self) -> None:
        """Waits for some time after the launch, or until the run has made some progress."""
        run = self._run
        delay_s, iterations = self._random.uniform(0, 6), self._random.randrange(1, 12)
        if self._random.random() < 0.3 and run.mode != "resize":
            end_s = time.monotonic() + delay_s
            run.until(lambda: not run.runs() or time.monotonic() > end_s, "a moment")
            return
        goal = run.progress() + iterations
        run.until(lambda: not run.runs() or run.progress() >= goal, f"progress {goal}")
        time.sleep(self._random.uniform(0, 0.05))  # so that it hits anywhere in an iteration

    def _tell(self, text: str) -> None:
        line = f"{time.monotonic() - self._began_s:6.1f} s  {text}"
        self.outcome.told.append(line)
        self._tell_line(line)


def run_case(
    mode: str, seed: int, strikes: int, on_ray: bool, tell: Callable[[str], None]
) -> Outcome:
    """Runs one case."""
    # A shell's background jobs ignore SIGINT, and launchers would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    LIBC.prctl(_SUBREAPER, 1, 0, 0, 0)  # orphans become children of this process, and are seen
    if LIBC.unshare(_NEW_NAMESPACE) == 0:  # mounts belong to this process alone, and end with it
        LIBC.mount(b"none", b"/", None, _PRIVATE, None)
        LIBC.mount(b"none", b"/dev/shm", b"tmpfs", 0, None)
    folder = Path(tempfile.mkdtemp(prefix="gdc-", dir="/tmp"))  # short, for paths of sockets
    outcome = Case(mode, seed, folder, on_ray, tell).strike(strikes)
    shutil.rmtree(folder, ignore_errors=True)
    return outcome


def _in_process(mode: str, seed: int, strikes: int, on_ray: bool) -> Outcome:
    """Runs a case in a process of its own."""
    words = ["--only", str(seed), "--modes", mode, "--strikes", str(strikes), "--json"]
    words += ["--ray"] if on_ray else []
    program = [sys.executable, __file__, *words]
    completed = subprocess.run(program, capture_output=True, text=True, check=False)
    try:
        return Outcome(**json.loads(completed.stdout))
    except ValueError:
        return Outcome(seed, mode, failure=f"the harness has failed: {completed.stderr[-2000:]}")


def table_of(outcomes: Sequence[Outcome]) -> dict[str, dict[str, dict[str, int]]]:
    """Counts blows by mode, by victim and kind, and by what came of them."""
    table: dict[str, dict[str, dict[str, int]]] = {}
    for outcome in outcomes:
        for victim, what, result in outcome.blows:
            rows = table.setdefault(outcome.mode, {}).setdefault(f"{what} {victim}", {})
            rows[result] = rows.get(result, 0) + 1
    return table


def _cases(options: argparse.Namespace) -> list[Outcome]:
    """Runs cases of all modes in turn until there are --kills blows, recorded ones included."""
    outcomes = _recorded_outcomes(options)
    cases = zip(itertools.cycle(options.modes), itertools.count(options.seed * 100_000))
    known = {(outcome.mode, outcome.seed) for outcome in outcomes}
    remaining = (case for case in cases if case not in known)
    dealt = sum(len(outcome.blows) for outcome in outcomes)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        running: set[concurrent.futures.Future[Outcome]] = set()
        while running or dealt < options.kills:
            while dealt < options.kills and len(running) < options.jobs:
                mode, seed = next(remaining)
                running.add(pool.submit(_in_process, mode, seed, options.strikes, options.ray))
            finished, running = concurrent.futures.wait(running, return_when="FIRST_COMPLETED")
            for outcome in (future.result() for future in finished):
                outcomes.append(outcome)
                dealt += len(outcome.blows)
                verdict = f"FAILED: {outcome.failure}" if outcome.failure else "as documented"
                print(f"{dealt} blows; {outcome.seed}, {outcome.mode}: {verdict}", file=sys.stderr)
                if outcome.failure:
                    print("\n".join(outcome.told), file=sys.stderr, flush=True)
                if options.raw is not None:
                    with options.raw.open("a") as file:
                        print(json.dumps(asdict(outcome)), file=file)
    return outcomes


def _recorded_outcomes(options: argparse.Namespace) -> list[Outcome]:
    """Returns the outcomes in the file --raw that are of these modes and of this seed."""
    if options.raw is None or not options.raw.exists():
        return []
    lines = options.raw.read_text().splitlines()
    return [
        outcome
        for outcome in (Outcome(**json.loads(line)) for line in lines)
        if outcome.mode in options.modes and outcome.seed // 100_000 == options.seed
    ]


def _modes(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in MODES]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r}; modes are {', '.join(MODES)}")
    return names


def main(arguments: Sequence[str] | None = None) -> int:
    options_of = parser(__doc__, seed=1)
    add = options_of.add_argument
    add("--kills", type=int, default=100, help="blows, all cases together")
    add("--modes", type=_modes, default=[*MODES], help="separated by commas; all")
    add("--strikes", type=int, default=4, help="of each case")
    add("--jobs", type=int, default=2, help="cases at a time")
    add("--only", type=int, metavar="SEED", help="one case, of the mode in --modes")
    add("--ray", action="store_true", help="kills alone, of runs of mode hosts on a Ray cluster")
    add("--json", action="store_true", help="with --only: print its outcome")
    add("--raw", type=Path, metavar="FILE",
        help="its cases of this seed are not run again, and each case is added; to run one again, "
        "remove its line")  # fmt: skip
    add("--dry", action="store_true", help="keep no result")
    options = options_of.parse_args(arguments)
    if options.ray and options.modes != ["hosts"]:
        options_of.error("--ray is of mode hosts: --modes hosts")
    if options.only is not None:
        if len(options.modes) > 1:
            options_of.error("--only is of one mode: name it by --modes")
        tell = (lambda line: None) if options.json else print
        outcome = run_case(options.modes[0], options.only, options.strikes, options.ray, tell)
        if options.json:
            print(json.dumps(asdict(outcome)))
        return 1 if outcome.failure else 0
    outcomes = _cases(options)
    blows = [blow for outcome in outcomes for blow in outcome.blows]
    failures = [
        {"seed": outcome.seed, "mode": outcome.mode, "what": outcome.failure[:500]}
        for outcome in outcomes if outcome.failure
    ]  # fmt: skip
    fields: dict[str, Any] = {
        "blows": len(blows), "cases": len(outcomes),
        "kills": sum(what == "kill" for _, what, _ in blows),
        "skipped": sum(outcome.skipped for outcome in outcomes), "seed": options.seed,
        "case_seconds": round(sum(outcome.seconds for outcome in outcomes)), "failures": failures,
        "table": table_of(outcomes),
    }  # fmt: skip
    name = "failures"
    if options.modes != [*MODES]:
        name += f" in {', '.join(options.modes)}{' on Ray' if options.ray else ''}"
    emit(
        "chaos", name, value=len(failures), unit="cases", repeats=len(outcomes), dry=options.dry,
        **fields,
    )  # fmt: skip
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
