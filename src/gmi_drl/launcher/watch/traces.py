"""Finds the traces of a profiled run, and says where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from gmi_drl.gmi.process import grouped
from gmi_drl.placement import Config, Layout
from gmi_drl.roles.telemetry.phases import FIRST, FOLDER, LAST, SUFFIX

BEGINNING: Final = (
    f"profiled: iterations {FIRST} to {LAST} of each GMI are recorded. They take longer, and so "
    "does what waits for them: do not go by this run's steps/s."
)


def traced_gmis(config: Config, layout: Layout) -> frozenset[int]:
    """Names the GMIs that record a trace: of each process the first."""
    if not config.run.profile:
        return frozenset()
    processes = grouped(layout, [gmi.gmi_id for gmi in layout.gmis])
    return frozenset(specs[0].gmi_id for specs in processes)


@contextmanager
def new_traces(config: Config, folder: Path) -> Iterator[Callable[[], tuple[Path, ...]]]:
    """Yields what finds the traces that processes write in this block.

    They are in the order of their GMIs; those of an earlier launch are not among them. What was
    begun by processes that were killed at it goes in the end. Whatever the disk does, the run goes
    on.
    """
    if not config.run.profile:
        yield tuple
        return
    before = _written(folder)
    try:
        yield lambda: tuple(
            path for path, when in _written(folder).items() if before.get(path) != when
        )
    finally:
        with suppress(OSError):
            for path in (folder / FOLDER).glob(f".gmi*{SUFFIX}.*"):
                path.unlink()


def where(traces: Sequence[Path]) -> str:
    """Says where they are and how to open them, in a line."""
    number = "1 file" if len(traces) == 1 else f"{len(traces)} files"
    return f"{traces[0].parent}: {number}, for https://ui.perfetto.dev (docs/profiling.md)"


def _written(folder: Path) -> dict[Path, int]:
    """The traces in a run's folder, in the order of their GMIs, and when each was written."""
    there = (folder / FOLDER).glob(f"gmi*{SUFFIX}")
    numbers = {path: path.name.removeprefix("gmi").removesuffix(SUFFIX) for path in there}
    ours = [path for path, number in numbers.items() if number.isdecimal() and path.is_file()]
    ours.sort(key=lambda path: int(numbers[path]))
    return {path: path.stat().st_mtime_ns for path in ours}
