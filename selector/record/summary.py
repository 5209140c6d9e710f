"""The choice of a tune in one sentence: what it is, by how much, and why not more."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from gmi_drl.placement import counted
from gmi_drl.selector.tune.answers import apart, is_weak, margin
from gmi_drl.selector.tune.candidate import Candidate, Failed, Measured
from gmi_drl.selector.tune.known import usable
from gmi_drl.selector.tune.race import judged_from

from .findings import (
    FLAT,
    Finding,
    Findings,
    candidate_text,
    count_text,
    marks_of,
    told_apart,
)

if TYPE_CHECKING:
    from .record import Recorded

_FAILED: Final = {
    "memory": "runs out of memory",
    "crash": "crashes",
    "hang": "hangs",
    "refused": "is refused",
    "slow": "takes longer for an update than was allowed",
}


def headline(recorded: Recorded) -> str:
    """What was tuned, and what was chosen."""
    findings = recorded.findings()
    env = recorded.header.get("env")
    what = f"{env}: " if env else ""
    if findings.winner is None:
        return f"{what}nothing could be measured"
    chosen = candidate_text(findings.winner.candidate, findings.rows)
    its = findings.winner.measured
    text = f"{what}{chosen}, {its.steps_per_s:,.0f} steps/s ± {100 * its.error:.1f} %"
    return text if recorded.chosen else f"{text} so far"


def why(recorded: Recorded) -> str:
    """The sentence, which ends with a full stop. Numbers are of this record's measurements."""
    findings = recorded.findings()
    winner = findings.winner
    if winner is None:
        return f"Nothing could be measured: {_count(findings, recorded)}."
    row = winner.candidate.row
    marks = ", ".join(marks_of(row, findings.rows))
    devices = recorded.header.get("devices", 1)
    where = "per device" if devices == 1 else f"on each of {devices} devices"
    per = f"{count_text(row)} {where}{f' ({marks})' if marks else ''}"
    per += f" with num_env {winner.candidate.num_env:,}"
    verb = "serve" if recorded.header.get("mode") == "serving" else "train"
    verb += "" if row.gmi_per_gpu > 1 or devices > 1 else "s"
    parts = [f"{per} {verb} {winner.measured.steps_per_s:,.0f} steps/s{_against(findings, winner)}"]
    if recorded.races and all(its.return_mean is None for its in judged_from(recorded)):
        parts.append("no episode ended while they raced, so that steps/s decided")
    elif recorded.chosen and (recorded.races or winner is not findings.fastest):
        parts.append(recorded.chosen.why)
    parts.append(_beyond(findings, winner))
    if recorded.header.get("mode") != "serving":
        parts.append(_batch(findings, winner, recorded))
    text = "; ".join(part for part in parts if part)
    if not recorded.chosen:
        text += "; nothing is chosen yet: the tune is at work, or was ended and goes on when asked"
    return f"{text}."


def is_sure(recorded: Recorded) -> bool:
    """Whether a second tune would choose the same: by a search that came to its end, and beyond
    the noise. A race is run with one seed, and proves nothing."""
    findings, chosen = recorded.findings(), recorded.chosen
    if findings.winner is None or chosen is None or not chosen.complete or recorded.races:
        return False
    return not findings.as_fast and not is_weak(findings.winner.measured)


def sureness(recorded: Recorded) -> str:
    """How far the choice can be trusted, with the numbers; empty if nothing could be measured."""
    findings, chosen = recorded.findings(), recorded.chosen
    winner, near = findings.winner, findings.as_fast
    if winner is None:
        return ""
    its = winner.measured
    parts = [_count(findings, recorded), f"the choice does {_spread(its)}"]
    if len(findings.all) == 1:
        parts.append("there is nothing to hold it against")
    elif not near:
        parts.append("each of the others differs by more than the noise")
    else:
        nearest = min(near, key=lambda one: abs(one.measured.steps_per_s - its.steps_per_s))
        parts.append(
            f"{len(near)} of {counted(len(findings.all) - 1, 'other')} may be as fast, the nearest "
            f"({candidate_text(nearest.candidate, findings.rows)}) with "
            f"{_spread(nearest.measured)}"
        )
    if recorded.own is None and _says_all(recorded):
        parts.append("the config as given was not measured")
    if recorded.races:
        parts.append("the race was run once, with one seed")
    if is_weak(its) or (chosen is not None and not chosen.complete):
        parts.append("a longer tune is surer (--budget)")
    return f"How sure it is: {'; '.join(parts)}."


def _says_all(recorded: Recorded) -> bool:
    """Whether the config that was tuned left nothing open."""
    config = recorded.header.get("config") or {}
    both = (config.get("layout", {}).get("gmi_per_gpu"), config.get("env", {}).get("num_env"))
    return all(isinstance(one, int) for one in both)


def _spread(one: Measured) -> str:
    return f"{one.steps_per_s:,.0f} steps/s ± {100 * one.error:.1f} % ({one.seconds:.1f} s)"


def _against(findings: Findings, winner: Finding) -> str:
    parts = []
    for name, other in told_apart(findings):
        if other is winner:
            continue
        its, held = winner.measured, other.measured
        ratio = its.steps_per_s / held.steps_per_s
        whom = name.replace(", ", " and ")
        whom = f"the {whom} ({candidate_text(other.candidate, findings.rows)})"
        if not apart(its, held):
            noise = 100 * margin(its, held) / held.steps_per_s
            parts.append(f"as many as {whom} within the noise of {noise:.1f} %")
        elif is_weak(its) or is_weak(held):
            parts.append(f"{'more' if ratio > 1 else 'less'} than {whom}, by how much is not sure")
        elif ratio >= 1.5:
            parts.append(f"{ratio:.1f} times {whom}")
        else:
            more = "more" if ratio > 1 else "less"
            parts.append(f"{100 * abs(ratio - 1):.1f} % {more} than {whom}")
    text = ", which is the config as given" if winner.candidate == findings.own else ""
    text += ", " + " and ".join(parts) if parts else ""
    for failure in findings.failures:
        if failure.candidate == findings.own:
            own = candidate_text(failure.candidate, findings.rows)
            text += f"; the config as given ({own}) {_FAILED[failure.failed.reason]}"
    return text


def _beyond(findings: Findings, winner: Finding) -> str:
    """Why not more environments of each GMI."""
    num_env = winner.candidate.num_env
    its = findings.rows[winner.candidate.row]
    failed = [
        failure
        for failure in findings.failures
        if failure.candidate.row == winner.candidate.row and failure.candidate.num_env > num_env
    ]
    larger = [finding for finding in its if finding.candidate.num_env > num_env]
    lasting = usable({f.candidate: f.measured for f in its}, {f.candidate for f in failed})
    full = [finding for finding in larger if finding.candidate not in lasting]
    larger = [finding for finding in larger if finding.candidate in lasting]
    if not larger and failed:
        return _next_failed(failed[0].candidate, failed[0].failed)
    if not larger and full:
        first = full[0].candidate
        return f"num_env {first.num_env:,} fills {full[0].measured.memory:.0%} of the memory"
    if not larger:
        out = findings.chosen.skipped if findings.chosen else ()
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


def _count(findings: Findings, recorded: Recorded) -> str:
    size = recorded.header.get("space_size")
    tried, of = findings.tried, f" of {size:,}" if isinstance(size, int) else ""
    noun = "candidates were" if of or tried != 1 else "candidate was"
    text = f"{tried:,}{of} {noun} measured in {duration(recorded.spent_s)}"
    if findings.failures:
        text += f" ({len(findings.failures)} failed)"
    if recorded.chosen and not recorded.chosen.complete:
        text += ", which is what the budget allowed"
    return text


def _batch(findings: Findings, winner: Finding, recorded: Recorded) -> str:
    """Whether tuning changed the learning problem: what was said of the choice, if there is one."""
    config = recorded.header.get("config", {})
    changes = recorded.choice.get("changes")
    if changes and config.get("tune", {}).get("batch") is None:
        return str(changes)
    samples = {finding.candidate.samples for finding in findings.all}
    its = winner.candidate.samples
    if len(samples) == 1:
        if len(findings.all) == 1:
            return f"an update takes {its:,} steps"
        return f"the batch stays {its:,} steps an update, by horizon {winner.candidate.horizon:,}"
    base = findings.base
    if changes == "":
        return f"the batch stays {its:,} steps an update"
    given = config.get("env", {}).get("num_env", "auto")
    if given != "auto" or base is None or base is winner:
        return f"the batch is {its:,} steps an update"
    if base.candidate.samples == its:
        return f"the batch is {its:,} steps an update, as with the {findings.base_name}"
    change = "grows" if its > base.candidate.samples else "shrinks"
    return f"the batch {change} from {base.candidate.samples:,} steps an update to {its:,}"


def duration(seconds: float) -> str:
    """72.4 -> 1:12."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
