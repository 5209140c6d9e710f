"""What holds for every test: it leaves no process, thread, shared memory or folder behind."""

import contextlib
import ctypes
import faulthandler
import functools
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import warp_cache
from gmi_drl import runtime
from gmi_drl.gmi import lease
from gmi_drl.launcher.folder import curve
from gmi_drl.launcher.start.preload import PRELOAD

_PR_SET_CHILD_SUBREAPER = 36
_LINGER_S = 20.0  # for what is on its way out when the test ends
_OURS = ("gmi-drl", "gmi_drl")
_OWN_PID = os.getpid()  # whatever a test has patched: what comes from this process is killed

# On a busy machine nothing is too slow; in CI each run tries the same examples.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
)  # fmt: skip
settings.load_profile("any machine")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    """Compiles warp's kernels for the CPU before the first test that needs them.

    Outside the test's time limit; other processes of the session go on meanwhile.
    """
    if hasattr(getattr(item, "module", None), "warp_cache") and not item.get_closest_marker("gpu"):
        _prepare_warp(item.config)
    return (yield)


@functools.cache
def _prepare_warp(config):
    terminal = config.pluginmanager.get_plugin("terminalreporter")  # of one process alone
    warp_cache.prepare(terminal.write_line if terminal else lambda line: None)


@pytest.fixture(scope="session", autouse=True)
def _private_session():
    """Run directories of this session, and of launchers it starts, go where only they are.

    Leases too; launchers in processes of their own import `private_leases`.
    Processes whose parent dies become our children, so that none can escape the check.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = os.environ.get("XDG_RUNTIME_DIR")
    directory = tempfile.mkdtemp(prefix="gdt-", dir="/tmp")
    os.environ["XDG_RUNTIME_DIR"] = directory
    lease._BASE = Path(directory)
    yield
    shutil.rmtree(directory, ignore_errors=True)
    if before is None:
        del os.environ["XDG_RUNTIME_DIR"]
    else:
        os.environ["XDG_RUNTIME_DIR"] = before


@pytest.fixture(scope="session", autouse=True)
def _private_cache(tmp_path_factory):
    """What is kept between runs goes where only this session is, and never to the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _hears_interrupts():
    """What a script starts in its background ignores SIGINT, and so would all that tests start."""
    before = signal.getsignal(signal.SIGINT)
    if before == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def warm():
    """One fork server for all launches of a module: importing torch takes seconds."""
    runtime.init(PRELOAD)
    yield
    runtime.shutdown()


@pytest.fixture
def learning_curve():
    """A test that asks for this has launches draw their learning curves."""


@pytest.fixture(autouse=True)
def _no_learning_curve(request):
    """Launches of this process draw none: half a second each, and few tests look at it."""
    # Not `monkeypatch`: what a test has patched would still be so when others look what it left.
    with pytest.MonkeyPatch.context() as patch:
        if "learning_curve" not in request.fixturenames:
            patch.setattr(curve, "draw_curve", lambda folder, title: None)
        yield


@pytest.fixture(autouse=True)
def _no_stacks_of_what_may_take_long(request):
    """pytest prints all stacks after 110 s; a test with a time limit of its own may need longer."""
    if request.node.get_closest_marker("timeout"):
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def selector_scripts(monkeypatch):
    """Lets a test import the selector's benchmarks: scripts that find each other in their folders.

    They are forgotten afterwards, as other folders have modules of the same names.
    """
    bench = Path(__file__).resolve().parents[1] / "bench"
    monkeypatch.setattr(sys, "path", list(sys.path))  # they add to it themselves
    sys.path[:0] = [str(bench / "selector"), str(bench)]
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(bench)):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def nothing_left_behind(request, _private_session):
    """Fails a test after which something of ours is there that was not there before it.

    Processes among that are killed.
    """
    before = _everything()
    yield
    deadline_s = time.monotonic() + _LINGER_S
    while left := {key: text for key, text in _everything().items() if key not in before}:
        if time.monotonic() > deadline_s:
            for kind, identity in left:
                if kind == "process":  # else it slows all tests to come
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(identity, signal.SIGKILL)
            what = "\n".join(f"  {kind} {text}" for (kind, _), text in left.items())
            pytest.fail(f"{request.node.nodeid} left behind:\n{what}", pytrace=False)
        time.sleep(0.02)  # between two looks


def _everything():
    """Each thing that a test must not leave: its kind and identity, and a text for people."""
    workers = _workers()
    found = {
        ("process", pid): f"{pid}: {command}"
        for pid, command in _descendants()
        if pid not in workers
    }
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and (
            not thread.daemon or thread.name.startswith(_OURS)
        ):
            found["thread", thread.ident] = thread.name
    for directory, ours in (("/dev/shm", _OURS), (os.environ["XDG_RUNTIME_DIR"], ("",))):
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(directory):
                if name.startswith(ours):
                    found["entry", name] = f"{directory}/{name}"
    return found


def _workers():
    """The workers and the fork server of a runtime that goes on; they go with it."""
    session = sys.modules.get("gmi_drl.runtime.api.session")
    if session is None or not session.is_initialized():
        return set()
    driver = session.driver()
    if not hasattr(driver, "processes"):  # of engine ray: the whole cluster goes with it
        return {pid for pid, _ in _descendants()}
    processes = list(driver.processes.values())
    workers = {process.pid for process in processes if process.actor is None}
    return workers | {driver.server.process.pid}


def _descendants():
    """Processes that come from this one; zombies of ours are reaped on the way."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    children = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError):
            file = os.open(f"/proc/{entry}/stat", os.O_RDONLY)
            try:
                state, parent = os.read(file, 512).rpartition(b")")[2].split(None, 2)[:2]
            finally:
                os.close(file)
            parent = int(parent)
            if state == b"Z":
                if parent == _OWN_PID:
                    os.waitpid(int(entry), os.WNOHANG)
                continue
            children.setdefault(parent, []).append(int(entry))
    # multiprocessing keeps these until the end, whoever uses it.
    kept = {
        multiprocessing.resource_tracker._resource_tracker._pid,
        multiprocessing.forkserver._forkserver._forkserver_pid,
    }
    found, queue = [], [_OWN_PID]
    while queue:
        for pid in children.get(queue.pop(), ()):
            queue.append(pid)
            if pid not in kept:
                with contextlib.suppress(OSError):
                    command = Path("/proc", str(pid), "cmdline").read_bytes()
                    found.append((pid, command.replace(b"\0", b" ").decode()[:200]))
    return found
