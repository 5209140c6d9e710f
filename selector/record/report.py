"""Prints a record for people: its summary, and tables."""

from __future__ import annotations

import re
import textwrap
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from gmi_drl.launcher.view.tables import print_table
from gmi_drl.placement import counted
from gmi_drl.selector.tune.candidate import DeviceSplit, Skipped, candidate_text, row_text
from gmi_drl.selector.tune.race import scores_of

from .results import CandidateResult, TuneResults, compared
from .summary import headline, is_sure, sureness, why

if TYPE_CHECKING:
    from rich.console import Console

    from .record import TuneRecord

_WINNER, _RUNNER_UP, _SATURATED, _FAILED, _LEFT_OUT = "★", "☆", "~", "✗", "·"
_KEY: Final = (
    f"{_WINNER} winner  {_RUNNER_UP} runner-up  {_SATURATED} saturated from here on  "
    f"{_FAILED} failed  {_LEFT_OUT} left out"
)
_STYLES: Final = {_WINNER: "green", _RUNNER_UP: "cyan", _FAILED: "red", _LEFT_OUT: "dim"}
_CELL: Final = 14  # columns of the terminal for one row of the space


def show(console: Console, record: TuneRecord) -> None:
    """Prints all there is to say of a record, whether it is finished or not."""
    results = record.results()
    table = partial(print_table, console, style_of=lambda cell: _STYLES.get(cell[-1:], ""))
    console.out(headline(record), highlight=False, style="bold" if is_sure(record) else "")
    for text in (why(record), sureness(record)):
        _wrapped(console, text)
    console.out("")
    columns, most = list(results.rows), max(1, (console.width - 10) // _CELL)
    for first in range(0, len(columns), most):
        few = columns[first : first + most]
        names = (row_text(row, results.rows) for row in few)
        table("Steps/s", ("num_env", *names), _throughput(results, few), numbers=True)
        console.out(f"{_KEY}\n", highlight=False)
    rows: Sequence[tuple[str, ...]]
    if results.winner is not None:
        named = compared(results)
        rows = _closer(named, results, record.header.get("mode") != "serving")
        table("A closer look", ("", *(name for name, _ in named)), rows, numbers=True)
        console.out("")
    if record.races:
        head = ("round", "setting", "after", "return", "")
        table("Return at equal time", head, _races(record, results))
        console.out("")
    if results.failures:
        rows = [
            (candidate_text(f.candidate, results.rows), f.failed.reason, f.failed.text)
            for f in results.failures
        ]
        table("Failed", ("setting", "what", "what it said"), rows)
        console.out("")
    if rows := list(_left_out(results)):
        table("Left out", ("GMIs", "num_env", "why"), rows)
        console.out("")
    for line in notes(record):
        _wrapped(console, line)
    console.out(f"Record: {record.path}", highlight=False)  # whole, to be copied


def notes(record: TuneRecord) -> Iterator[str]:
    """Says what was held fixed, where and when it was measured, and whether it still holds."""
    header = record.header
    if held := header.get("held"):
        yield "Held fixed: " + "; ".join(map(str, held)) + "."
    where = [str(header[key]) for key in ("machine", "commit") if header.get(key)]
    if header.get("started"):
        where.insert(0, time.strftime("%Y-%m-%d %H:%M", time.localtime(header["started"])))
    if header.get("algorithm"):
        where.append(f"search {header['algorithm']}, objective {header.get('objective', 'steps')}")
    if where:
        yield "Measured: " + "; ".join(where) + "."
    if load := record.choice.get("load"):
        yield f"Load: {load}."
    if left_out := record.choice.get("left_out"):
        yield f"Budget: {left_out}."
    for drift in record.drifts:
        yield f"Stale: {drift.get('text') or 'a run did other than promised'}. Tune again."


def _throughput(results: TuneResults, rows: Sequence[DeviceSplit]) -> list[tuple[str, ...]]:
    """steps/s: a line for each num_env, a column for each row of the space."""
    cells: dict[tuple[int, DeviceSplit], str] = {}
    for skipped in results.chosen.skipped if results.chosen else ():
        cells[skipped.candidate.num_env, skipped.candidate.row] = _LEFT_OUT
    for row in rows:
        knee = results.knee(row)
        for result in results.rows[row]:
            mark = _SATURATED if result is knee else ""
            mark = _RUNNER_UP if result is results.runner_up else mark
            mark = _WINNER if result is results.winner else mark
            text = f"{result.measured.steps_per_s:,.0f} {mark or ' '}"
            cells[result.candidate.num_env, row] = text
    for one in results.failures:
        cells[one.candidate.num_env, one.candidate.row] = f"{one.failed.reason} {_FAILED}"
    ladder = sorted({num_env for num_env, row in cells if row in rows})
    return [(f"{n:,}", *(cells.get((n, row), "") for row in rows)) for n in ladder]


def _closer(
    named: Sequence[tuple[str, CandidateResult]], results: TuneResults, trains: bool
) -> list[tuple[str, ...]]:
    """Returns all that is known of a few, side by side."""
    few, candidates = [r.measured for _, r in named], [r.candidate for _, r in named]
    phases = {phase: None for measured in few for phase in measured.phases}
    lines: list[tuple[str, ...]] = [
        ("setting", *(candidate_text(c, results.rows) for c in candidates)),
        ("steps/s", *(f"{m.steps_per_s:,.0f} ± {100 * m.error:.1f} %" for m in few)),
        ("steps an update", *(f"{c.samples:,}" if trains else "-" for c in candidates)),
        ("horizon", *(f"{c.horizon:,}" if trains else "-" for c in candidates)),
        *((phase, *(f"{100 * m.phases.get(phase, 0.0):.0f} %" for m in few)) for phase in phases),
        ("host memory", *(f"{m.host_bytes / 2**30:.2f} GiB" for m in few)),
        ("device memory", *(f"{b / 2**30:.2f} GiB" if (b := m.device_bytes) else "-" for m in few)),
        ("fullest memory", *(f"{100 * m.memory:.0f} % full" for m in few)),
        ("cores busy", *(f"{m.cores:.1f}" for m in few)),
        ("SMs active", *("-" if (a := m.sm_activity) is None else f"{100 * a:.0f} %" for m in few)),
        ("measured", *(f"{m.seconds:.1f} s, {counted(m.iterations, 'iteration')}" for m in few)),
    ]
    return [line for line in lines if set(line[1:]) != {"-"}]


def _races(record: TuneRecord, results: TuneResults) -> list[tuple[str, ...]]:
    """Lists what decided: the returns when all of a round had trained for as long."""
    scores = sorted(scores_of(record), key=lambda score: score.round)
    last = max((score.round for score in scores), default=0)
    winner = results.winner and results.winner.candidate
    return [
        (
            str(score.round),
            candidate_text(score.candidate, results.rows),
            f"{score.seconds:.0f} s" if score.seconds else "-",
            score.text or "no episode ended"
            if score.return_mean is None
            else f"{score.return_mean:,.1f}",
            _WINNER if score.candidate == winner and score.round == last else "",
        )
        for score in scores
    ]


def _left_out(results: TuneResults) -> Iterator[tuple[str, str, str]]:
    """Yields candidates not measured; of reasons that differ in numbers alone, the last."""
    groups: dict[tuple[str, str], list[Skipped]] = {}
    for skipped in results.chosen.skipped if results.chosen else ():
        row = skipped.candidate.row
        whose = row_text(row, results.rows) if row in results.rows else row_text(row, [row])
        groups.setdefault((whose, re.sub(r"[0-9.,]+", "0", skipped.why)), []).append(skipped)
    for (whose, _), group in groups.items():
        num_envs = [f"{one.candidate.num_env:,}" for one in group]
        few = len(num_envs) <= 3
        span = " / ".join(num_envs) if few else f"{num_envs[0]} ... {num_envs[-1]}"
        yield whose, span, group[-1].why


def _wrapped(console: Console, text: str) -> None:
    for line in textwrap.wrap(text, min(console.width, 110), break_on_hyphens=False):
        console.out(line, highlight=False)
