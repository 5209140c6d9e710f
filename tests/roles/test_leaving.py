"""GMIs that leave peers which are lost for good, and the one of them that saves for all."""

from concurrent.futures import ThreadPoolExecutor
from time import time
from types import SimpleNamespace

import pytest

from gmi_drl.comm.shm.tally import create_tally
from gmi_drl.roles.role.heirs import HELD, NOBODY, SAVED, choose_heir
from gmi_drl.roles.role.host import COUNTERS
from gmi_drl.roles.role.job import HEIR
from gmi_drl.roles.role.manager import GMI_manager, GmiContext
from gmi_drl.roles.state.recovery import Snapshots
from gmi_drl.roles.state.training import Training
from waits import until

GMIS = (0, 1, 2)


@pytest.fixture
def tally():
    return create_tally(len(GMIS), COUNTERS).open()


def choice(tally, snapshots, left, heir):
    for gmi_id, snapshot in zip(GMIS, snapshots, strict=True):
        tally[gmi_id, "snapshot"] = snapshot
    return choose_heir(tally, GMIS, left, heir)


@pytest.mark.parametrize(
    ("snapshots", "left", "heir", "chosen"),
    [
        ((0, 0, 0), [0, 1, 2], NOBODY, NOBODY),  # none has come so far
        ((0, HELD, HELD), [0, 1, 2], NOBODY, 1),
        ((HELD, HELD, HELD), [0, 1, 2], 1, 1),  # another one that comes later changes nothing
        ((HELD, HELD, HELD), [1, 2], 0, 1),  # its host is lost
        ((0, HELD, HELD), [0, 1, 2], 0, 1),  # its process is new, and holds nothing
        ((0, HELD, 0), [0, 2], 1, NOBODY),
        ((HELD, SAVED, HELD), [0, 2], 1, 1),  # nobody need save any more
    ],
)
def test_the_heir_is_one_that_can_save_as_long_as_none_has(tally, snapshots, left, heir, chosen):
    assert choice(tally, snapshots, left, heir) == chosen


class Saver:
    """Notes the iterations that are saved."""

    def __init__(self):
        self.saved = []

    def save_alone(self, iteration, shared, manifest):
        self.saved.append((iteration, shared["steps"]))
        return ""


def training_of(gmi_id, tally, monkeypatch, saved=-1):
    """Returns the training of a GMI that has finished iteration 5, and its saver."""
    layout = SimpleNamespace(gmis=[SimpleNamespace(gmi_id=each) for each in GMIS])
    context = object.__new__(GmiContext)
    context.__dict__.update(gmi_id=gmi_id, tally=tally, layout=layout)
    mgr = GMI_manager(gmi_id, context)
    training, state = object.__new__(Training), {
        "learned": {}, "steps": 50, "trained_s": 1.0, "began": 0.0, "metrics": None, "lineage": [],
    }  # fmt: skip
    training._mgr, training._saver, training._saved = mgr, Saver(), saved
    training._snapshots, training._clock = Snapshots(), time
    training._snapshots.keep(5, state)
    training._iteration, training._steps = 5, 50
    monkeypatch.setattr(Training, "_manifest", lambda training: {})
    return training, training._saver


def test_a_gmi_that_becomes_the_heir_after_it_has_left_saves(tally, monkeypatch):
    (second, saver), (third, other_saver) = (
        training_of(gmi_id, tally, monkeypatch) for gmi_id in (1, 2)
    )
    tally[1, "bereft"] = tally[2, "bereft"] = 1
    with ThreadPoolExecutor(2) as threads:
        answers = [threads.submit(training._leave_state) for training in (second, third)]
        until(lambda: tally[1, "snapshot"] == tally[2, "snapshot"] == HELD)
        assert not any(answer.done() for answer in answers)
        tally[1, "bereft"] = HEIR
        results = [answer.result(20) for answer in answers]
    assert results == [{"iteration": 5, "steps": 50, "stopped": True}] * 2
    assert saver.saved == [(5, 50)]
    assert other_saver.saved == []
    assert tally[1, "snapshot"] == SAVED


def test_a_gmi_whose_iteration_a_checkpoint_has_waits_for_nobody(tally, monkeypatch):
    training, saver = training_of(1, tally, monkeypatch, saved=5)
    tally[1, "bereft"], tally[1, "snapshot"] = 1, HELD  # of the process before this one
    assert training._leave_state()["stopped"]
    assert tally[1, "snapshot"] == 0
    assert saver.saved == []
