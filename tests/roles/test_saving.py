"""A disk that is full: the policy alone is saved where not all of a checkpoint can be."""

import errno
import resource

import pytest
import torch

import bodies_roles as bodies
from gmi_drl.comm import solo_group
from gmi_drl.roles.errors import CheckpointError
from gmi_drl.roles.state import checkpoint
from gmi_drl.roles.state.saving import Saver
from gmi_drl.runtime.cache_files import replace_file
from ranks import run_ranks

LARGE = {"moments": torch.zeros(100_000)}


def shared(whole):
    return {"parameters": torch.arange(100.0)} | (LARGE if whole else {})


@pytest.fixture
def saver(tmp_path):
    return Saver(tmp_path, 0, solo_group(), "now")


def save(saver, iteration):
    return saver.save(iteration, {"generator": torch.zeros(3)}, shared, {"gmis": [[0, 8]]})


def left(run):
    return sorted(path.name for path in (run / "checkpoints").iterdir())


@pytest.fixture
def files_of_64_kb():
    """No file may grow beyond: EFBIG, by the kernel."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def fails(monkeypatch, *writes):
    """From now on these writes, counted from 0, find no room; what each of them was."""
    written = []

    def counted(path, content):
        written.append(path.name)
        if len(written) - 1 in writes:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace_file(path, content)

    monkeypatch.setattr(checkpoint, "replace_file", counted)
    return written


def test_a_disk_with_room_for_the_policy_alone_keeps_it(tmp_path, saver, files_of_64_kb):
    exists, told = save(saver, 5)
    assert exists
    assert "iteration 5 was not written: OSError: [Errno 27] File too large" in told
    assert f"was saved in {tmp_path}/checkpoints/iteration_000005" in told
    found = checkpoint.find(tmp_path)
    assert found.policy_only
    assert torch.equal(found.load("shared")["parameters"], torch.arange(100.0))
    assert left(tmp_path) == ["iteration_000005"]


@pytest.mark.parametrize("write", [0, 1, 2])
def test_whichever_write_finds_no_room_the_policy_is_saved(tmp_path, saver, monkeypatch, write):
    opened = fails(monkeypatch, write)
    exists, told = save(saver, 5)
    assert exists
    assert "No space left" in told
    assert opened[write:] == [
        ["gmi0.pt", "shared.pt", "manifest.json"][write], "shared.pt", "manifest.json",
    ]  # fmt: skip
    assert checkpoint.find(tmp_path).policy_only
    assert left(tmp_path) == ["iteration_000005"]
    files = [path.name for path in (tmp_path / "checkpoints" / "iteration_000005").iterdir()]
    assert sorted(files) == ["manifest.json", "shared.pt"]


def test_a_disk_without_any_room_says_that_there_is_no_checkpoint(tmp_path, saver, monkeypatch):
    fails(monkeypatch, 0, 1)
    exists, told = save(saver, 5)
    assert not exists
    assert "policy alone could not be written either: OSError: [Errno 28]" in told
    assert f"There is no checkpoint in {tmp_path}/checkpoints: a policy that ends now" in told
    assert "whole" not in told
    assert left(tmp_path) == []


def test_complete_ones_are_named_and_stay_until_a_newer_complete_one(tmp_path, saver, monkeypatch):
    for iteration in (1, 2, 3):
        assert save(saver, iteration) == (True, "")
    for iteration, writes in ((4, (0, 1)), (5, (0,))):  # room is made once, and it tried again
        fails(monkeypatch, *writes)
        exists, told = save(saver, iteration)
        assert exists
        assert f"newest complete checkpoint is {tmp_path}/checkpoints/iteration_000003" in told
    names = [f"iteration_00000{i}" for i in (3, 5)]
    assert left(tmp_path) == names
    fails(monkeypatch, 0, 1)
    assert save(saver, 6)[0] is False
    assert left(tmp_path) == names
    monkeypatch.undo()
    assert save(saver, 7) == (True, "")
    assert left(tmp_path) == [f"iteration_00000{i}" for i in (3, 7)]


def test_older_ones_make_room_for_a_complete_one(tmp_path, saver, monkeypatch):
    for iteration in (1, 2, 3):
        assert save(saver, iteration) == (True, "")
    fails(monkeypatch, 1)
    told = "For room these were removed: iteration_000001, iteration_000002."
    assert save(saver, 4) == (True, told)
    assert left(tmp_path) == ["iteration_000003", "iteration_000004"]
    assert not checkpoint.find(tmp_path).policy_only


def test_old_ones_are_removed_with_one_file_descriptor_left(tmp_path, saver):
    for iteration in (1, 2):
        save(saver, iteration)
    folder = tmp_path / "checkpoints"
    final = folder / "iteration_000002"
    with few_descriptors(1):
        assert checkpoint.prune(folder, final, 1) == ""
    assert left(tmp_path) == ["iteration_000002"]


def test_what_is_left_of_one_that_was_being_removed_goes_with_the_next(tmp_path, saver):
    """The rename is done and the rest is not: a file was in use, or the process was killed."""
    save(saver, 1)
    folder = tmp_path / "checkpoints"
    (folder / "iteration_000001").rename(folder / ".iteration_000001.removed.part")
    assert save(saver, 2) == (True, "")
    assert left(tmp_path) == ["iteration_000002"]


def test_old_ones_that_cannot_be_removed_are_told_of_and_removed_later(
    tmp_path, saver, monkeypatch
):
    for iteration in (1, 2, 3):
        save(saver, iteration)

    def refuse(folder):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(checkpoint, "_remove", refuse)
    exists, told = save(saver, 4)
    assert exists
    assert f"still there: {tmp_path}/checkpoints/iteration_000001: OSError: [Errno 24]" in told
    monkeypatch.undo()
    assert save(saver, 5) == (True, "")
    assert left(tmp_path) == [f"iteration_00000{i}" for i in (3, 4, 5)]


@pytest.mark.parametrize("limited", [0, 1])
def test_one_gmi_without_room_leaves_all_of_them_the_policy(tmp_path, limited):
    told = run_ranks(bodies.save_with_a_limit, 2, tmp_path, limited)
    assert [exists for exists, _ in told] == [True, True]
    assert "File too large" in told[limited][1]
    assert told[1 - limited][1] == ""
    assert checkpoint.find(tmp_path).policy_only
    assert left(tmp_path) == ["iteration_000005"]


class few_descriptors:
    """So many may be opened by this process, and no more."""

    def __init__(self, number):
        self._number = number

    def __enter__(self):
        self._limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        taken = [open("/dev/null")]
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0].fileno() + 1, self._limits[1]))
        self._taken = taken
        while True:  # the free numbers below it
            try:
                taken.append(open("/dev/null"))
            except OSError:
                break
        for _ in range(self._number):
            taken.pop().close()

    def __exit__(self, *error):
        for file in self._taken:
            file.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)


def test_a_gmi_saves_alone_what_a_lost_one_was_committing(tmp_path, saver):
    assert save(saver, 5)[0]
    folder = tmp_path / "checkpoints"
    checkpoint.begin(folder, 10)
    for part in ("gmi0", "gmi1", "shared"):
        checkpoint.write_part(folder, 10, part, shared(True))
    (folder / ".iteration_000010.part").rename(folder / ".iteration_000010.sealed.part")
    assert saver.save_alone(10, shared(True), {}) == ""
    found = checkpoint.find(tmp_path)
    assert found.manifest["iteration"] == 10
    assert [*found.manifest["files"]] == ["shared.pt"]  # and no state of a part that is not whole
    assert left(tmp_path) == ["iteration_000005", "iteration_000010"]


def test_who_was_taken_for_lost_writes_no_more(tmp_path):
    run = tmp_path / "run.json"
    saver = Saver(tmp_path, 0, solo_group(), "now", epoch=1)
    run.write_text('{"epoch": 1}')
    assert save(saver, 5)[0]
    assert checkpoint.find(tmp_path).manifest["epoch"] == 1
    run.write_text('{"epoch": 2}')  # as the driver has it when the others go on
    with pytest.raises(CheckpointError, match="has epoch 2, and this host is in epoch 1"):
        save(saver, 10)
    with pytest.raises(CheckpointError, match="epoch 2"):
        saver.save_alone(10, shared(True), {})
    assert not [*tmp_path.glob("checkpoints/.*")]  # where others may be writing their parts
    assert checkpoint.find(tmp_path).manifest["iteration"] == 5


def test_a_damaged_part_of_one_gmi_takes_all_of_them_to_the_checkpoint_before(tmp_path):
    savers = [Saver(tmp_path, gmi, solo_group(), "now") for gmi in (0, 1)]
    folder = tmp_path / "checkpoints"
    for iteration in (1, 2):
        checkpoint.begin(folder, iteration)
        for name in ("shared", "gmi0", "gmi1"):
            checkpoint.write_part(folder, iteration, name, {"iteration": iteration})
        path = checkpoint.commit(folder, iteration, {"session": "now"})
    part = path / "gmi1.pt"
    part.write_bytes(bytes(part.stat().st_size))
    assert [saver.newest().folder.name for saver in savers] == ["iteration_000001"] * 2
