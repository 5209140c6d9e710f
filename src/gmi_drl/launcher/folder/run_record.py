"""What a launch records in its run's folder, whose disk may be full or hold damaged files."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gmi_drl import runtime
from gmi_drl.runtime.gcs.database import set_aside

from .run_folder import RunFolder


def keep_gcs_in(path: Path) -> None:
    """Record who ran what in the run's folder; what an earlier session left damaged is kept."""
    try:
        try:
            runtime.keep_gcs(path)
        except runtime.DamagedStoreError as error:
            aside = set_aside(path)
            runtime.keep_gcs(path)
            warnings.warn(f"{path}: damaged ({error.reason}). It is kept as {aside.name}, and a "
                          "new record of who ran what was begun.", stacklevel=3)  # fmt: skip
    except runtime.GcsError as error:
        warnings.warn(f"{path.parent}: who ran what is not kept ({error})", stacklevel=3)


def note(folder: RunFolder, **changes: Any) -> None:
    """Write down how a run ended; a full disk costs that, and not the run."""
    try:
        folder.update(**changes)
    except OSError as error:
        told = f"{folder.path}: run.json does not say how the run ended ({error}). Free some space."
        warnings.warn(told, stacklevel=3)


def figure(known: Mapping[str, Any], key: str) -> float:
    """A number of run.json, which may be of an earlier launch and damaged; 0 if it is none."""
    value = known.get(key)
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1e18 else 0.0
