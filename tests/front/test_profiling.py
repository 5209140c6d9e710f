"""One candidate measured, end to end: real processes, every mode, and candidates that go wrong."""

import contextlib
import gc
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gmi_drl import runtime
from gmi_drl.gmi import Gang
from gmi_drl.launcher.watch import iteration_times
from gmi_drl.placement import load_config
from gmi_drl.selector.tune.candidate import Ask, Candidate, DeviceSplit, Failed, Measured
from gmi_drl.selector.tune.profile.candidate_run import CandidateTimeout
from gmi_drl.selector.tune.profile.profiler import Profiler

pytestmark = pytest.mark.usefixtures("warm")


@pytest.fixture(autouse=True)
def nothing_of_a_candidate_is_left():
    """Beside what is checked after all tests: no folder, and no memory that GMIs shared."""
    before = _shared_memory()
    yield
    assert not list(runtime.run_directory().glob("measured-*"))
    assert not _shared_memory() - before


def _shared_memory():
    """Returns name and inode of what GMIs share, once nothing but a cycle could hold it."""
    gc.collect()
    held = set()
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            held.add((os.readlink(fd), fd.stat().st_ino))
    return {
        (name, inode) for name, inode in held
        if name.startswith("/memfd:gmi-drl-") and "arena" not in name
    }  # fmt: skip


QUICK = CandidateTimeout(first_s=10.0, next_s=2.5, idle_s=60.0)


def config(tmp_path, **changes):
    base = {
        "version": 1,
        "run": {"folder": str(tmp_path / "runs")},
        "env": {"id": "CartPole-v1"},
        "algorithm": {"network": [16]},
    }
    for key, value in changes.items():
        if isinstance(value, dict):
            base[key] = base.get(key, {}) | value
        else:
            base[key] = value
    return load_config(base)


def trouble(tmp_path, how, **options):
    env = {"id": "bodies_profiling:Trouble-v0", "options": {"how": how, **options}}
    return config(tmp_path, env=env, algorithm={"minibatches": 1, "epochs": 1})


def candidate(gmis=1, num_env=16):
    return Candidate(DeviceSplit(gmis, "cpu"), num_env, 16, 16 * gmis * num_env)


def profile(config, gmis=1, num_env=16, seconds=0.6, timeout=QUICK):
    return Profiler(config, timeout=timeout)(Ask(candidate(gmis, num_env), seconds))


# What is measured ---------------------------------------------------------------------------------

MODES = {
    "tcg_ex": ({}, 2, {"simulate", "infer", "train", "reduce"}),
    "tdg_ex": (
        {"layout": {"template": "tdg_ex"}}, 2,
        {"simulate", "infer", "send", "wait", "train", "reduce"},
    ),
    "decoupled": (
        {"mode": "async", "hardware": {"num_gpus": 2}}, 1,
        {"simulate", "infer", "send", "wait", "train", "reduce"},
    ),
    "tcg": ({"mode": "serving"}, 2, {"simulate", "infer"}),
    "tdg": ({"mode": "serving", "layout": {"template": "tdg"}}, 2, {"simulate", "infer", "wait"}),
}  # fmt: skip


@pytest.mark.parametrize(
    "template", [pytest.param(t, marks=[pytest.mark.slow] * (t == "tcg")) for t in MODES]
)
def test_every_mode_is_measured(tmp_path, template):
    changes, gmis, phases = MODES[template]
    found = profile(config(tmp_path, **changes), gmis)
    assert isinstance(found, Measured), found
    assert found.steps_per_s > 0
    assert 0 < found.error < math.inf
    assert found.iterations >= 1
    assert found.seconds > 0
    assert set(found.phases) == phases
    assert sum(found.phases.values()) == pytest.approx(1)
    assert found.host_bytes > 50 << 20  # torch is in it
    assert 0 < found.memory < 1
    assert 0 < found.cores < len(os.sched_getaffinity(0)) + 1
    assert (found.device_bytes, found.sm_activity) == (None, None)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_the_rate_is_that_of_the_physics(tmp_path):
    found = profile(trouble(tmp_path, "sleep"), num_env=4, seconds=1.0)
    assert isinstance(found, Measured), found
    assert 0 < found.steps_per_s < 200  # a step takes 5 ms or more, one after the other
    assert found.phases["simulate"] > 0.5
    assert found.cores < 0.9


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


# What goes wrong ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "reason", "text"),
    [
        ("raise", "crash", "ValueError: these are too many environments"),
        slow("memory", "memory", "host memory ran out: MemoryError"),
        ("exit", "crash", "exited with code 3: physics exploded"),
        slow("kill", "crash", "SIGKILL"),
        slow("hang", "hang", "no GMI does anything"),
        slow("spin", "slow", "cores in use: gmi 0 "),
    ],
)
def test_what_goes_wrong_is_classified_and_the_next_candidate_is_measured(
    tmp_path, how, reason, text
):
    """It goes wrong where a process has 512 environments, and not with fewer."""
    ill = trouble(tmp_path, how, at=512)
    timeouts = {
        "hang": CandidateTimeout(first_s=20.0, idle_s=2.0),
        "spin": CandidateTimeout(first_s=3.0),
    }
    failed = profile(ill, num_env=512, timeout=timeouts.get(how, QUICK))
    assert isinstance(failed, Failed), failed
    assert (failed.reason, text in failed.text) == (reason, True), failed
    assert isinstance(profile(ill, num_env=8, seconds=0.1), Measured)


def test_a_hang_after_a_while_is_found(tmp_path):
    failed = profile(trouble(tmp_path, "hang", after=20))  # in the second iteration
    assert isinstance(failed, Failed), failed
    assert failed.reason == "hang"
    assert failed.text.startswith("an iteration has not ended after")


def test_what_cannot_be_placed_is_refused_before_anything_starts(tmp_path):
    failed = profile(config(tmp_path), gmis=4096)
    assert isinstance(failed, Failed), failed
    assert failed.reason == "refused"
    assert "layout.gmi_per_gpu=4096" in failed.text


@pytest.mark.parametrize("how", ["hang", "spin"])
def test_an_interrupt_ends_it_and_passes(tmp_path, monkeypatch, how):
    """One signal is enough, also when nothing of the candidate answers."""
    monkeypatch.setattr(iteration_times, "_GRACE_S", 600.0)  # which is not waited for
    marker = tmp_path / "goes wrong"

    def interrupt():
        deadline_s = time.monotonic() + 20
        while not marker.exists() and time.monotonic() < deadline_s:
            time.sleep(0.02)  # between two looks at the file
        os.kill(os.getpid(), signal.SIGINT)

    other = threading.Thread(target=interrupt)
    other.start()
    ill = trouble(tmp_path, how, marker=str(marker))
    with pytest.raises(KeyboardInterrupt):
        profile(ill, seconds=600, timeout=CandidateTimeout(idle_s=600))
    other.join()
    assert marker.exists()


def test_an_interrupt_while_a_gang_is_killed_ends_it_and_passes(tmp_path, monkeypatch):
    """The end of a measurement and a signal at once: there is no gang left to wait for."""
    killing = Gang.kill

    def kill(gang):
        killing(gang)
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt

    interrupted = []
    monkeypatch.setattr(Gang, "kill", kill)
    with pytest.raises(KeyboardInterrupt):
        profile(config(tmp_path), seconds=0.5)
    assert interrupted


def test_memory_that_runs_low_ends_a_candidate(tmp_path, monkeypatch):
    from gmi_drl.gmi.usage import processes

    low = processes.HostMemory(1 << 28, 64 << 30)
    monkeypatch.setattr(processes, "host_memory", lambda: low)
    failed = profile(config(tmp_path))
    text = "host memory: 0.25 GiB are left of the 64.0 GiB of the machine"
    assert failed == Failed("memory", text)


@pytest.fixture
def small_cgroup():
    """A cgroup of 900 MiB: the file that takes processes in."""
    for base, limit in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        folder = Path("/sys/fs/cgroup", base, f"gmi-drl-test-{os.getpid()}")
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / limit).write_text(str(900 << 20))
            yield folder / "cgroup.procs"
            return
        except OSError:
            continue
        finally:
            folder.rmdir()
    pytest.skip("making a cgroup with a limit needs root")


@pytest.mark.slow
def test_a_candidate_that_fills_a_cgroup_leaves_the_tuner_alive(small_cgroup):
    script = f"import bodies_profiling; bodies_profiling.in_a_cgroup({str(small_cgroup)!r})"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    first, second, third = done.stdout.splitlines()
    assert first.startswith("Failed(reason='memory'"), first  # at once
    assert second.startswith("Failed(reason='memory'"), second  # little by little
    assert third.startswith("Measured("), third
