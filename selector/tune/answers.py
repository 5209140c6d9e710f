"""Several measurements of one candidate as one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from .candidate import Measured

LEAST_ERROR: Final = 0.002  # relative: nothing is known better than this
_MOST_ERROR: Final = 1.0  # and nothing counts for less than an answer that may be anything
DOUBT: Final = 2.0  # standard errors: what differs by less is within the noise
_WEAK: Final = 0.1  # relative error above which a measurement decides nothing
_SHORT_S: Final = 1.0  # of training; less does not show how a machine varies


def weight(one: Measured) -> float:
    """How much an answer counts beside others: 1 / error^2."""
    return 1 / min(max(one.error, LEAST_ERROR), _MOST_ERROR) ** 2


def rate_of(answers: Sequence[Measured]) -> tuple[float, float]:
    """The mean steps/s of one answer or more by their weight, and its relative standard error."""
    weights = [weight(one) for one in answers]
    mean = sum(w * one.steps_per_s for w, one in zip(weights, answers, strict=True)) / sum(weights)
    return mean, 1 / math.sqrt(math.fsum(weights))


def combined(answers: Sequence[Measured]) -> Measured:
    """All that several say: throughput as by `rate_of`; a single one as it is.

    Memory is the most that was seen; the rest is of the longest measurement.
    """
    if len(answers) == 1:
        return answers[0]
    rate, error = rate_of(answers)
    devices = [a.device_bytes for a in answers if a.device_bytes is not None]
    return replace(
        max(answers, key=lambda a: a.seconds),
        steps_per_s=rate,
        error=error,
        iterations=sum(a.iterations for a in answers),
        seconds=sum(a.seconds for a in answers),
        host_bytes=max(a.host_bytes for a in answers),
        device_bytes=max(devices, default=None),
        memory=max(a.memory for a in answers),
    )


def margin(one: Measured, other: Measured) -> float:
    """The difference of two in steps/s that noise explains."""
    return DOUBT * math.hypot(one.error * one.steps_per_s, other.error * other.steps_per_s)


def apart(one: Measured, other: Measured) -> bool:
    """Whether they differ by more than noise explains."""
    return abs(one.steps_per_s - other.steps_per_s) > margin(one, other)


def is_weak(one: Measured) -> bool:
    """Whether it was measured too short, or is too uncertain, to decide by."""
    return one.error > _WEAK or one.seconds < _SHORT_S
