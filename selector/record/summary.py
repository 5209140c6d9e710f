"""Sums up a tune in a sentence: what was chosen, by how much, and why not more."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from gmi_drl.launcher.view.screen import duration
from gmi_drl.placement import counted
from gmi_drl.selector.tune.algorithms.observations import (
    differ_significantly,
    is_uncertain,
    noise_margin,
    usable,
)
from gmi_drl.selector.tune.candidate import Candidate, Failed, Measured, candidate_text, row_marks
from gmi_drl.selector.tune.race import scores_of

from .results import FLAT, CandidateResult, TuneResults, compared

if TYPE_CHECKING:
    from .record import TuneRecord

_FAILED: Final = {
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
    return text if record.chosen else f"{text} so far"


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
    parts = [f"{per} {verb} {winner.measured.steps_per_s:,.0f} steps/s{_against(results, winner)}"]
    if record.races and all(score.return_mean is None for score in scores_of(record)):
        parts.append("no episode ended while they raced, so that steps/s decided")
    elif record.chosen and (record.races or winner is not results.fastest):
        parts.append(record.chosen.why)
    parts.append(_beyond(results, winner))
    if record.header.get("mode") != "serving":
        parts.append(_batch(results, winner, record))
    text = "; ".join(part for part in parts if part)
    if not record.chosen:
        text += "; nothing is chosen yet: the tune is at work, or was ended and goes on when asked"
    return f"{text}."


def is_sure(record: TuneRecord) -> bool:
    """Tells whether another tune would choose the same: complete, decided beyond the noise."""
    results, chosen = record.results(), record.chosen
    if results.winner is None or chosen is None or not chosen.complete or record.races:
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
        nearest = min(near, key=lambda one: abs(one.measured.steps_per_s - measured.steps_per_s))
        parts.append(
            f"{len(near)} of {counted(len(results.all) - 1, 'other')} may be as fast, the nearest "
            f"({candidate_text(nearest.candidate, results.rows)}) with "
            f"{_spread(nearest.measured)}"
        )
    config = record.header.get("config") or {}
    both = (config.get("layout", {}).get("gmi_per_gpu"), config.get("env", {}).get("num_env"))
    if record.own is None and all(isinstance(one, int) for one in both):  # it left nothing open
        parts.append("the config as given was not measured")
    if record.races:
        parts.append("the race was run once, with one seed")
    if is_uncertain(measured) or (chosen is not None and not chosen.complete):
        parts.append("a longer tune is surer (--budget)")
    return f"How sure it is: {'; '.join(parts)}."


def _spread(one: Measured) -> str:
    return f"{one.steps_per_s:,.0f} steps/s ± {100 * one.error:.1f} % ({one.seconds:.1f} s)"


def _against(results: TuneResults, winner: CandidateResult) -> str:
    parts = []
    for name, other in compared(results):
        if other is winner:
            continue
        ours, held = winner.measured, other.measured
        ratio = ours.steps_per_s / held.steps_per_s
        whom = name.replace(", ", " and ")
        whom = f"the {whom} ({candidate_text(other.candidate, results.rows)})"
        if not differ_significantly(ours, held):
            noise = 100 * noise_margin(ours, held) / held.steps_per_s
            parts.append(f"as many as {whom} within the noise of {noise:.1f} %")
        elif is_uncertain(ours) or is_uncertain(held):
            parts.append(f"{'more' if ratio > 1 else 'less'} than {whom}, by how much is not sure")
        elif ratio >= 1.5:
            parts.append(f"{ratio:.1f} times {whom}")
        else:
            more = "more" if ratio > 1 else "less"
            parts.append(f"{100 * abs(ratio - 1):.1f} % {more} than {whom}")
    text = ", which is the config as given" if winner.candidate == results.own else ""
    text += ", " + " and ".join(parts) if parts else ""
    for failure in results.failures:
        if failure.candidate == results.own:
            own = candidate_text(failure.candidate, results.rows)
            text += f"; the config as given ({own}) {_FAILED[failure.failed.reason]}"
    return text


def _beyond(results: TuneResults, winner: CandidateResult) -> str:
    """Says why there are not more environments in each GMI."""
    num_env = winner.candidate.num_env
    along = results.rows[winner.candidate.row]
    failed = [
        failure
        for failure in results.failures
        if failure.candidate.row == winner.candidate.row and failure.candidate.num_env > num_env
    ]
    larger = [result for result in along if result.candidate.num_env > num_env]
    lasting = usable({f.candidate: f.measured for f in along}, {f.candidate for f in failed})
    full = [result for result in larger if result.candidate not in lasting]
    larger = [result for result in larger if result.candidate in lasting]
    if not larger and failed:
        return _next_failed(failed[0].candidate, failed[0].failed)
    if not larger and full:
        first = full[0].candidate
        return f"num_env {first.num_env:,} fills {full[0].measured.memory:.0%} of the memory"
    if not larger:
        out = results.chosen.skipped if results.chosen else ()
        beyond = [s for s in out if s.candidate.row == winner.candidate.row]
        beyond = [s for s in beyond if s.candidate.num_env > num_env]
        if not beyond:
            return ""
        return f"num_env {beyond[0].candidate.num_env:,} was left out: {beyond[0].why}"
    last = larger[-1]
    change = last.measured.steps_per_s / winner.measured.steps_per_s - 1
    best = max(f.measured.steps_per_s for f in larger) / winner.measured.steps_per_s - 1
    if best > FLAT:  # chosen by its return
        how = f"rises by {100 * best:.0f} %"
    elif change < -FLAT and -change <= math.hypot(last.measured.error, winner.measured.error):
        how = f"is the same within the noise up to {last.candidate.num_env:,}"
    elif change < -FLAT:
        how = f"falls by {-100 * change:.0f} % up to {last.candidate.num_env:,}"
    else:
        how = f"is flat up to {last.candidate.num_env:,}"
    grown = last.gib / winner.gib
    memory = f" while memory grows {grown:.1f}x" if grown >= 1.05 else ""
    text = f"beyond num_env {num_env:,} throughput {how}{memory}"
    if failed:
        text += f", and {_next_failed(failed[0].candidate, failed[0].failed)}"
    return text


def _next_failed(candidate: Candidate, failed: Failed) -> str:
    return f"num_env {candidate.num_env:,} {_FAILED[failed.reason]}"


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


def _batch(results: TuneResults, winner: CandidateResult, record: TuneRecord) -> str:
    """Says what tuning made of the learning problem, as was said of the choice if there is one."""
    config = record.header.get("config", {})
    changes = record.choice.get("changes")
    if changes and config.get("tune", {}).get("batch") is None:
        return str(changes)
    samples = {result.candidate.samples for result in results.all}
    ours = winner.candidate.samples
    if len(samples) == 1:
        if len(results.all) == 1:
            return f"an update takes {ours:,} steps"
        return f"the batch stays {ours:,} steps an update, by horizon {winner.candidate.horizon:,}"
    return f"the batch {'stays' if changes == '' else 'is'} {ours:,} steps an update"
