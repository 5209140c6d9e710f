"""Private directories: made where there is room, and swept when their owners are gone."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gmi_drl import runtime
from gmi_drl.runtime.process import run_directory


@pytest.fixture
def base(monkeypatch):
    """An empty XDG_RUNTIME_DIR, short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="gdb-", dir="/tmp"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
    yield path
    runtime.shutdown()
    shutil.rmtree(path)


@pytest.fixture
def disk(base):
    """The same as a file system of its own, of 4 MiB: `disk(options)` mounts it anew."""

    def mount(options):
        subprocess.run(["mount", "-o", f"remount,{options}", str(base)], check=True)

    made = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(base)]
    if not shutil.which("mount") or subprocess.run(made, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield mount
    runtime.shutdown()
    subprocess.run(["umount", str(base)], check=True)


def killed_launcher():
    """The directory of a process that was killed, with a file in it."""
    code = (
        "import os, signal\nfrom gmi_drl.runtime.process import run_directory\n"
        "path, lock = run_directory.create()\n(path / 'socket').touch()\nprint(path, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert ended.returncode == -signal.SIGKILL
    return Path(ended.stdout.strip())


def made(path, mode=0o700, marker=True):
    """A directory with a file in it."""
    path.mkdir(mode=mode)
    (path / "thesis.tex").touch()
    if marker:
        (path / run_directory.MARKER).touch()
    path.chmod(mode)
    return path


def test_only_a_dead_launchers_directory_is_swept(base):
    subprocess.run(["git", "init", "-q", base / "gmi-drl-fix-1"], check=True)
    kept = [
        base / "gmi-drl-fix-1",
        made(base / "gmi-drl-12-abcdefgh", marker=False),
        made(base / "gmi-drl-12-abcdefgi", mode=0o755),
        made(base / "gmi-drl-12-abcdefghi"),
        made(base / "gmi-drl-pack-2"),
        made(base / "my-gmi-drl-12-abcdefgh"),
        made(base / "gmi-drl-12-ABCDEFGH"),
        made(base / "somewhere"),
    ]
    link = base / "gmi-drl-12-abcdefgj"
    link.symlink_to(base / "somewhere")
    dead, (living, lock) = killed_launcher(), run_directory.create()
    unmarked = base / "gmi-drl-12-abcdefgk"  # its maker died before it could write the marker
    unmarked.mkdir(mode=0o700)
    run_directory.sweep()
    assert not dead.exists()
    assert sorted(os.listdir(base)) == sorted(path.name for path in [*kept, link, living])
    assert all((path / "thesis.tex").exists() for path in kept[1:])
    assert (kept[0] / ".git" / "HEAD").exists()
    os.close(lock)


def test_a_directory_that_is_removed_only_in_part_is_swept_later(base, monkeypatch):
    dead = killed_launcher()
    with monkeypatch.context() as broken:
        broken.setattr(run_directory.os, "unlink", lambda _: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            run_directory.sweep()
    run_directory.sweep()
    assert not dead.exists()


def test_a_runtime_sweeps_when_it_starts(base):
    killed_launcher()
    runtime.init()
    assert os.listdir(base) == [runtime.run_directory().name]
    runtime.shutdown()
    assert os.listdir(base) == []


def test_the_run_directory_is_short_enough_for_sockets(monkeypatch, tmp_path):
    long = tmp_path / ("x" * 70)
    long.mkdir()
    for given in (str(long), "/no/such/directory", ""):
        monkeypatch.setenv("XDG_RUNTIME_DIR", given)
        assert run_directory.bases() == (Path("/tmp"),)


def fill(base):
    """Leaves no room."""
    with contextlib.suppress(OSError), open(base / "ballast", "wb", 0) as file:
        while file.write(bytes(4096)):
            pass


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_where_nothing_can_be_written_the_directory_is_in_tmp(base, disk, how):
    fill(base) if how == "full" else disk("ro")
    runtime.init()
    assert runtime.run_directory().parent == Path("/tmp")
    assert runtime.get(runtime.remote(os.getpid).remote()) != os.getpid()
    runtime.shutdown()
    assert os.listdir(base) == (["ballast"] if how == "full" else [])


def test_where_no_directory_can_be_made_the_error_says_where_and_why(base, disk, monkeypatch):
    disk("ro")
    monkeypatch.setattr(run_directory, "_TMP", Path("/no/such"))
    with pytest.raises(runtime.ActorRuntimeError) as caught:
        runtime.init()
    assert f"{base}: Read-only file system; /no/such: No such file" in str(caught.value)
    assert "Free some space in /no/such, or let XDG_RUNTIME_DIR name another" in str(caught.value)
    assert not runtime.is_initialized()
