"""What GMIs keep for each other, and how a group agrees on where to go on."""

import errno
import json
import os

import pytest
import torch

import bodies_roles as bodies
from gmi_drl.comm import solo_group
from gmi_drl.roles.state import checkpoint
from gmi_drl.roles.state.recovery import Snapshots, agree, spread
from gmi_drl.roles.telemetry.progress import MetricsLog
from ranks import run_ranks


def state(number):
    return {
        "tensors": [torch.full((5,), float(number)), torch.tensor(number)],
        "nested": {0: {"lr": 0.1 * number, "betas": (0.9, 0.999)}, "none": None},
    }


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and all(map(same, a, b))
    return bool(a == b)


def test_the_last_two_states_are_kept_whatever_becomes_of_the_originals():
    kept, living = Snapshots(), state(0)
    assert kept.newest == -1
    for number in range(6):
        living["tensors"][0].fill_(number)
        living["tensors"][1].fill_(number)
        living["nested"][0]["lr"] = 0.1 * number
        kept.keep(number, living)
    assert kept.newest == 5
    living["tensors"][0].fill_(-1)
    assert same(kept.get(5), state(5))
    assert same(kept.get(4), state(4))
    assert kept.get(3) is None


def test_keeping_again_takes_no_new_memory():
    kept, addresses = Snapshots(), set()
    for number in range(10):
        kept.keep(number, state(number))
        addresses.add(kept.get(number)["tensors"][0].data_ptr())
    assert len(addresses) == 3  # two that are kept, one that is written


def test_a_state_that_changes_its_shape_is_kept_all_the_same():
    kept = Snapshots()
    for number, size in enumerate([0, 3, 3, 7, 2]):
        kept.keep(number, {"optimizer": {} if size == 0 else {"m": [torch.ones(size)] * size}})
    assert same(kept.get(4), {"optimizer": {"m": [torch.ones(2)] * 2}})


def test_after_going_back_the_iterations_beyond_are_forgotten():
    kept = Snapshots()
    for number in (3, 4):
        kept.keep(number, state(number))
    kept.forget_after(3)
    assert kept.newest == 3
    kept.keep(3, state(33))
    assert same(kept.get(3), state(33))


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ([[4, 5], [4, 5]], (5, 0)),
        ([[4, 5], [3, 4]], (4, 0)),  # the first is an iteration ahead
        ([[], [4, 5], [3, 4]], (4, 1)),  # and rank 0 has come anew
        ([[], [0]], (0, 1)),
        ([[], []], None),
    ],
)
def test_the_newest_state_that_all_survivors_have_reached_is_agreed_on(held, expected):
    assert run_ranks(bodies.agree_on, len(held), held) == [expected] * len(held)


@pytest.mark.parametrize("numel", [0, 1, 300_000, 1_000_003])
def test_a_state_reaches_everybody_bit_for_bit(numel):
    for bits, rest in run_ranks(bodies.spread_state, 3, 1, numel):
        assert bits == bodies.bits_of(numel)
        assert rest == {"lr": 0.1, "none": None, "list": [1, [2.5, "s"]]}


def test_a_group_of_one_has_nobody_to_agree_with():
    group, kept = solo_group(), Snapshots()
    assert agree(group, kept) is None
    kept.keep(7, state(7))
    assert agree(group, kept) == (7, 0)
    assert same(spread(group, 0, kept.get(7)), state(7))


# What a killed process leaves on the disk ----------------------------------------------------


def write(folder, iteration, session="now"):
    checkpoint.begin(folder, iteration)
    checkpoint.write_part(folder, iteration, "shared", {"iteration": iteration})
    return checkpoint.commit(folder, iteration, {"session": session})


def newest_of(folder, session):
    found = checkpoint.newest(folder, lambda manifest: manifest["session"] == session)
    return found and found.folder


def test_checkpoints_of_other_launches_are_not_read(tmp_path, monkeypatch):
    """A replay in them may be many GB, and each GMI would read all of them at a resume."""
    write(tmp_path, 2, "before")
    write(tmp_path, 4, "before")
    monkeypatch.setattr(checkpoint, "_sha256", None)
    assert newest_of(tmp_path, "now") is None


@pytest.mark.parametrize("committed", [False, True])
def test_a_checkpoint_that_was_being_written_is_none(tmp_path, monkeypatch, committed):
    whole = write(tmp_path, 2)
    checkpoint.begin(tmp_path, 4)
    checkpoint.write_part(tmp_path, 4, "shared", {})
    if committed:  # and was killed over it
        monkeypatch.setattr(checkpoint, "_take_digest", None)
        with pytest.raises(TypeError):
            checkpoint.commit(tmp_path, 4, {"session": "now"})
    monkeypatch.undo()
    assert newest_of(tmp_path, "now") == whole
    checkpoint.mend(tmp_path)
    assert list(tmp_path.iterdir()) == [whole]


def test_a_commit_that_was_cut_off_between_its_renames_is_undone(tmp_path):
    whole = write(tmp_path, 2)
    checkpoint.begin(tmp_path, 2)
    checkpoint.write_part(tmp_path, 2, "shared", {"iteration": "again"})
    whole.rename(tmp_path / f".{whole.name}.old")  # as commit does, and then it was killed
    assert newest_of(tmp_path, "now") is None
    checkpoint.mend(tmp_path)
    assert newest_of(tmp_path, "now") == whole
    assert checkpoint.find(whole).load("shared") == {"iteration": 2}
    assert list(tmp_path.iterdir()) == [whole]


def test_the_old_one_goes_when_the_commit_had_come_through(tmp_path):
    whole = write(tmp_path, 2)
    old = tmp_path / f".{whole.name}.old"
    old.mkdir()
    checkpoint.mend(tmp_path)
    assert list(tmp_path.iterdir()) == [whole]


def test_only_checkpoints_of_this_launch_count_and_only_whole_ones(tmp_path):
    mine, other, torn = write(tmp_path, 2), write(tmp_path, 4, "before"), write(tmp_path, 6)
    (torn / "shared.pt").write_bytes(b"torn")
    assert newest_of(tmp_path, "now") == mine
    assert newest_of(tmp_path, "before") == other
    assert newest_of(tmp_path, "another") is None


def line(iteration):
    return {"iteration": iteration, "kl": 0.5}


@pytest.mark.parametrize(
    ("there", "iteration", "expected"),
    [
        ([1, 2, 3], 3, [1, 2, 3]),  # nothing is missing
        ([1, 2, 3], 2, [1, 2]),  # what is made again goes
        ([1, 2], 3, [1, 2, 3]),  # the writer was killed before it wrote
        ([], 0, []),
    ],
)
def test_the_metrics_go_on_without_gap_or_double(tmp_path, there, iteration, expected):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(line(number)) + "\n" for number in there) + '{"iter')
    MetricsLog(tmp_path, iteration, line(iteration) if iteration else None, print).close()
    found = [json.loads(text) for text in path.read_text().splitlines()]
    assert found == [line(number) for number in expected]


def test_metrics_that_cannot_be_cut_back_are_left_as_they_are(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    text = "".join(json.dumps(line(number)) + "\n" for number in (1, 2, 3))
    path.write_text(text)

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    told = []
    log = MetricsLog(tmp_path, 2, None, told.append)
    assert "metrics are no longer written: [Errno 28] No space left" in told.pop()
    log.write(line(3))
    log.close()
    assert path.read_text() == text
    assert os.listdir(tmp_path) == ["metrics.jsonl"]
    log = MetricsLog(tmp_path, 3, None, told.append)  # nothing to cut, so that no room is needed
    assert told == []
    log.close()
