"""How long the iteration in flight is given to end."""

from types import SimpleNamespace

from gmi_drl.launcher.watch import iteration_times
from gmi_drl.launcher.watch.iteration_times import IterationTimes


def test_three_times_the_longest_iteration_and_ten_seconds(monkeypatch):
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(iteration_times, "time", SimpleNamespace(monotonic=lambda: now.s))
    times = IterationTimes()
    now.s += 500.0  # in which GMIs make their environments, which no later iteration does
    times.begin()
    now.s += 50.0
    times.begin()  # at each look
    assert times.grace_s() == 10.0  # no iteration has ended that one could save
    times.note()
    assert times.grace_s() == 10.0 + 3 * 50.0
    now.s += 20.0
    times.note()
    assert times.grace_s() == 10.0 + 3 * 50.0
    now.s += 60.0  # that in flight is the longest by now
    assert times.grace_s() == 10.0 + 3 * 60.0
