"""Tells what the GMIs of a run have held of their devices, in numbers and in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gmi_drl.placement.memory_share import memory_share

if TYPE_CHECKING:
    from gmi_drl.placement import Layout
    from gmi_drl.roles.role.host import Job

_UNITS: Final = (("GiB", 1 << 30), ("MiB", 1 << 20))


def memory_held(job: Job) -> dict[str, list[int]]:
    """Reads, by gmi_id, what each GMI has held of its device.

    The most bytes in all its lives; what the driver said that its process held when it ended (0: it
    did not say); and the SMs that it had (0: no GPU's).
    """
    tally = job.tally.open()
    rows = [tally.row(gmi.gmi_id) for gmi in job.layout.gmis]
    names = ("mem_peak_bytes", "mem_process_bytes", "sm_count")
    return {name: [row[name] for row in rows] for name in names}


def bytes_text(nbytes: int) -> str:
    """Words a number of bytes: 1.25 GiB, 310 MiB."""
    for unit, size in _UNITS:
        if nbytes >= size:
            return f"{nbytes / size:.2f} {unit}" if unit == "GiB" else f"{nbytes / size:.0f} {unit}"
    return f"{nbytes} bytes"


def peak_summary(peaks: Sequence[int]) -> str:
    """Names the GMI that held most: "1.25 GiB (GMI 3)"."""
    most = max(range(len(peaks)), key=peaks.__getitem__)
    return f"{bytes_text(peaks[most])} (GMI {most})"


def peak_cells(peaks: object, layout: Layout) -> list[str]:
    """Words what each GMI has held at most, of its share where it has one.

    None if `peaks` is no list of a number for each GMI.
    """
    if not isinstance(peaks, list) or len(peaks) != len(layout.gmis):
        return []
    if not all(isinstance(peak, int) for peak in peaks):
        return []
    shares = [memory_share(layout, gmi.gmi_id) for gmi in layout.gmis]
    return [
        bytes_text(peak) + ("" if share is None else f" of {bytes_text(share.nbytes)}")
        for peak, share in zip(peaks, shares, strict=True)
    ]
