"""A record as a person reads it: the sentence why, and tables. The pictures are in plots.py."""

from __future__ import annotations

import re
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from gmi_drl.placement import counted
from gmi_drl.selector.tune.candidate import Measured, Skipped
from gmi_drl.selector.tune.race import judged_from

from .findings import Finding, Findings, candidate_text, row_text, told_apart
from .summary import headline, is_sure, sureness, why

if TYPE_CHECKING:
    from rich.console import Console

    from .record import Recorded

_WINNER, _RUNNER_UP, _SATURATED, _FAILED, _LEFT_OUT = "★", "☆", "~", "✗", "·"
_KEY: Final = (
    f"{_WINNER} winner  {_RUNNER_UP} runner-up  {_SATURATED} saturated from here on  "
    f"{_FAILED} failed  {_LEFT_OUT} left out"
)
_CELL: Final = 14  # columns of the terminal for one row of the space


@dataclass(frozen=True)
class Table:
    """A part of the report: every row has a cell for each column."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    key: str = ""  # what its marks mean
    numbers: bool = False  # all columns but the first are to the right


def show(console: Console, recorded: Recorded) -> None:
    """Print all there is to say of a record, whether it is finished or not."""
    findings = recorded.findings()
    console.out(headline(recorded), highlight=False, style="bold" if is_sure(recorded) else "")
    for text in (why(recorded), sureness(recorded)):
        _wrapped(console, text)
    console.out("")
    for table in tables(recorded, findings, max(1, (console.width - 10) // _CELL)):
        _print(console, table)
        console.out(f"{table.key}\n" if table.key else "", highlight=False)
    for line in notes(recorded):
        _wrapped(console, line)
    console.out(f"Record: {recorded.path}", highlight=False)  # whole, to be copied


def tables(recorded: Recorded, findings: Findings, most: int) -> Iterator[Table]:
    """The tables of a report; `most` rows of the space fit beside each other."""
    columns = list(findings.rows)
    for first in range(0, len(columns), most):
        yield _throughput(findings, columns[first : first + most])
    if findings.winner is not None:
        trains = recorded.header.get("mode") != "serving"
        yield _closer(told_apart(findings), findings, trains)
    if recorded.races:
        yield _races(recorded, findings)
    if findings.failures:
        yield Table(
            "Failed",
            ("setting", "what", "what it said"),
            tuple(
                (candidate_text(f.candidate, findings.rows), f.failed.reason, f.failed.text)
                for f in findings.failures
            ),
        )
    if out := tuple(_left_out(findings)):
        yield Table("Left out", ("GMIs", "num_env", "why"), out)


def notes(recorded: Recorded) -> Iterator[str]:
    """What was held fixed, where and when it was measured, and whether it still holds."""
    header = recorded.header
    if held := header.get("held"):
        yield "Held fixed: " + "; ".join(map(str, held)) + "."
    where = [str(header[key]) for key in ("machine", "commit") if header.get(key)]
    if header.get("started"):
        where.insert(0, time.strftime("%Y-%m-%d %H:%M", time.localtime(header["started"])))
    if header.get("algorithm"):
        where.append(f"search {header['algorithm']}, objective {header.get('objective', 'steps')}")
    if where:
        yield "Measured: " + "; ".join(where) + "."
    if load := recorded.choice.get("load"):
        yield f"Load: {load}."
    if left_out := recorded.choice.get("left_out"):
        yield f"Budget: {left_out}."
    for drift in recorded.drifts:
        yield f"Stale: {drift.get('text') or 'a run did other than promised'}. Tune again."


def _throughput(findings: Findings, rows: Sequence[Any]) -> Table:
    """steps/s: a line for each num_env, a column for each row of the space."""
    cells: dict[tuple[int, Any], str] = {}
    for skipped in findings.chosen.skipped if findings.chosen else ():
        cells[skipped.candidate.num_env, skipped.candidate.row] = _LEFT_OUT
    for row in rows:
        knee = findings.knee(row)
        for finding in findings.rows[row]:
            mark = _SATURATED if finding is knee else ""
            mark = _RUNNER_UP if finding is findings.runner_up else mark
            mark = _WINNER if finding is findings.winner else mark
            text = f"{finding.measured.steps_per_s:,.0f} {mark or ' '}"
            cells[finding.candidate.num_env, row] = text
    for failure in findings.failures:
        cells[failure.candidate.num_env, failure.candidate.row] = (
            f"{failure.failed.reason} {_FAILED}"
        )
    ladder = sorted({num_env for num_env, row in cells if row in rows})
    return Table(
        "Steps/s",
        ("num_env", *(row_text(row, findings.rows) for row in rows)),
        tuple((f"{n:,}", *(cells.get((n, row), "") for row in rows)) for n in ladder),
        _KEY,
        numbers=True,
    )


def _closer(named: Sequence[tuple[str, Finding]], findings: Findings, trains: bool) -> Table:
    """All that is known of a few, side by side."""
    its = [finding.measured for _, finding in named]

    def line(what: str, values: Sequence[str]) -> tuple[str, ...]:
        return (what, *values)

    phases = {phase: None for measured in its for phase in measured.phases}
    lines = [
        line("setting", [candidate_text(f.candidate, findings.rows) for _, f in named]),
        line("steps/s", [f"{m.steps_per_s:,.0f} ± {100 * m.error:.1f} %" for m in its]),
        line("steps an update", [f"{f.candidate.samples:,}" if trains else "-" for _, f in named]),
        line("horizon", [f"{f.candidate.horizon:,}" if trains else "-" for _, f in named]),
        *(
            line(phase, [f"{100 * m.phases.get(phase, 0.0):.0f} %" for m in its])
            for phase in phases
        ),
        line("host memory", [_gib(m.host_bytes) for m in its]),
        line("device memory", [_gib(m.device_bytes) for m in its]),
        line("fullest memory", [f"{100 * m.memory:.0f} % full" for m in its]),
        line("cores busy", [f"{m.cores:.1f}" for m in its]),
        line("SMs active", [_percent(m) for m in its]),
        line("measured", [f"{m.seconds:.1f} s, {counted(m.iterations, 'iteration')}" for m in its]),
    ]
    known = tuple(one for one in lines if set(one[1:]) != {"-"})
    return Table("A closer look", ("", *(name for name, _ in named)), known, numbers=True)


def _races(recorded: Recorded, findings: Findings) -> Table:
    """What decided: the returns when all of a round had trained for as long."""
    judged = sorted(judged_from(recorded), key=lambda its: its.round)
    last = max((its.round for its in judged), default=0)
    winner = findings.winner and findings.winner.candidate
    rows = [
        (
            str(its.round),
            candidate_text(its.candidate, findings.rows),
            f"{its.seconds:.0f} s" if its.seconds else "-",
            its.text or "no episode ended"
            if its.return_mean is None
            else f"{its.return_mean:,.1f}",
            _WINNER if its.candidate == winner and its.round == last else "",
        )
        for its in judged
    ]
    return Table("Return at equal time", ("round", "setting", "after", "return", ""), tuple(rows))


def _left_out(findings: Findings) -> Iterator[tuple[str, str, str]]:
    """Candidates that were not measured; of reasons that differ in numbers alone, the last."""
    groups: dict[tuple[str, str], list[Skipped]] = {}
    for skipped in findings.chosen.skipped if findings.chosen else ():
        row = skipped.candidate.row
        whose = row_text(row, findings.rows) if row in findings.rows else row_text(row, [row])
        groups.setdefault((whose, re.sub(r"[0-9.,]+", "0", skipped.why)), []).append(skipped)
    for (whose, _), its in groups.items():
        num_envs = [f"{one.candidate.num_env:,}" for one in its]
        few = len(num_envs) <= 3
        span = " / ".join(num_envs) if few else f"{num_envs[0]} ... {num_envs[-1]}"
        yield whose, span, its[-1].why


def _wrapped(console: Console, text: str) -> None:
    for line in textwrap.wrap(text, min(console.width, 110), break_on_hyphens=False):
        console.out(line, highlight=False)


def _gib(count: int | None) -> str:
    return "-" if count is None else f"{count / 2**30:.2f} GiB"


def _percent(measured: Measured) -> str:
    return "-" if measured.sm_activity is None else f"{100 * measured.sm_activity:.0f} %"


def _print(console: Console, table: Table) -> None:
    """In a terminal a table with colours; elsewhere columns two spaces apart."""
    from rich.table import Table as RichTable
    from rich.text import Text

    if not console.is_terminal:
        every = (table.columns, *table.rows)
        widths = [max(len(row[i]) for row in every) for i in range(len(table.columns))]
        console.out(table.title, highlight=False)
        for row in every:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            console.out("  " + "  ".join(cells).rstrip(), highlight=False)
        return
    drawn = RichTable(title=table.title, title_justify="left", title_style="bold")
    for place, column in enumerate(table.columns):
        justify: Literal["left", "right"] = "right" if table.numbers and place else "left"
        drawn.add_column(Text(column), justify=justify, overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(cell, _style(cell)) for cell in row))
    console.print(drawn)


def _style(cell: str) -> str:
    styles = {_WINNER: "green", _RUNNER_UP: "cyan", _FAILED: "red", _LEFT_OUT: "dim"}
    return styles.get(cell[-1:], "")
