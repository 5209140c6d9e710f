"""Warnings that modules of a GMI log: in its own log, and told to the launcher once each."""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Final, TextIO

from gmi_drl import runtime

_LOGGER: Final = "gmi_drl"
_NUMBER: Final = re.compile(r"\d+")


class _Teller(logging.StreamHandler[TextIO]):
    """Of one GMI: of what others log, that are threads of the same process, it tells nothing."""

    gmis: ClassVar[set[int]] = set()  # the threads of this process that are GMIs

    def __init__(self, gmi_id: int) -> None:
        super().__init__(sys.stderr)  # the GMI's log
        self.setLevel(logging.WARNING)
        self._gmi_id, self.thread = gmi_id, threading.get_ident()
        self._told: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread in self.gmis - {self.thread}:
            return
        super().emit(record)
        text = record.getMessage()
        if (known := _NUMBER.sub("#", text)) not in self._told:  # counts go up
            self._told.add(known)
            runtime.emit({"kind": "warning", "message": f"gmi {self._gmi_id}: {text}"})


@contextmanager
def told_warnings(gmi_id: int) -> Iterator[None]:
    """Tells the launcher what is logged as `gmi_drl.*` in this block, warnings and worse.

    Of those that differ in numbers alone, the first one. All of them go to stderr.
    """
    logger, teller = logging.getLogger(_LOGGER), _Teller(gmi_id)
    teller.gmis.add(teller.thread)
    logger.addHandler(teller)
    try:
        yield
    finally:
        logger.removeHandler(teller)
        teller.gmis.discard(teller.thread)
