"""Checkpoints are whole or refused, with the newest good one named."""

import gc
import json
import os
import re
import shutil
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
import torch

from gmi_drl.placement import Topology, tcg_ex, tdg_ex
from gmi_drl.roles.errors import CheckpointError
from gmi_drl.roles.state import checkpoint, saving


def save(run, iteration, keep=3):
    folder = run / "checkpoints"
    checkpoint.begin(folder, iteration)
    checkpoint.write_part(folder, iteration, "shared", {"parameters": torch.arange(5.0)})
    checkpoint.write_part(folder, iteration, "gmi0", {"generator": torch.zeros(3)})
    final = checkpoint.commit(folder, iteration, {"steps": iteration * 10})
    assert not checkpoint.prune(folder, final, keep)
    return final


def test_what_was_written_is_read(tmp_path):
    save(tmp_path, 7)
    found = checkpoint.find(tmp_path)
    assert found.manifest["iteration"] == 7
    assert torch.equal(found.load("shared")["parameters"], torch.arange(5.0))


def test_a_part_is_written_without_a_copy_of_it_in_memory(tmp_path):
    checkpoint.begin(tmp_path, 1)
    state = {"replay": torch.arange(1_000_000), "priorities": torch.ones(10)}
    checkpoint.write_part(tmp_path, 1, "shared", {})  # what is imported then is no copy
    tracemalloc.start()
    try:
        checkpoint.write_part(tmp_path, 1, "gmi0", state)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 1_000_000  # of eight million bytes
    found = checkpoint.find(checkpoint.commit(tmp_path, 1, {})).load("gmi0")
    assert all(torch.equal(found[name], its) for name, its in state.items())


def test_what_was_written_is_read_as_what_it_was(tmp_path):
    checkpoint.begin(tmp_path, 1)
    state = {"counts": Counter(won=2), "network": torch.nn.BatchNorm1d(2).state_dict()}
    checkpoint.write_part(tmp_path, 1, "shared", state)
    found = checkpoint.find(checkpoint.commit(tmp_path, 1, {})).load("shared")
    assert (found["counts"]["won"], found["counts"]["lost"]) == (2, 0)
    assert found["network"]._metadata == state["network"]._metadata


def allocated():
    """The bytes that this process has of its own, and not of files."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"RssAnon:\s+(\d+)", status)[1])


def test_a_large_part_is_read_without_a_copy_of_it_in_memory(tmp_path):
    checkpoint.begin(tmp_path, 1)
    checkpoint.write_part(tmp_path, 1, "shared", {})
    state = {"replay": torch.ones(16_000_000), "of": [torch.ones(3), (1, "two")]}
    checkpoint.write_part(tmp_path, 1, "gmi0", state)
    folder = checkpoint.commit(tmp_path, 1, {})
    found, before = checkpoint.find(folder), allocated()
    loaded = found.load("gmi0")
    total = float(loaded["replay"].sum())
    assert allocated() - before < 16_000_000  # of 64 million bytes
    assert (total, loaded["of"][1]) == (16e6, (1, "two"))
    del loaded["replay"]  # as who has copied it
    gc.collect()
    assert "gmi0.pt" not in Path("/proc/self/maps").read_text()
    assert torch.equal(loaded["of"][0], torch.ones(3))


def test_only_the_newest_are_kept(tmp_path):
    for iteration in (1, 2, 3, 4):
        save(tmp_path, iteration, keep=2)
    names = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert names == ["iteration_000003", "iteration_000004"]


def test_the_folder_of_a_runs_checkpoints_means_the_newest_in_it(tmp_path):
    for iteration in (1, 2):
        newest = save(tmp_path, iteration)
    assert checkpoint.find(newest.parent).folder == newest
    (newest / "shared.pt").unlink()
    with pytest.raises(CheckpointError, match=r"is torn.* The newest good one is .*_000001"):
        checkpoint.find(newest.parent)


def test_copies_under_other_names_are_neither_used_nor_removed(tmp_path):
    folder = save(tmp_path, 1).parent
    for name in ("iteration_000001_best", "iteration_000001 (copy)", "iteration_best"):
        shutil.copytree(folder / "iteration_000001", folder / name)
    for iteration in range(2, 5):
        save(tmp_path, iteration, keep=2)
    assert checkpoint.find(tmp_path).manifest["iteration"] == 4
    assert checkpoint.make_room(folder) == ["iteration_000003"]
    left = {path.name for path in folder.iterdir()}
    assert left == {
        "iteration_000001_best", "iteration_000001 (copy)", "iteration_best", "iteration_000004"
    }  # fmt: skip
    assert checkpoint.find(folder / "iteration_000001_best").manifest["iteration"] == 1


def test_going_back_begins_a_new_line(tmp_path):
    for iteration in (5, 10, 15):
        save(tmp_path, iteration)
    save(tmp_path, 7)  # resumed from 5
    names = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert names == ["iteration_000005", "iteration_000007"]
    assert checkpoint.find(tmp_path).manifest["iteration"] == 7


def test_a_torn_one_is_replaced_when_its_iteration_comes_again(tmp_path):
    torn_size(save(tmp_path, 3) / "shared.pt")
    save(tmp_path, 3)
    assert checkpoint.find(tmp_path).manifest["iteration"] == 3


def test_an_unfinished_one_does_not_count(tmp_path):
    save(tmp_path, 1)
    checkpoint.begin(tmp_path / "checkpoints", 2)
    checkpoint.write_part(tmp_path / "checkpoints", 2, "shared", {})
    assert checkpoint.find(tmp_path).manifest["iteration"] == 1
    checkpoint.discard(tmp_path / "checkpoints", 2)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["iteration_000001"]


def again(run):
    """An agent's successor writes its part again: whether it could."""
    try:
        checkpoint.write_part(run / "checkpoints", 2, "gmi0", {"again": torch.ones(4000)})
    except FileNotFoundError:
        return False
    return True


def is_whole(run):
    """Whether checkpoint 2 is, and nothing else is left."""
    files = sorted(p.name for p in (run / "checkpoints" / "iteration_000002").iterdir())
    alone = [p.name for p in (run / "checkpoints").iterdir()] == ["iteration_000002"]
    found = checkpoint.find(run).manifest["iteration"] == 2
    return found and alone and files == ["gmi0.pt", "manifest.json", "shared.pt"]


def test_who_commits_does_not_read_what_others_have_written(tmp_path, monkeypatch):
    checkpoint.begin(tmp_path, 1)
    for number in range(2):  # the first attempt has failed in another GMI
        checkpoint.write_part(tmp_path, 1, "shared", {"moments": torch.full((5000,), number)})
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "_sha256", None)
        final = checkpoint.commit(tmp_path, 1, {})
    assert sorted(path.name for path in final.iterdir()) == ["manifest.json", "shared.pt"]
    assert checkpoint.find(final).load("shared")["moments"].unique().tolist() == [1]


@pytest.mark.parametrize("text", [None, ""])
def test_a_part_whose_writer_left_no_digest_is_hashed_by_who_commits(tmp_path, text):
    checkpoint.begin(tmp_path, 1)
    checkpoint.write_part(tmp_path, 1, "shared", {"moments": torch.ones(5)})
    digest = tmp_path / ".iteration_000001.part" / "shared.sha256"
    digest.unlink() if text is None else digest.write_text(text)
    assert checkpoint.find(checkpoint.commit(tmp_path, 1, {})).manifest["iteration"] == 1


@pytest.mark.parametrize("at", ["_take_digest", "_fsync_folder"])
def test_a_part_that_comes_again_while_the_others_are_committed_fails(tmp_path, monkeypatch, at):
    real, late = getattr(checkpoint, at), []

    def disturbed(*args):
        found = real(*args)
        late.append(again(tmp_path))
        return found

    monkeypatch.setattr(checkpoint, at, disturbed)
    save(tmp_path, 2)
    late.append(again(tmp_path))
    assert not any(late)
    assert is_whole(tmp_path)


def test_a_part_that_is_half_written_when_the_others_are_committed_fails(tmp_path, monkeypatch):
    fsync, folder = os.fsync, tmp_path / "checkpoints"
    checkpoint.begin(folder, 2)
    for part in ("shared", "gmi0"):
        checkpoint.write_part(folder, 2, part, {})

    def overtaken(descriptor):
        fsync(descriptor)
        if (folder / ".iteration_000002.part").exists():
            checkpoint.commit(folder, 2, {})

    monkeypatch.setattr(os, "fsync", overtaken)
    assert not again(tmp_path)
    assert is_whole(tmp_path)


def torn_size(file):
    file.write_bytes(file.read_bytes()[:-1])


def torn_bit(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("tear", "reason"), [(torn_size, "bytes, should have"), (torn_bit, "does not match its SHA")]
)
def test_a_torn_one_is_refused_and_the_newest_good_one_named(tmp_path, tear, reason):
    good = save(tmp_path, 1)
    tear(save(tmp_path, 2) / "shared.pt")
    with pytest.raises(CheckpointError, match=reason) as error:
        checkpoint.find(tmp_path)
    assert f"--resume {good}" in str(error.value)
    assert checkpoint.find(good).manifest["iteration"] == 1


def test_a_missing_part_is_named(tmp_path):
    (save(tmp_path, 1) / "gmi0.pt").unlink()
    with pytest.raises(CheckpointError, match=r"gmi0\.pt is missing.* No older one"):
        checkpoint.find(tmp_path)


def test_a_foreign_one_is_refused(tmp_path):
    folder = save(tmp_path, 1)
    (folder / "manifest.json").write_text(json.dumps({"format": "something else"}))
    with pytest.raises(CheckpointError, match="foreign"):
        checkpoint.find(folder)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(CheckpointError, match="torn"):
        checkpoint.find(folder)


def test_one_of_the_future_says_so(tmp_path):
    folder = save(tmp_path, 1)
    manifest = json.loads((folder / "manifest.json").read_text()) | {"version": 99}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="version 99"):
        checkpoint.find(folder)


def test_a_run_without_checkpoints_says_so(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        checkpoint.find(tmp_path)


def changed(folder, **changes):
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest |= changes
    left = {key: value for key, value in manifest.items() if value is not ...}
    (folder / "manifest.json").write_text(json.dumps(left))


def test_only_what_is_loaded_is_read(tmp_path):
    """Else each of k GMIs would read the replays of all, and whoever serves a policy, too."""
    folder = save(tmp_path, 1)
    part = folder / "gmi0.pt"
    part.write_bytes(bytes(part.stat().st_size))
    assert checkpoint.find(tmp_path, ["shared"]).load("shared")
    for parts in (None, ["shared", "gmi0"]):
        with pytest.raises(CheckpointError, match=r"gmi0\.pt does not match its SHA-256"):
            checkpoint.find(tmp_path, parts)
    part.unlink()
    with pytest.raises(CheckpointError, match=r"gmi0\.pt is missing"):
        checkpoint.find(tmp_path, ["shared"])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"files": ...}, "manifest.json: files: Field required"),
        ({"files": []}, "manifest.json: files: Input should be a valid dictionary"),
        ({"files": {}}, "manifest.json names no shared.pt"),
        ({"files": {"shared.pt": 5}}, "manifest.json: files.shared.pt: "),
        ({"files": {"shared.pt": {"bytes": "many", "sha256": ""}}}, "shared.pt.bytes: "),
        ({"gmis": [[0, "eight"]]}, "manifest.json: gmis.0.1: "),
        ({"iteration": ...}, "manifest.json: iteration: Field required"),
        ({"iteration": -1}, "manifest.json: iteration: "),
        ({"iteration": 10**30}, "iteration"),
        ({"policy": []}, "manifest.json: policy: "),
        ({"policy_only": "no"}, "manifest.json: policy_only: "),
        ({"version": ...}, "version None"),
    ],
)
def test_a_manifest_of_other_types_is_refused_by_name(tmp_path, changes, said):
    good, damaged = save(tmp_path, 1), save(tmp_path, 2)
    changed(damaged, **changes)
    with pytest.raises(CheckpointError) as error:
        checkpoint.find(tmp_path)
    assert said in str(error.value)
    assert f"--resume {good}" in str(error.value)


@pytest.mark.parametrize("text", ["", "[]", "null", '{"format"', "[" * 100_000, "\xff"])
def test_a_manifest_that_is_none_is_refused(tmp_path, text):
    folder = save(tmp_path, 1)
    (folder / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"is (torn|foreign)"):
        checkpoint.find(tmp_path)


@pytest.mark.parametrize(
    ("wrote", "anew"),
    [
        ({"gmis": [[0, 8], [1, 8]], "template": "tcg_ex"}, []),
        ({"gmis": [[0, 8]], "template": "tcg_ex"}, [1]),
        ({"gmis": [[0, 8], [1, 4], [2, 8]], "template": "tcg_ex"}, [1]),
        ({"gmis": [[0, 8], [1, 8]], "template": "tdg_ex"}, [0, 1]),
        ({}, [0, 1]),
    ],
)
def test_gmis_that_were_not_the_same_have_no_part_in_a_checkpoint(tmp_path, wrote, anew):
    changed(save(tmp_path, 1), **wrote)
    layout = tcg_ex(Topology.from_cores(range(2)), 2, 8)
    assert saving.begun_anew(checkpoint.find(tmp_path), layout) == anew


def test_a_trainer_apart_goes_on_with_what_the_same_agents_sample(tmp_path):
    layout = tdg_ex(Topology.from_cores(range(2)), 2, 8)
    gmis = saving.gmis_of(layout)
    changed(save(tmp_path, 1), gmis=gmis, template=layout.template)
    assert saving.begun_anew(checkpoint.find(tmp_path), layout) == []
    changed(tmp_path / "checkpoints" / "iteration_000001", gmis=[[i, n // 2] for i, n in gmis])
    assert saving.begun_anew(checkpoint.find(tmp_path), layout) == [i for i, _ in gmis]


def test_one_of_another_iteration_than_its_name_is_refused(tmp_path):
    save(tmp_path, 1).rename(tmp_path / "checkpoints" / "iteration_000009")
    with pytest.raises(CheckpointError, match=r"holds iteration 1, .* Call it .*iteration_000001"):
        checkpoint.find(tmp_path)
    kept = (tmp_path / "checkpoints" / "iteration_000009").rename(tmp_path / "the best")
    assert checkpoint.find(kept).manifest["iteration"] == 1  # a name of the user's own


def test_a_file_that_is_whole_and_holds_no_tensors_is_named(tmp_path):
    folder = save(tmp_path, 1)
    (folder / "gmi0.pt").write_bytes(b"hello")
    with pytest.raises(CheckpointError, match=r"gmi0\.pt cannot be loaded"):
        checkpoint.Checkpoint(folder, {}).load("gmi0")
