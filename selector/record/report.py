"""Words a record for people: a summary in sentences, and tables."""

from __future__ import annotations

import math
import re
import textwrap
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from gmi_drl.launcher.view.tables import print_table
from gmi_drl.launcher.view.view import duration
from gmi_drl.placement import counted
from gmi_drl.selector.tune.algorithms.observations import (
    differ_significantly,
    is_uncertain,
    noise_margin,
    usable,
)
from gmi_drl.selector.tune.candidate import (
    Candidate,
    DeviceSplit,
    Measured,
    Skipped,
    candidate_text,
    row_marks,
    row_text,
)
from gmi_drl.selector.tune.race import RaceScore, scores_of

from .results import FLAT, CandidateResult, TuneResults, compared

if TYPE_CHECKING:
    from rich.console import Console

    from .record import TuneRecord

_FAILURES: Final = {
    "memory": "runs out of memory",
    "crash": "crashes",
    "hang": "hangs",
    "refused": "is refused",
    "slow": "takes longer for an update than was allowed",
}


def headline(record: TuneRecord) -> str:
    """Says what was tuned, and what was chosen."""
    results = record.results()
    what = f"{env}: " if (env := record.header.get("env")) else ""
    if results.winner is None:
        return f"{what}nothing could be measured"
    chosen = candidate_text(results.winner.candidate, results.rows)
    measured = results.winner.measured
    text = f"{what}{chosen}, {measured.steps_per_s:,.0f} steps/s ± {100 * measured.error:.1f} %"
    if not record.chosen:
        return f"{text} so far"
    if results.prediction is None or results.base in (None, results.winner):
        return text
    shorter = _longer(results, results.winner, results.base)
    return f"{text}, predicted {shorter:.2f} times the time to a return of the {results.base_name}"


def _longer(results: TuneResults, one: CandidateResult, other: CandidateResult) -> float:
    """Returns how many times as long one is predicted to take to a return as the other."""
    return results.worth(other).steps_per_s / results.worth(one).steps_per_s


def why(record: TuneRecord) -> str:
    """Returns the sentence, with its full stop. Numbers are of this record's measurements."""
    results = record.results()
    winner = results.winner
    if winner is None:
        return f"Nothing could be measured: {_count(results, record)}."
    row = winner.candidate.row
    marks = ", ".join(row_marks(row, results.rows))
    devices = record.header.get("devices", 1)
    where = "per device" if devices == 1 else f"on each of {devices} devices"
    per = f"{counted(row.gmi_per_gpu, 'GMI')} {where}{f' ({marks})' if marks else ''}"
    per += f" with num_env {winner.candidate.num_env:,}"
    verb = "serve" if record.header.get("mode") == "serving" else "train"
    verb += "" if row.gmi_per_gpu > 1 or devices > 1 else "s"
    parts = [f"{per} {verb} {winner.measured.steps_per_s:,.0f} steps/s{_versus(results, winner)}"]
    if record.chosen and (scores_of(record) or winner is not results.fastest):
        parts.append(record.chosen.why)
    parts.append(_limit_text(results, winner))
    if record.header.get("mode") != "serving":
        parts.append(_update(results, winner, record))
    text = "; ".join(part for part in parts if part)
    if not record.chosen:
        text += "; nothing is chosen yet: the tune is at work, or was ended and goes on when asked"
    return f"{text}."


def is_sure(record: TuneRecord) -> bool:
    """Tells whether another tune would choose the same: complete, decided beyond the noise."""
    results, chosen = record.results(), record.chosen
    if results.winner is None or chosen is None or not chosen.complete or scores_of(record):
        return False
    return not results.as_fast and not is_uncertain(results.winner.measured)


def sureness(record: TuneRecord) -> str:
    """Says how far the choice can be trusted, with numbers; empty if nothing was measured."""
    results, chosen = record.results(), record.chosen
    winner, near = results.winner, results.as_fast
    if winner is None:
        return ""
    measured = winner.measured
    parts = [_count(results, record), f"the choice does {_spread(measured)}"]
    if len(results.all) == 1:
        parts.append("there is nothing to hold it against")
    elif not near:
        parts.append("each of the others differs by more than the noise")
    else:
        nearest = min(near, key=lambda r: abs(r.measured.steps_per_s - measured.steps_per_s))
        alike = "as fast" if results.prediction is None else "as good"
        parts.append(
            f"{len(near)} of {counted(len(results.all) - 1, 'other')} may be {alike}, the nearest "
            f"({candidate_text(nearest.candidate, results.rows)}) with "
            f"{_spread(nearest.measured)}"
        )
    config = record.header.get("config") or {}
    sizes = (config.get("layout", {}).get("gmi_per_gpu"), config.get("env", {}).get("num_env"))
    if record.own is None and all(isinstance(size, int) for size in sizes):  # it left nothing open
        parts.append("the config as given was not measured")
    if decision := _decision(record, results):
        parts.append(decision)
    if is_uncertain(measured) or (chosen is not None and not chosen.complete):
        parts.append("a longer tune is surer (--budget)")
    return f"How sure it is: {'; '.join(parts)}."


def _decision(record: TuneRecord, results: TuneResults) -> str:
    """Says whether a race decided or the prediction alone, and by how much; "" of steps/s."""
    winner, decided_by = results.winner, record.choice.get("decided_by")
    if winner is None or decided_by is None:
        return ""
    if decided_by == "race":
        rounds = dict[int, list[RaceScore]]()
        for score in scores_of(record):
            rounds.setdefault(score.round, []).append(score)
        leads = [_lead(number, rounds[number], winner.candidate) for number in sorted(rounds)]
        return f"the race decided, {', '.join(leads)}, with one seed a round"
    basis = "tune.keep" if decided_by == "rule" else "the prediction"
    basis = "steps/s" if results.prediction is None else basis
    others = [r for r in results.all if r is not winner]
    margin = ""
    if others:
        nearest = max(others, key=lambda r: results.worth(r).steps_per_s)
        longer, name = _longer(results, nearest, winner), nearest.candidate
        margin = (
            f", by which the next ({candidate_text(name, results.rows)}) takes {longer:.2f} times "
            "as long to a return"
        )
    return f"{basis} alone decided{margin} ({record.choice['race']})"


def _lead(number: int, scores: Sequence[RaceScore], winner: Candidate) -> str:
    """Says the mean return of a round's winner beside the best of the others."""
    mean = {score.candidate: score.return_mean for score in scores if score.return_mean is not None}
    seconds = max(score.seconds for score in scores)
    own, others = mean.get(winner), [v for c, v in mean.items() if c != winner]
    text = "no return" if own is None else f"a mean return of {own:,.1f}"
    against = f" against {max(others):,.1f}" if others else " and none of the others"
    return f"in round {number} {text}{against} in {seconds:.0f} s"


def _spread(m: Measured) -> str:
    return f"{m.steps_per_s:,.0f} steps/s ± {100 * m.error:.1f} % ({m.seconds:.1f} s)"


def _versus(results: TuneResults, winner: CandidateResult) -> str:
    parts = []
    for name, other in compared(results):
        if other is winner:
            continue
        best, base = winner.measured, other.measured
        ratio = best.steps_per_s / base.steps_per_s
        label = name.replace(", ", " and ")
        label = f"the {label} ({candidate_text(other.candidate, results.rows)})"
        if not differ_significantly(best, base):
            noise = 100 * noise_margin(best, base) / base.steps_per_s
            parts.append(f"as many as {label} within the noise of {noise:.1f} %")
        elif is_uncertain(best) or is_uncertain(base):
            parts.append(f"{'more' if ratio > 1 else 'less'} than {label}, by how much is not sure")
        elif ratio >= 1.5:
            parts.append(f"{ratio:.1f} times {label}")
        else:
            more = "more" if ratio > 1 else "less"
            parts.append(f"{100 * abs(ratio - 1):.1f} % {more} than {label}")
    text = ", which is the config as given" if winner.candidate == results.own else ""
    text += ", " + " and ".join(parts) if parts else ""
    if results.own is not None and results.own in results.failures:
        own = candidate_text(results.own, results.rows)
        text += f"; the config as given ({own}) {_FAILURES[results.failures[results.own].reason]}"
    return text


def _limit_text(results: TuneResults, winner: CandidateResult) -> str:
    """Says why there are not more environments in each GMI."""
    num_env = winner.candidate.num_env
    results_of_row = results.rows[winner.candidate.row]
    row_failures = [c for c in results.failures if c.row == winner.candidate.row]
    failed = next((c for c in row_failures if c.num_env > num_env), None)
    failure = ""
    if failed is not None:
        failure = f"num_env {failed.num_env:,} {_FAILURES[results.failures[failed].reason]}"
    larger = [result for result in results_of_row if result.candidate.num_env > num_env]
    lasting_candidates = usable({f.candidate: f.measured for f in results_of_row}, results.failures)
    full = [result for result in larger if result.candidate not in lasting_candidates]
    larger = [result for result in larger if result.candidate in lasting_candidates]
    if not larger and failure:
        return failure
    if not larger and full:
        first = full[0].candidate
        return f"num_env {first.num_env:,} fills {full[0].measured.memory:.0%} of the memory"
    if not larger:
        skipped = results.chosen.skipped if results.chosen else ()
        same_row = (s for s in skipped if s.candidate.row == winner.candidate.row)
        left = next((s for s in same_row if s.candidate.num_env > num_env), None)
        return f"num_env {left.candidate.num_env:,} was left out: {left.why}" if left else ""
    last = larger[-1]
    change = last.measured.steps_per_s / winner.measured.steps_per_s - 1
    best = max(f.measured.steps_per_s for f in larger) / winner.measured.steps_per_s - 1
    if best > FLAT:  # chosen by its return
        trend = f"rises by {100 * best:.0f} %"
    elif change < -FLAT and -change <= math.hypot(last.measured.error, winner.measured.error):
        trend = f"is the same within the noise up to {last.candidate.num_env:,}"
    elif change < -FLAT:
        trend = f"falls by {-100 * change:.0f} % up to {last.candidate.num_env:,}"
    else:
        trend = f"is flat up to {last.candidate.num_env:,}"
    grown = last.gib / winner.gib
    memory = f" while memory grows {grown:.1f}x" if grown >= 1.05 else ""
    text = f"beyond num_env {num_env:,} throughput {trend}{memory}"
    return f"{text}, and {failure}" if failure else text


def _count(results: TuneResults, record: TuneRecord) -> str:
    size = record.header.get("space_size")
    tried, of = results.tried, f" of {size:,}" if isinstance(size, int) else ""
    noun = "candidates were" if of or tried != 1 else "candidate was"
    text = f"{tried:,}{of} {noun} measured in {duration(round(record.spent_s))}"
    if results.failures:
        text += f" ({len(results.failures)} failed)"
    if record.chosen and not record.chosen.complete:
        text += ", which is what the budget allowed"
    return text


def _update(results: TuneResults, winner: CandidateResult, record: TuneRecord) -> str:
    """Says how tuning changed the update: as recorded with the choice, if there is one."""
    if changes := record.choice.get("changes"):
        return str(changes)
    stays = "stays" if changes == "" else "takes"
    return f"an update {stays} {winner.candidate.samples:,} steps"


def learning(record: TuneRecord) -> Iterator[str]:
    """Says what the choice is expected to learn, beside the config as given and the fastest."""
    results = record.results()
    if results.prediction is None or results.winner is None:
        return
    if noise := record.choice.get("noise"):
        yield str(noise)
    others = {results.base_name: results.base, "most steps/s": results.fastest}
    for name, other in others.items():
        if other is None or other is results.winner:
            continue
        speed = results.winner.measured.steps_per_s / other.measured.steps_per_s
        longer = _longer(results, results.winner, other)
        text = candidate_text(other.candidate, results.rows)
        yield (
            f"beside the {name} ({text}): {speed:.2f} times its steps/s, and {longer:.2f} times "
            "its time to a return, as predicted"
        )


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
        _print_wrapped(console, text)
    console.out("")
    columns, most = list(results.rows), max(1, (console.width - 10) // _CELL)
    for first in range(0, len(columns), most):
        shown = columns[first : first + most]
        names = (row_text(row, results.rows) for row in shown)
        table("Steps/s", ("num_env", *names), _throughput(results, shown), numbers=True)
        console.out(f"{_KEY}\n", highlight=False)
    rows: Sequence[tuple[str, ...]]
    if results.winner is not None:
        named = compared(results)
        rows = _detail_rows(named, record)
        table("A closer look", ("", *(name for name, _ in named)), rows, numbers=True)
        console.out("")
    if rows := races(record, results):
        head = ("round", "setting", "in", "mean return", "")
        table("Return at equal time", head, rows)
        console.out("")
    if results.failures:
        rows = [
            (candidate_text(candidate, results.rows), failed.reason, failed.text)
            for candidate, failed in results.failures.items()
        ]
        table("Failed", ("setting", "what", "what it said"), rows)
        console.out("")
    if rows := list(left_out(results)):
        table("Left out", ("GMIs", "num_env", "why"), rows)
        console.out("")
    for line in notes(record):
        _print_wrapped(console, line)
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
        where.append(f"search {header['algorithm']}, objective {header.get('objective')}")
    if where:
        yield "Measured: " + "; ".join(where) + "."
    for line in learning(record):
        yield f"Learning: {line}."
    if load := record.choice.get("load"):
        yield f"Load: {load}."
    if omitted := record.choice.get("left_out"):
        yield f"Budget: {omitted}."
    for drift in record.drifts:
        yield f"Stale: {drift.get('text') or 'a run did other than promised'}. Tune again."


def _throughput(results: TuneResults, rows: Sequence[DeviceSplit]) -> list[tuple[str, ...]]:
    """Returns steps/s: a line for each num_env, a column for each row of the space."""
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
    for candidate, failed in results.failures.items():
        cells[candidate.num_env, candidate.row] = f"{failed.reason} {_FAILED}"
    ladder = sorted({num_env for num_env, row in cells if row in rows})
    return [(f"{n:,}", *(cells.get((n, row), "") for row in rows)) for n in ladder]


def _detail_rows(
    named: Sequence[tuple[str, CandidateResult]], record: TuneRecord
) -> list[tuple[str, ...]]:
    """Returns all that is known of a few, side by side; times are relative to the last one's."""
    results = record.results()
    rows, worth = results.rows, [results.worth(result).steps_per_s for _, result in named]
    trains = record.header.get("mode") != "serving"
    times = ["-" if results.prediction is None else f"{worth[-1] / rate:.2f}" for rate in worth]
    few, candidates = [r.measured for _, r in named], [r.candidate for _, r in named]
    phases = {phase: None for measured in few for phase in measured.phases}
    lines: list[tuple[str, ...]] = [
        ("setting", *(candidate_text(c, rows) for c in candidates)),
        ("steps/s", *(f"{m.steps_per_s:,.0f} ± {100 * m.error:.1f} %" for m in few)),
        ("time to a return", *times),
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


def races(record: TuneRecord, results: TuneResults) -> list[tuple[str, ...]]:
    """Lists what decided: mean returns over the time that all of a round had trained."""
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


def left_out(results: TuneResults) -> Iterator[tuple[str, str, str]]:
    """Yields candidates not measured; of reasons that differ in numbers alone, the last."""
    groups: dict[tuple[str, str], list[Skipped]] = {}
    for skipped in results.chosen.skipped if results.chosen else ():
        row = skipped.candidate.row
        label = row_text(row, results.rows) if row in results.rows else row_text(row, [row])
        groups.setdefault((label, re.sub(r"[0-9.,]+", "0", skipped.why)), []).append(skipped)
    for (label, _), group in groups.items():
        num_envs = [f"{entry.candidate.num_env:,}" for entry in group]
        few = len(num_envs) <= 3
        span = " / ".join(num_envs) if few else f"{num_envs[0]} ... {num_envs[-1]}"
        yield label, span, group[-1].why


def _print_wrapped(console: Console, text: str) -> None:
    for line in textwrap.wrap(text, min(console.width, 110), break_on_hyphens=False):
        console.out(line, highlight=False)
