"""Looks up what the records of tuning promise for a config. Imports no part of the tuner."""

from __future__ import annotations

import functools
from pathlib import Path

from gmi_drl.launcher.watch.watch import Promise
from gmi_drl.placement import Config, Topology

from .identity import answer_key
from .record import expire, records


def promise_of(config: Config, topology: Topology, beside: Path | None = None) -> Promise | None:
    """Returns what the newest fresh record promises for this resolved config, whoever wrote it.

    Reads records, and looks at no device.
    """
    key: str | None = None
    for record in records():
        if record.fresh and record.promised is not None:
            key = key or answer_key(config, topology, (beside or Path.cwd()).resolve())
            if record.choice.get("answer") == key:
                return Promise(record.promised, record.path, functools.partial(expire, record.path))
    return None
