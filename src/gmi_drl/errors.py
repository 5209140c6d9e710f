"""Holds the base of every error that gmi-drl raises. Imports nothing of gmi_drl."""

from __future__ import annotations

from typing import Any, ClassVar


class GmiDrlError(Exception):
    """Says what gmi-drl could not do; its text needs no traceback.

    Raised with a text, or with the value, the rule that it breaks and the remedy, which make the
    text. Each package derives its own base from this one and from RuntimeError or ValueError.
    """

    # Of a command that the error ends: 1 a failure, 2 bad input. Not `exit_code`, which errors of
    # a dead process have of that process.
    command_exit_code: ClassVar[int] = 1

    # Whether it only tells that another process has gone or failed. Of several failures at once a
    # gang names one that is not of this kind as the first.
    caused_by_peer: ClassVar[bool] = False

    value: Any = None
    rule: str = ""
    remedy: str = ""

    def __init__(
        self, *args: object, value: object = None, rule: str = "", remedy: str = ""
    ) -> None:
        super().__init__(*args)
        if rule:
            self.value, self.rule, self.remedy = value, rule, remedy

    def __str__(self) -> str:
        if self.args or not self.rule:
            return super().__str__()
        return f"{self.value}: {self.rule}. {self.remedy}"
