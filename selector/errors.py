"""Defines the errors of tuning and of searches.

RuntimeError
  TuneError          base of what tuning raises
    BudgetTooShort   not one candidate could be measured in the time that is allowed
    NothingMeasured  every candidate that was tried failed
    TunerBusy        another tuner measures on this machine, and did not end in time
    OutputError      what was found could not be written where it should go
    NoiseSourceError a run's noise scale cannot be used for this config
  SearchError        a search cannot be begun or gone on with, or found nothing
ValueError
  RecordError        a file is no journal, or one that this version does not read
"""

from __future__ import annotations

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
    """Every candidate that was tried failed; `args` has a line for each."""

    def __str__(self) -> str:
        tried = "the candidate" if len(self.args) == 1 else f"all {len(self.args)} candidates"
        head = (
            f"nothing could be measured: {tried} that tuning tried failed. Launch one with gmi-drl "
            "launch --set to see more, or allow smaller ones (tune.min_num_env)."
        )
        return "\n  ".join([head, *self.args])


class TunerBusy(TuneError):
    """Another tuner measures on this machine; two at once would measure each other."""


class OutputError(TuneError):
    """A file that tuning is asked to write cannot be written; found out before it measures."""

    command_exit_code = 2


class NoiseSourceError(TuneError):
    """The run that tuning is to start from is none, or another environment's."""

    command_exit_code = 2


class SearchError(GmiDrlError, RuntimeError):
    """A search that cannot be begun, gone on with, or that found nothing."""


class RecordError(GmiDrlError, ValueError):
    """A file is no journal, or one that this version does not read."""

    command_exit_code = 2
