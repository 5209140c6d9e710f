"""A run that chaos.py strikes has until its deadlines, and longer only while it is to work."""

import itertools

import pytest


@pytest.fixture
def chaos_run(suite):
    import chaos_run

    return chaos_run


class _Working:
    """A run that comes on whenever it is looked at."""

    def __init__(self, chaos_run, monkeypatch):
        self.run, count = object.__new__(chaos_run.Run), itertools.count()
        monkeypatch.setattr(self.run, "progress", lambda: next(count), raising=False)

    def until(self, looks, **how):
        left = iter(range(looks))
        self.run.until(lambda: next(left, None) is None, "the end", 0.0, **how)


def test_work_that_comes_on_puts_a_deadline_off(chaos_run, monkeypatch):
    _Working(chaos_run, monkeypatch).until(looks=3)


def test_a_run_that_is_to_end_has_no_longer_for_its_work(chaos_run, monkeypatch):
    with pytest.raises(chaos_run.Fault, match="not within 0 s: the end"):
        _Working(chaos_run, monkeypatch).until(looks=3, works=False)
