"""What a launcher held of the machine is undone by the next run, and nobody else's is touched."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gmi_drl.gmi import GmiError, lease
from gmi_drl.runtime.process import run_directory


@pytest.fixture
def undone(monkeypatch):
    """What was handed to the undoer of kind mps, which undid it."""
    calls = []
    backend = SimpleNamespace(undo=lambda notes: calls.append(notes) is None)
    monkeypatch.setattr(lease, "backend_of", lambda _: backend)
    return calls


def left_behind(*lines):
    """The directory of a lease that a process made which was killed, with these lines run in it."""
    code = (
        "import os, private_leases, signal\nfrom gmi_drl.gmi.lease import Lease\n"
        "lease = Lease('mps')\nprint(lease.directory, flush=True)\n"
        + "\n".join(lines)
        + "\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[1],  # where it finds private_leases
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == -9, ended.stderr
    return Path(ended.stdout.strip())


def test_what_is_noted_and_not_struck_out_is_undone_once(undone):
    directory = left_behind(
        "one = lease.note({'step': 1})", "lease.note({'step': 2})", "lease.undone(one)"
    )
    assert directory.stat().st_mode & 0o777 == 0o700
    (swept,) = lease.sweep()
    assert undone == [swept.lease]
    assert swept.undone
    assert (swept.lease.notes, swept.lease.same_boot) == (({"step": 2},), True)
    assert not directory.exists()
    assert lease.sweep() == []


def test_a_lease_without_notes_just_goes(undone):
    directory = left_behind("lease.undone(lease.note({}))")
    assert [(swept.error, swept.undone) for swept in lease.sweep()] == [("", False)]
    assert undone == []
    assert not directory.exists()


def test_one_in_use_is_not_touched_and_its_end_leaves_nothing(undone):
    held = lease.Lease("mps")
    number = held.note({"step": 1})
    assert lease.sweep() == []
    held.undone(number)
    held.close()
    held.close()
    assert not held.directory.exists()
    assert undone == []


def test_what_could_not_be_undone_by_its_holder_is_tried_by_the_next_run(undone):
    held = lease.Lease("mps")
    held.note({"step": 1})
    held.close()
    assert [swept.lease.directory for swept in lease.sweep()] == [held.directory]
    assert len(undone) == 1


def test_what_cannot_be_undone_stays_for_the_run_after_the_next(undone, monkeypatch):
    directory = left_behind("lease.note({'step': 1})")

    def fail(_):
        raise GmiError("it hangs")

    with monkeypatch.context() as failing:
        failing.setattr(lease, "backend_of", lambda _: SimpleNamespace(undo=fail))
        assert [swept.error for swept in lease.sweep()] == ["it hangs"]
    assert directory.exists()
    assert [swept.error for swept in lease.sweep()] == [""]
    assert not directory.exists()


def test_notes_cut_off_by_a_kill_and_of_another_boot_are_understood(undone):
    directory = left_behind("lease.note({'step': 1})")
    notes = directory / "notes.jsonl"
    head, *rest = notes.read_text().splitlines()
    head = json.dumps(json.loads(head) | {"boot": "before"})
    notes.write_text("\n".join([head, *rest, '{"note": 2, "wh']))
    (swept,) = lease.sweep()
    assert (swept.lease.notes, swept.lease.same_boot) == (({"step": 1},), False)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"kind": "new", "boot": ""}\n{"note": 1, "what": {}}', "KeyError: 'new'"),
        ('{"kind": "mps", "boot": ""}\n{"note": 1, "gpu": "GPU-1"}', "KeyError: 'what'"),
        ('{"version": 2}\n{"note": 1, "what": {}}', "KeyError: 'kind'"),
        ("[1]\n2", "TypeError"),
    ],
)
def test_a_lease_of_another_version_is_left_to_it(line, what, undone):
    directory = left_behind("lease.note({'step': 1})")
    (directory / "notes.jsonl").write_text(line)
    (swept,) = lease.sweep()
    assert what in swept.error
    assert "Another version of gmi-drl made it" in swept.error
    assert directory.exists()
    assert undone == []
    run_directory.remove(directory)


def test_notes_of_another_version_stop_no_run():
    directory = left_behind("lease.note({'gpus': ['GPU-1', 'GPU-2']})")
    head = (directory / "notes.jsonl").read_text().splitlines()[0]
    assert json.loads(head)["kind"] == "mps"
    (swept,) = lease.sweep()  # by mps itself
    assert "KeyError: 'device_uuid'. Another version" in swept.error
    run_directory.remove(directory)


def test_another_users_lease_is_not_touched(undone, monkeypatch):
    directory = left_behind("lease.note({'step': 1})")
    with monkeypatch.context() as other:
        other.setattr(run_directory.os, "getuid", lambda: 4321)
        assert lease.sweep() == []
    assert directory.exists()
    assert len(lease.sweep()) == 1


def test_what_is_only_called_like_a_lease_is_not_touched(undone):
    lookalikes = [lease._BASE / name for name in ("gmi-lease-contract", "gmi-lease-abcdefgh")]
    for path in lookalikes:
        path.mkdir(mode=0o700)
        (path / "notes.jsonl").write_text('{"kind": "mps", "boot": ""}\n')
    lookalikes.append(left_behind())
    lookalikes[-1].chmod(0o755)
    assert lease.sweep() == []
    assert all((path / "notes.jsonl").exists() for path in lookalikes)
    assert undone == []
    for path in lookalikes:
        shutil.rmtree(path)


def test_leases_lie_where_every_process_of_the_user_finds_them(monkeypatch):
    code = "from gmi_drl.gmi.lease import Lease; its = Lease('mps'); print(its.directory);"
    for given in ("/run/user/1000", os.environ["XDG_RUNTIME_DIR"], ""):
        monkeypatch.setenv("XDG_RUNTIME_DIR", given)
        done = subprocess.run(
            [sys.executable, "-c", code + "its.close()"], capture_output=True, text=True, check=True
        )
        assert Path(done.stdout.strip()).parent == Path("/tmp")


def test_files_that_are_tidied_away_do_not_free_a_lease_in_use(undone):
    held = lease.Lease("mps")
    for name in os.listdir(held.directory):
        (held.directory / name).unlink()
    assert lease.sweep() == []
    assert held.directory.exists()
    held.close()


def test_one_that_is_swept_while_it_is_made_is_made_anew(undone, monkeypatch):
    make, made = run_directory.tempfile.mkdtemp, []

    def mkdtemp(**where):
        made.append(make(**where))
        if len(made) == 1:
            assert lease.sweep() == []
            assert not Path(made[0]).exists()  # it was empty
        return made[-1]

    monkeypatch.setattr(run_directory.tempfile, "mkdtemp", mkdtemp)
    held = lease.Lease("mps")
    assert [str(held.directory)] == made[1:]
    held.close()


def test_two_that_sweep_at_once_undo_it_once(undone, monkeypatch):
    directory = left_behind("lease.note({'step': 1})")

    class Slow:
        @staticmethod
        def undo(left):
            assert lease.sweep() == []  # the other, while this one is at it
            undone.append(left)

    monkeypatch.setattr(lease, "backend_of", lambda _: Slow)
    assert len(lease.sweep()) == 1
    assert len(undone) == 1
    assert not directory.exists()
