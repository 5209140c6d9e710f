"""Defines the errors of tuning and of searches.

RuntimeError
  TuneError          base of what tuning raises
    BudgetTooShort   not one candidate could be measured in the time that is allowed
    NothingMeasured  every candidate that was tried failed
    TunerBusy        another tuner measures on this machine, and did not end in time
    OutputError      what was found could not be written where it should go
  SearchError        a search cannot be begun or gone on with, or found nothing
ValueError
  RecordError        a file is no journal, or one that this version does not read
"""

from __future__ import annotations

from collections.abc import Sequence

from gmi_drl.errors import GmiDrlError


class TuneError(GmiDrlError, RuntimeError):
    """Base of what tuning raises."""


class BudgetTooShort(TuneError):
    """The budget does not hold one measurement; `needed_s` is what one took, or takes at least."""

    command_exit_code = 2

    def __init__(self, budget_s: float, needed_s: float, took: bool) -> None:
        super().__init__(budget_s, needed_s, took)
        self.budget_s, self.needed_s, self.took = budget_s, needed_s, took

    def __str__(self) -> str:
        one = f"took {self.needed_s:.1f} s" if self.took else f"needs {self.needed_s:.1f} s or more"
        enough = max(60, 20 * round(self.needed_s))
        return (
            f"tune.budget_s={self.budget_s:g}; one measurement {one}, and a search makes some "
            f"twenty. Give it more, for example --budget {enough}s."
        )


class NothingMeasured(TuneError):
    """Every candidate that was tried failed; `reasons` has a line for each."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__(tuple(reasons))
        self.reasons = tuple(reasons)

    def __str__(self) -> str:
        tried = "the candidate" if len(self.reasons) == 1 else f"all {len(self.reasons)} candidates"
        head = (
            f"nothing could be measured: {tried} that tuning tried failed. Launch one with gmi-drl "
            "launch --set to see more, or allow smaller ones (tune.min_num_env)."
        )
        return "\n  ".join([head, *self.reasons])


class TunerBusy(TuneError):
    """Another tuner measures on this machine; two at once would measure each other."""

    def __init__(self, holder: str, waited_s: float) -> None:
        super().__init__(holder, waited_s)
        self.holder, self.waited_s = holder, waited_s

    def __str__(self) -> str:
        return (
            f"{self.holder} measures on this machine, and has not ended in {self.waited_s:g} s; "
            "one tuner measures at a time. Wait for it, or end it."
        )


class OutputError(TuneError):
    """A file that tuning is asked to write cannot be written; found out before it measures."""

    command_exit_code = 2


class SearchError(GmiDrlError, RuntimeError):
    """A search that cannot be begun, gone on with, or that found nothing."""


class RecordError(GmiDrlError, ValueError):
    """A file is no journal, or one that this version does not read."""

    command_exit_code = 2
