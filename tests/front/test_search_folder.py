"""A search's folder: gone on with while it is the same search, and by one process at a time."""

import contextlib
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from gmi_drl.launcher.plan.user_modules import digests_beside, modules_beside
from gmi_drl.placement import load_config
from gmi_drl.selector.errors import SearchError
from gmi_drl.selector.record import identity, search_folder
from gmi_drl.selector.record.journal import Journal
from gmi_drl.selector.record.search_folder import RECORD, open_folder, read, replay

TESTS = Path(__file__).resolve().parents[1]


def config(folder, **sections):
    return load_config(
        {
            "version": 1,
            "run": {"name": "s"},
            "env": {"id": "CartPole-v1"},
            "search": {
                "folder": str(folder / "searches"),
                "ranges": {"algorithm.clip": {"uniform": [0.1, 0.3]}},
            },
            **sections,
        }
    )


def opened(its, beside, again=False):
    """The folder's path, and why an earlier one is not gone on with."""
    with open_folder(its, beside, again) as (folder, _, note):
        return folder.path, note


def test_a_search_is_another_when_a_role_of_its_own_or_a_version_has_changed(tmp_path, monkeypatch):
    shutil.copy(TESTS / "bodies_search.py", tmp_path / "own_role.py")
    its = config(tmp_path, roles={"trainer": "own_role:FailsAboveATenth"})
    first, _ = opened(its, tmp_path)
    assert opened(its, tmp_path) == (first, "")
    with open(tmp_path / "own_role.py", "a") as module:
        module.write("# mended\n")
    second, note = opened(its, tmp_path)
    assert (second != first, f"{first} is not gone on with: own_role.py changed" in note) == (1, 1)
    assert opened(its, tmp_path) == (second, "")
    versions = identity.versions() | {"torch": "9.9"}
    monkeypatch.setattr(identity, "versions", lambda: versions)
    third, note = opened(its, tmp_path)
    assert (third in (first, second), "torch changed since" in note) == (False, True)


def test_every_file_of_a_package_that_a_config_names_counts(tmp_path):
    package = tmp_path / "own"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "roles.py").write_text("a = 1")
    its = config(tmp_path, roles={"trainer": "own.roles:Trainer"})
    before = digests_beside(its, tmp_path)
    assert list(before) == ["own/__init__.py", "own/roles.py"]
    (package / "roles.py").write_text("a = 2")
    assert digests_beside(its, tmp_path) != before


@pytest.mark.parametrize(
    "sections",
    [
        {"algorithm": {"class": "own:Mine"}},
        {"algorithm": {"network": "own:Mine"}},
        {"algorithm": {"name": "mbpo", "termination": "own:fallen"}},
        {"env": {"id": "CartPole-v1", "wrappers": ["own:Mine"]}},
        {"env": {"id": "CartPole-v1", "wrappers": [{"own.parts:Mine": {"times": 2}}]}},
        {"env": {"id": "own", "adapter": "pettingzoo"}},
        {"search": {"ranges": {"algorithm.network": {"choice": ["own:A", "own:B"]}}}},
    ],
)
def test_modules_count_whatever_a_config_names_in_them(tmp_path, sections):
    (tmp_path / "own.py").write_text("a = 1")
    assert list(digests_beside(config(tmp_path, **sections), tmp_path)) == ["own.py"]


def test_callbacks_are_beside_a_config_and_no_part_of_what_runs(tmp_path):
    (tmp_path / "own.py").write_text("a = 1")
    its = config(tmp_path, run={"name": "s", "callbacks": ["own:Mine"]})
    assert modules_beside(its, tmp_path) == [tmp_path / "own.py"]
    assert digests_beside(its, tmp_path) == {}


def test_what_is_no_part_of_a_search_changes_nothing(tmp_path):
    first, _ = opened(config(tmp_path), tmp_path)
    other = config(tmp_path).model_copy(
        update={"search": config(tmp_path).search.model_copy(update={"trials_at_once": 1})}
    )
    assert opened(other, tmp_path) == (first, "")
    assert opened(other, tmp_path, again=True)[0] != first


def test_of_many_that_begin_in_one_moment_one_searches_and_the_others_are_told(tmp_path):
    number, its = 4, config(tmp_path)
    begin, end = threading.Barrier(number, timeout=20), threading.Barrier(number, timeout=20)
    found = []

    def one():
        begin.wait()
        try:
            with open_folder(its, tmp_path, False) as (folder, _, _):
                found.append(folder.path)
                end.wait()
        except SearchError as error:
            found.append(str(error))
            end.wait()

    threads = [threading.Thread(target=one) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    (path,) = (tmp_path / "searches" / "s").iterdir()
    assert path in found
    assert sum(f"{path} is being searched by process" in str(text) for text in found) == number - 1


def test_lines_that_come_before_the_lock_is_had_are_kept(tmp_path, monkeypatch):
    """Another search of it, that is just ending, writes until it lets go of its lock."""
    its = config(tmp_path)
    path, _ = opened(its, tmp_path)
    taken = search_folder.locked

    @contextlib.contextmanager
    def late(file, timeout, name):
        if file == path / "lock":
            with open(path / RECORD, "a") as record:
                record.write('{"kind": "ended", "trial": 0, "number": 0}\n{"kind": "end')
        with taken(file, timeout, name) as had:
            yield had

    monkeypatch.setattr(search_folder, "locked", late)
    with open_folder(its, tmp_path, False) as (_, journal, _):
        assert [line["kind"] for line in journal.lines] == ["ended"]
        size = (path / RECORD).stat().st_size
        assert journal.whole_bytes == size  # without the torn line
    assert read(path).lines == journal.lines


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "searches").write_text("no folder")
    with pytest.raises(SearchError, match=r"cannot be written .* Give a folder you may write to"):
        opened(config(tmp_path), tmp_path)


def test_a_record_that_is_damaged_before_its_end_is_refused_and_left_as_it_is(tmp_path):
    """A torn last line is what a death leaves; anything else would take what has ended with it."""
    its = config(tmp_path)
    path, _ = opened(its, tmp_path)
    with open(path / RECORD, "ab") as record:
        record.write(b'{"kind": "as\0\0\0"trial": 0}\n{"kind": "ended", "trial": 0, "number": 0}\n')
    before = (path / RECORD).read_bytes()
    with pytest.raises(SearchError) as caught:
        opened(its, tmp_path)
    assert f"{path / RECORD} is damaged in line 2" in str(caught.value)
    assert "begin anew with --again" in str(caught.value)
    assert (path / RECORD).read_bytes() == before
    assert opened(its, tmp_path, again=True)[0] != path


@pytest.mark.parametrize("header", ["{{{", '{"kind": "header", "format": 7}'])
def test_why_a_search_whose_header_cannot_be_read_is_not_gone_on_with_is_told(tmp_path, header):
    its = config(tmp_path)
    first, _ = opened(its, tmp_path)
    lines = (first / RECORD).read_text().splitlines()
    (first / RECORD).write_text("\n".join([header, *lines[1:], ""]))
    second, note = opened(its, tmp_path)
    assert second != first
    assert note.startswith(f"{first / RECORD} ")
    assert note.endswith("; that search is not gone on with")
    assert opened(its, tmp_path) == (second, "")
    (first / RECORD).write_text("\n".join([*lines, ""]))
    (second / RECORD).write_text(f"{header}\n")
    older, note = opened(its, tmp_path)
    assert older == first
    assert note.startswith(f"{second / RECORD} ")


@pytest.mark.parametrize(
    "line", [{}, {"kind": "asked"}, {"kind": "ended", "trial": 0, "number": 0, "return_mean": 1.0}]
)
def test_a_line_that_no_search_writes_there_is_told_by_its_number(tmp_path, line):
    journal = Journal(tmp_path / RECORD, {}, [{"kind": "finished"}, line])
    with pytest.raises(SearchError, match=f"{RECORD} is damaged in line 3 .KeyError"):
        replay(journal, SimpleNamespace(tell=None))
