"""The traces of a profiled run as the launcher sees them: their folder, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from gmi_drl.gmi.process import grouped
from gmi_drl.placement import Config, Layout
from gmi_drl.roles.phases import FIRST, FOLDER, LAST, SUFFIX

BEGINNING: Final = (
    f"profiled: iterations {FIRST} to {LAST} of each GMI are recorded. They take longer, and so "
    "does what waits for them: do not go by this run's steps/s."
)


def traced_gmis(config: Config, layout: Layout) -> frozenset[int]:
    """The GMIs that record a trace: of each process the first."""
    if not config.run.profile:
        return frozenset()
    processes = grouped(layout, [gmi.gmi_id for gmi in layout.gmis])
    return frozenset(its[0].gmi_id for its in processes)


@contextmanager
def room_for_traces(config: Config, folder: Path) -> Iterator[None]:
    """A folder for the traces of a run, if it is profiled; around all that its processes do.

    What an earlier launch of the run has left there goes first, and in the end what was begun by
    processes that were killed at it. Whatever the disk does, the run goes on.
    """
    if not config.run.profile:
        yield
        return
    with suppress(OSError):
        (folder / FOLDER).mkdir(exist_ok=True)
        _delete(folder, f"gmi*{SUFFIX}")
    try:
        yield
    finally:
        with suppress(OSError):
            _delete(folder, f".gmi*{SUFFIX}.*")


def traces_in(folder: Path) -> tuple[Path, ...]:
    """The traces of a run, in the order of their GMIs."""
    found = (path for path in (folder / FOLDER).glob(f"gmi*{SUFFIX}") if path.is_file())
    return tuple(sorted(found, key=_gmi_id))


def where(traces: Sequence[Path]) -> str:
    """Where they are and how to open them, in a line."""
    number = "1 file" if len(traces) == 1 else f"{len(traces)} files"
    return f"{traces[0].parent}: {number}, for https://ui.perfetto.dev (docs/profiling.md)"


def _delete(folder: Path, pattern: str) -> None:
    for path in (folder / FOLDER).glob(pattern):
        path.unlink()


def _gmi_id(path: Path) -> int:
    return int(path.name.removeprefix("gmi").removesuffix(SUFFIX))
