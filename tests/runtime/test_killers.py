"""What the tests of random kills wait with."""

import pytest

import killers
from gmi_drl import runtime


def test_a_wait_goes_on_while_calls_end_and_no_longer(monkeypatch):
    """By a clock that is moved: each look comes 40 seconds after the one before."""
    now, ended, to_come = [0.0], [0], [5]

    def wait(refs, *_):
        now[0] += 40
        if to_come[0]:
            to_come[0] -= 1
            ended[0] += 1
        return [], refs if ended[0] < 9 else []

    monkeypatch.setattr(killers.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(killers, "calls_done", lambda: ended[0])
    monkeypatch.setattr(runtime, "wait", wait)
    with pytest.raises(AssertionError, match="no call has ended for 80 s; 1 to come"):
        killers.wait_while_calls_end(["ref"])
    assert now[0] == 5 * 40 + 80  # five calls ended, 200 seconds; then none
    to_come[0] = 4
    killers.wait_while_calls_end(["ref"])
