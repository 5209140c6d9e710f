"""What the tests of tuning share; a file that has fixtures by these names has its own."""

import pytest

from gmi_drl.placement import Topology
from gmi_drl.selector.tune import session as measuring
from gmi_drl.selector.tune import tuning
from tune_machine import CONFIG, Machine, on_devices, written


@pytest.fixture
def machine(monkeypatch):
    """One that needs no process, with two cores."""
    found = Machine()
    monkeypatch.setattr(measuring, "Profiler", found)
    monkeypatch.setattr(measuring.runtime, "is_initialized", lambda: True)
    monkeypatch.setattr(measuring, "busy_cores", lambda cores: 0.0)
    monkeypatch.setattr(tuning.tune_picture, "draw", lambda recorded, folder: [])
    on_devices(monkeypatch, Topology.from_cores(range(2)))
    return found


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A config's file, in a folder of its own, with nothing on record."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return written(tmp_path / "auto.yaml", CONFIG)
