"""The gang: all GMIs of a layout started, called, watched and stopped together."""

import contextlib
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import traceback
from datetime import timedelta

import pytest

import faults
from bodies_gmi import Stepper
from gmi_drl import runtime
from gmi_drl.gmi import Gang, GmiDied, GmiTimeout, SliceError
from gmi_drl.placement import GmiSpec, Layout, Topology
from gmi_drl.runtime.api import session

LONG = timedelta(seconds=30)
CORES = sorted(os.sched_getaffinity(0))


def layout(size, cores=None):
    topology = Topology.from_cores(CORES, 1)
    given = [(CORES[i % len(CORES)],) if cores is None else cores for i in range(size)]
    gmis = tuple(GmiSpec(i, 0, ("simulator", "trainer"), "cpu", given[i], 4) for i in range(size))
    return Layout("tcg_ex", topology, gmis)


@pytest.fixture(scope="module", autouse=True)
def _running():
    """One fork server with torch for all tests of this file; the gangs find it running."""
    runtime.init(["torch", "gmi_drl.gmi", "gmi_drl.placement"])
    yield
    runtime.shutdown()


def gang(size, *script, **options):
    return Gang(layout(size), Stepper, lambda spec: (spec, script), **options)


def test_answers_come_in_the_layouts_order():
    with gang(3) as running:
        assert running.call("ping", 10, timeout=LONG) == [10, 11, 12]
        running.start_each("ping", {2: (5,), 0: (7,)})
        assert running.wait(LONG)
        assert running.results() == {2: 7, 0: 7}


def test_each_gmi_has_its_cores_and_threads():
    with gang(2) as running:
        seen = running.call("slice", timeout=LONG)
    assert seen == [({CORES[i % len(CORES)]}, 1, "1") for i in range(2)]
    with Gang(layout(1, tuple(CORES)), Stepper) as running:
        assert running.call("slice", timeout=LONG) == [(set(CORES), len(CORES), str(len(CORES)))]


def test_a_slice_that_cannot_be_had_is_an_error_with_the_gmi():
    with (
        Gang(layout(1, (4000,)), Stepper) as running,
        pytest.raises(GmiDied, match=r"gmi 0 \(simulator\+trainer\) raised") as caught,
    ):
        running.call("ping", timeout=LONG)
    assert "cores=[4000]" in str(caught.value)


def test_a_slice_that_is_not_had_is_a_slice_error(monkeypatch):
    one = layout(1)
    lying = GmiSpec(0, 0, ("trainer",), "direct", one.gmis[0].cores, 1, device_uuid="GPU-1")
    with (
        Gang(Layout("tcg_ex", one.topology, (lying,)), Stepper) as running,
        pytest.raises(GmiDied, match="GmiSpec 0: device GPU-1: ") as caught,
    ):
        running.call("ping", timeout=LONG)
    assert isinstance(caught.value.__cause__, SliceError)


def test_records_of_all():
    with gang(2) as running:
        assert running.call("run", 3, timeout=LONG) == [3, 3]
        assert running.records() == [(g, step) for g in (0, 1) for step in range(3)]


def test_stop_lets_them_finish_what_they_do():
    with gang(2) as running:
        running.start("run")
        while {gmi_id for gmi_id, _ in running.records()} != {0, 1}:
            assert not running.wait(timedelta(milliseconds=5))
        running.request_stop()
        assert running.wait(LONG)
        assert all(steps > 0 for steps in running.results().values())
        assert running.pids().keys() == {0, 1}
    assert running.pids() == {}
    with pytest.raises(RuntimeError, match="stopped"):
        running.call("ping")


@pytest.mark.parametrize(
    ("fault", "exit_code", "by_signal", "text"),
    [
        (faults.kill(gmi=1, at_step=5), None, signal.SIGKILL, "was killed by SIGKILL"),
        (faults.kill(gmi=1, at_step=5, by="SIGSEGV"), None, signal.SIGSEGV, "killed by SIGSEGV"),
        (faults.leave(gmi=1, at_step=5, code=3), 3, None, "exited with code 3"),
        (faults.raise_error(gmi=1, at_step=5), None, None, "Injected: gmi 1 at step 5"),
        (faults.raise_error(gmi=1, at_step=-1), None, None, "Injected: gmi 1 at step -1"),
    ],
)
def test_a_gmi_that_goes_down_is_named_and_the_others_are_stopped(
    fault, exit_code, by_signal, text
):
    with gang(3, fault) as running:
        with pytest.raises(GmiDied, match=text) as caught:
            running.call("run", timeout=LONG)
        error = caught.value
        assert (error.gmi_id, error.role) == (1, "simulator+trainer")
        assert (error.exit_code, error.signal) == (exit_code, by_signal)
        assert (error.others, error.stopped) == ((), (0, 2))
        if fault.at_step >= 0:  # it happened when it was to happen
            assert "step 5" in error.log_tail
            assert "step 6" not in error.log_tail
        assert running.pids() == {}
        told = [record for gmi_id, record in running.records() if gmi_id == 1]
        steps = list(range(fault.at_step))
        if fault.how == "raise":
            assert told == steps
        else:  # a process that goes without a word takes with it what it had not sent yet
            assert told == steps[: len(told)]
        with pytest.raises(GmiDied):
            running.wait(LONG)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(40))
def test_a_gmi_killed_at_any_moment_is_named(seed):
    draw = random.Random(seed)
    victim, by = draw.randrange(3), draw.choice(("SIGKILL", "SIGSEGV", "SIGABRT", "SIGTERM"))
    with gang(3, faults.kill(gmi=victim, at_step=draw.randrange(-1, 40), by=by)) as running:
        with pytest.raises(GmiDied) as caught:
            running.call("run", timeout=LONG)
        assert (caught.value.gmi_id, caught.value.others) == (victim, ())
        assert caught.value.signal == getattr(signal, by)
        assert len(caught.value.stopped) == 2
        assert running.pids() == {}


def test_who_was_first_is_told_from_those_who_followed():
    with gang(4) as running:
        pids = running.call("pid", timeout=LONG)
        running.start_each("follow", {0: (pids[2],), 3: (pids[2],)})
        os.kill(pids[2], signal.SIGKILL)
        with pytest.raises(GmiDied) as caught:
            running.wait(LONG)
    assert caught.value.gmi_id == 2
    assert caught.value.signal == signal.SIGKILL
    assert set(caught.value.others) <= {0, 3}
    assert set(caught.value.stopped) | set(caught.value.others) == {0, 1, 3}


def test_who_only_tells_that_a_peer_has_left_is_not_the_first(tmp_path):
    with gang(2) as running:
        running.start("fail_behind", tmp_path / "left")
        refs = list(running._pending.values())
        runtime.wait(refs, len(refs), LONG)  # so that it has both to choose from
        with pytest.raises(GmiDied, match="on purpose") as caught:
            running.wait(LONG)
    assert caught.value.gmi_id == 1
    assert caught.value.others == (0,)


def test_who_raises_before_its_device_is_known_to_be_lost_is_no_failure(tmp_path, monkeypatch):
    with gang(2, shrinks=True) as running:
        running.start("lose_the_device_behind", tmp_path / "failed")
        raised, other = running._pending[0], running._process_of[1].death
        runtime.wait([raised], 1, LONG)

        def wait_for_the_other():
            (tmp_path / "failed").touch()
            runtime.wait([other], 1, LONG)
            return []

        monkeypatch.setattr(running, "_pending_deaths", wait_for_the_other)
        running.check()
        assert running.lost_devices().keys() == {0}


def test_a_gang_can_be_stopped_without_any_grace(monkeypatch):
    given = []
    with gang(1) as running, monkeypatch.context() as patch:
        patch.setattr(runtime, "stop", lambda actors, grace, *_: given.append(grace))
        patch.setattr(running, "_release", lambda: None)
        running.stop(timedelta(0))
    assert given == [timedelta(0)]


def test_the_death_of_a_gmi_that_does_nothing_is_noticed_too():
    with gang(2) as running:
        os.kill(running.call("pid", timeout=LONG)[0], signal.SIGKILL)
        with pytest.raises(GmiDied, match=r"gmi 0 .* SIGKILL"):  # noqa: PT012
            while True:
                running.check()


def test_a_late_gmi_is_named():
    with gang(2, faults.hang(gmi=1, at_step=2), grace=timedelta(milliseconds=50)) as running:
        with pytest.raises(GmiTimeout, match=r"run timed out after 3 s: gmi 1 \(GPU 0\)"):
            running.call("run", 10, timeout=timedelta(seconds=3))
        assert running.pids().keys() == {0, 1}
    assert running.pids() == {}


def test_logs_and_variables(tmp_path):
    with gang(2, logs=tmp_path / "logs", env={"GMI_DRL_TEST_VARIABLE": "x"}) as running:
        running.call("run", 2, timeout=LONG)
    assert (tmp_path / "logs" / "gmi1.log").read_text() == "step 0\nstep 1\n"


def test_a_gang_that_cannot_be_started_leaves_nothing():
    with pytest.raises(runtime.SerializationError):
        Gang(layout(2), Stepper, lambda spec: (spec, threading.Lock()))
    for actor in session.running().all_actors():
        assert actor.dead


def test_shared_memory_reaches_every_gmi():
    memfd = runtime.Memfd.create("gang")
    memfd.resize(8)

    class Writer:
        def __init__(self, spec, shared):
            self.rank, self.shared = spec.gmi_id, shared

        def write(self):
            self.shared.map(self.rank, 1)[0] = 10 + self.rank

    with Gang(layout(3), Writer, lambda spec: (spec, memfd)) as running:
        running.call("write", timeout=LONG)
    assert bytes(memfd.map(0, 3)) == bytes([10, 11, 12])
    memfd.close()


def test_errors_survive_pickling():
    error = GmiDied(2, "trainer", None, 9, "the log", "", (1,), (0, 3))
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert (copy.others, copy.stopped) == ((1,), (0, 3))
    late = pickle.loads(pickle.dumps(GmiTimeout("late: gmi 3")))
    assert str(late) == "late: gmi 3"


def test_a_traceback_is_told_once_in_short_and_where_all_of_it_is():
    def deep(depth):
        if depth:
            deep(depth - 1)
        raise ValueError(f"the simulator broke\n  {depth} deep")

    try:
        try:
            deep(20)
        except ValueError as error:
            raise RuntimeError("no step") from error
    except RuntimeError:
        told = traceback.format_exc()
    for logged in (told, "\n".join(told.splitlines()[-20:]) + "\n", f"before\n{told}"):
        error = GmiDied(1, "trainer", log_tail=logged, error=told, log="runs/t/logs/gmi1.log")
        lines = str(pickle.loads(pickle.dumps(error))).splitlines()
        assert lines.count("ValueError: the simulator broke") == 1
        assert lines.count("  0 deep") == 1
        assert lines.count("RuntimeError: no step") == 1
        assert "its log: runs/t/logs/gmi1.log" in lines
        assert len(lines) < 30
        assert ("  | before" in lines) == logged.startswith("before")
    assert any("calls left out" in line for line in lines)
    short = str(GmiDied(1, "trainer", error="Traceback (most recent call last):\nValueError: x"))
    assert short.endswith("Traceback (most recent call last):\nValueError: x")


def test_a_death_by_something_else_is_told_apart_from_those_before():
    why = "it hung in phase rollout"
    told = str(
        GmiDied(
            0, "trainer", signal=9, stopped=(1,), log="runs/t/logs/gmi0.log", reason=why,
            deaths=(f"was killed by SIGKILL: {why}",),
        )
    ).splitlines()  # fmt: skip
    assert told == [
        f"gmi 0 (trainer) was killed by SIGKILL after it was restarted 1 time: {why}; "
        "stopped because of it: gmi 1",
        f"before that it was killed by SIGKILL: {why}",
        "  its log is empty",  # whose path would be of no use
    ]


LAUNCHER = """
import sys
import time
from datetime import timedelta
from bodies_gmi import Stepper
from gmi_drl.gmi import Gang
from gmi_drl.placement import GmiSpec, Layout, Topology

def until_deaf(gang):  # one that has not begun yet obeys
    told = set()
    while len(told) < 3:
        told.update(gmi for gmi, _ in gang.records())
        time.sleep(0.01)  # between two looks

topology = Topology.from_cores([{core}])
gmis = tuple(GmiSpec(i, 0, ("trainer",), "cpu", ({core},), 1) for i in range(3))
with Gang(Layout("tcg_ex", topology, gmis), Stepper, grace=timedelta(seconds={grace}),
          preload=["gmi_drl.gmi", "gmi_drl.placement"]) as gang:
    print(*gang.call("pid"), flush=True)
    gang.start({method!r})
    try:
        {inside}
        gang.wait()
    finally:
        print("leaving", flush=True)
"""


@pytest.fixture
def launch(tmp_path):
    """Runs LAUNCHER in a process of its own; returns it and the pids of its GMIs."""
    started = []

    def run(**parts):
        script = tmp_path / "launcher.py"
        script.write_text(LAUNCHER.format(core=CORES[0], **parts))
        process = subprocess.Popen(
            [sys.executable, str(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
        started.append(process)
        line = process.stdout.readline()
        assert line, process.stderr.read()
        return process, [int(pid) for pid in line.split()]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_control_c_stops_all_of_them(launch):
    process, pids = launch(grace=30, method="run", inside="print('ready', flush=True)")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert output == "leaving\n"
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert process.returncode == -signal.SIGINT
    assert all(gone(pid) for pid in pids)


def test_control_c_after_a_request_to_stop_kills_at_once(launch):
    process, pids = launch(
        grace=3600,
        method="deaf",
        inside="until_deaf(gang); gang.request_stop(); print('ready', flush=True)",
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30)[0] == "leaving\n"
    assert all(gone(pid) for pid in pids)


def test_a_second_control_c_kills_at_once(launch):
    process, pids = launch(
        grace=3600, method="deaf", inside="until_deaf(gang); print('ready', flush=True)"
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "leaving\n"
    assert not any(gone(pid) for pid in pids)
    while process.poll() is None:  # one may come before the stopping has begun
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
    assert all(gone(pid) for pid in pids)


# GMIs that come back ---------------------------------------------------------------------------


def test_a_killed_gmi_answers_from_a_new_process_in_the_same_slice(tmp_path):
    with gang(2, max_restarts=1) as running:
        before = running.call("pid", timeout=LONG)
        running.start_each("die_once", {1: (tmp_path / "died",)})
        assert running.wait(LONG)
        ((pid, cores, threads),) = running.results().values()
        assert (cores, threads) == ({CORES[1 % len(CORES)]}, "1")
        assert running.call("pid", timeout=LONG) == [before[0], pid]
        assert pid != before[1]
        assert running.pids() == {0: before[0], 1: pid}


def test_each_restart_is_told_once(tmp_path):
    with gang(2, max_restarts=3) as running:
        assert running.restarts() == []
        running.start_each("die_once", {gmi: (tmp_path / str(gmi),) for gmi in range(2)})
        assert running.wait(LONG)
        told = running.restarts()
        assert [gmi for gmi, _ in told] == [0, 1]
        assert {(death.signal, death.exit_code) for _, death in told} == {(signal.SIGKILL, None)}
        assert running.restarts() == []


def test_when_the_restarts_are_spent_all_deaths_are_named():
    with (
        gang(2, faults.kill(gmi=1, at_step=5, by="SIGSEGV"), max_restarts=2) as running,
        pytest.raises(GmiDied) as caught,
    ):
        running.call("run", timeout=LONG)
    assert (caught.value.gmi_id, caught.value.signal) == (1, signal.SIGSEGV)
    assert caught.value.deaths == ("was killed by SIGSEGV",) * 2
    first, second = str(caught.value).splitlines()[:2]
    assert first.startswith(
        "gmi 1 (simulator+trainer) was killed by SIGSEGV after it was restarted 2 times"
    )
    assert second == "before that it was killed by SIGSEGV, was killed by SIGSEGV"
    assert vars(pickle.loads(pickle.dumps(caught.value))) == vars(caught.value)


def test_a_fork_server_that_is_killed_is_named_and_not_a_gmi():
    pid = runtime.preloaded(LONG).pid
    with gang(2) as running:
        running.call("ping", timeout=LONG)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(GmiDied) as caught:
            running.call("run", timeout=LONG)
    assert str(caught.value).splitlines()[0] == (
        "gmi 0 (simulator+trainer) was killed by SIGKILL: it went down with the fork server "
        f"(pid {pid}), which was killed by SIGKILL; so did gmi 1"
    )
    assert vars(pickle.loads(pickle.dumps(caught.value))) == vars(caught.value)


def test_a_gmi_that_raises_is_not_restarted():
    with (
        gang(2, faults.raise_error(gmi=1, at_step=5), max_restarts=3) as running,
        pytest.raises(GmiDied, match=r"gmi 1 \(simulator\+trainer\) raised"),
    ):
        running.call("run", timeout=LONG)
    assert running.restarts() == []


def test_a_gmi_that_is_stopped_or_killed_on_purpose_does_not_come_back():
    for end in ("stop", "kill"):
        running = gang(2, max_restarts=3)
        running.call("pid", timeout=LONG)
        getattr(running, end)()
        assert running.pids() == {}
        assert running.restarts() == []


def test_ctrl_c_while_gmis_are_detached_gives_no_slice_back_under_the_living(monkeypatch):
    living = []
    with gang(2) as running:
        pids = running.call("pid", timeout=LONG)
        slices, release = running._slices, running._slices.release

        def interrupted(*_):
            raise KeyboardInterrupt

        def released():
            living.extend(pid for pid in pids if os.path.exists(f"/proc/{pid}"))
            release()

        monkeypatch.setattr(slices, "fence_all", interrupted)
        monkeypatch.setattr(slices, "release", released)
        with pytest.raises(KeyboardInterrupt):
            running.kill()
    assert living == []
