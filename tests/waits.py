"""Waiting for a state, for as long as a busy machine may take to come to it."""

import time


def until(holds, what="it", within_s=40.0, shown=lambda: ""):
    """Returns what `holds()` gives once it is true; else fails in time, with `shown()`."""
    deadline_s = time.monotonic() + within_s
    while not (given := holds()):
        late = time.monotonic() > deadline_s
        assert not late, f"{what} did not come to be in {within_s:g} s: {shown()}"
        time.sleep(0.005)  # between two looks
    return given
