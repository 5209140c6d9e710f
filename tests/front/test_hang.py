"""GMIs that hang, or whose environments will not close: every run comes to an end, and says why."""

import json
import os
from pathlib import Path

import pytest

import bodies_hang as bodies
import bodies_spaces
import gmi_drl
from gmi_drl.comm.shm.heartbeat import Heartbeat, pulse
from gmi_drl.comm.shm.tally import create_tally
from gmi_drl.gmi import GmiDied
from gmi_drl.launcher.watch import watchdog
from gmi_drl.launcher.watch.watchdog import Watchdog
from gmi_drl.runtime.process.progress import bind, waiting
from small_jobs import job_file

HANG_S = 6.0  # far longer than a step takes on a busy machine


def config(tmp_path, **changes):
    return job_file(
        tmp_path,
        changes,
        run={
            "total_steps": 16 * 8 * 8, "checkpoint_every": 2, "eval_episodes": 0,
            "hang_timeout_s": HANG_S,
        },
        algorithm={"network": [8], "horizon": 16, "minibatches": 2, "epochs": 1},
        layout={"gmi_per_gpu": 1},
        comm={"timeout_s": 300},
    )  # fmt: skip


def launch(path, role, of="trainer"):
    return gmi_drl.launch(path, view="plain", roles={of: role})


def log_of(result, gmi=0):
    return (result.folder / "logs" / f"gmi{gmi}.log").read_text()


@pytest.mark.slow
def test_a_single_gmi_whose_environment_hangs_is_started_again(warm, tmp_path, monkeypatch, capfd):
    bodies.script(monkeypatch, tmp_path / "hangs", "hang_here", [0])
    result = launch(config(tmp_path), bodies.HangingHolistic)
    assert (result.state, result.restarts, result.steps) == ("finished", 1, 16 * 8 * 8)
    (entry,) = json.loads((result.folder / "run.json").read_text())["restarts"]
    assert "it hung in phase rollout: no progress for" in entry["how"]
    assert "sleeps; its log ends with its Python stack" in entry["how"]
    assert "in hang_here" in log_of(result)
    told = " ".join(capfd.readouterr().out.split())
    assert "gmi 0 was killed by SIGKILL: it hung in phase rollout" in told


@pytest.mark.slow
def test_a_hang_each_time_uses_up_the_restarts_and_fails_the_run_with_the_stack(
    warm, tmp_path, monkeypatch
):
    bodies.script(monkeypatch, tmp_path / "hangs", "hang_here", [0], times=2)
    with pytest.raises(GmiDied, match="after it was restarted 1 time") as caught:
        launch(config(tmp_path, run__max_restarts=1), bodies.HangingHolistic)
    first = str(caught.value).splitlines()[0]
    assert first.startswith("gmi 0 (simulator+agent+trainer) was killed by SIGKILL")
    assert ": it hung in phase rollout" in first
    assert "run.hang_timeout_s" in first
    assert "in hang_here" in str(caught.value)


@pytest.mark.slow
def test_all_gmis_stopped_at_once_are_started_again(warm, tmp_path, monkeypatch):
    bodies.script(monkeypatch, tmp_path / "hangs", "stop_here", [0, 1])
    path = config(tmp_path, layout__gmi_per_gpu=2, run__total_steps=2 * 16 * 8 * 8)
    result = launch(path, bodies.HangingHolistic)
    assert (result.state, result.restarts) == ("finished", 2)
    for entry in json.loads((result.folder / "run.json").read_text())["restarts"]:
        assert "is stopped by a signal (state T)" in entry["how"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "gmi", "how"),
    [("exit_here", 0, "exited with code 3"), ("hang_here", 1, "was killed by SIGKILL: it hung in")],
)
def test_of_two_the_one_that_exits_or_hangs_comes_back_and_not_the_one_that_waits(
    warm, tmp_path, monkeypatch, what, gmi, how
):
    bodies.script(monkeypatch, tmp_path / "script", what, [gmi])
    path = config(tmp_path, layout__gmi_per_gpu=2, run__total_steps=2 * 16 * 8 * 8)
    result = launch(path, bodies.HangingHolistic)
    assert (result.state, result.restarts) == ("finished", 1)
    (entry,) = json.loads((result.folder / "run.json").read_text())["restarts"]
    assert entry["gmi_id"] == gmi
    assert entry["how"].startswith(how)


@pytest.mark.slow
def test_who_is_late_for_a_meeting_leaves_its_stack_in_its_log(warm, tmp_path, monkeypatch):
    bodies.script(monkeypatch, tmp_path / "hangs", "hang_here", [1])
    path = config(tmp_path, layout__gmi_per_gpu=2, comm__timeout_s=10, run__hang_timeout_s=1200)
    with pytest.raises(GmiDied, match=r"rank 1 \(gmi 1"):
        launch(path, bodies.HangingHolistic)
    (log,) = (tmp_path / "runs").glob("t/*/logs/gmi1.log")
    assert "in hang_here" in log.read_text()


@pytest.mark.slow
def test_a_serving_gmi_that_is_stopped_is_started_again(warm, tmp_path, monkeypatch):
    bodies.script(monkeypatch, tmp_path / "hangs", "stop_here", [0])
    result = launch(config(tmp_path, mode="serving"), bodies.HangingServing, "agent")
    assert (result.state, result.restarts, result.steps) == ("finished", 1, 16 * 8 * 8)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["tdg_ex", "async"])
def test_an_agent_that_hangs_is_ended_while_its_trainer_waits(warm, tmp_path, monkeypatch, mode):
    bodies.script(monkeypatch, tmp_path / "hangs", "hang_here", [0])
    changes = {"layout__template": "tdg_ex", "layout__gmi_per_gpu": 2}
    if mode == "async":
        changes = {"mode": "async", "hardware__num_gpus": 2}
    result = launch(config(tmp_path, **changes), bodies.HangingAgent, "agent")
    assert (result.state, result.restarts) == ("finished", 1)


# Roles of the user's own -----------------------------------------------------------------------


def test_a_role_that_never_says_what_it_does_is_not_watched(warm, tmp_path):
    result = launch(config(tmp_path, run__hang_timeout_s=0.5), bodies.SaysNothing)
    assert (result.state, result.gmis) == ("finished", ["done"])


def test_a_role_is_watched_from_its_first_progress_on(warm, tmp_path):
    with pytest.raises(GmiDied, match="it hung in phase iteration") as caught:
        launch(config(tmp_path, run__hang_timeout_s=0.5), bodies.SaysItOnce)
    assert "in hang_here" in str(caught.value)


# Closing ---------------------------------------------------------------------------------------


def test_a_close_that_hangs_is_told_and_the_run_is_done(warm, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(watchdog, "_CLOSING_S", 2.0)
    result = launch(config(tmp_path, run__eval_episodes=4), bodies.CloseHangs)
    assert (result.state, result.steps) == ("finished", 16 * 8 * 8)
    assert result.eval_return > 0
    told = " ".join(capfd.readouterr().out.split())
    assert "gmi 0: close() of the environments has not returned after 2 s" in told
    assert "in hang_here" in log_of(result)


def test_a_close_that_raises_is_told_and_the_run_is_done(warm, tmp_path, capfd):
    result = launch(config(tmp_path), bodies.CloseRaises)
    assert (result.state, result.restarts) == ("finished", 0)
    assert "gmi 0: raise_here raised RuntimeError: the simulator has gone already" in " ".join(
        capfd.readouterr().out.split()
    )
    assert "Traceback (most recent call last)" in log_of(result)


def test_a_close_that_raises_is_told_once_by_the_name_of_its_environment(warm, tmp_path, capfd):
    env_id = "bodies_spaces:CloseRaises-v0"
    path = config(tmp_path, env__id=env_id, run__eval_episodes=2)
    result = gmi_drl.launch(path, view="plain", import_path=Path(bodies_spaces.__file__).parent)
    assert result.state == "finished"
    (told,) = (line for line in capfd.readouterr().out.splitlines() if "its close raised" in line)
    assert f"gmi 0: env {env_id}: its close raised RuntimeError: no licence file (" in told
    assert told.endswith("what was trained is not lost by that; the traceback is in its log")


def test_a_close_that_crashes_is_told_and_the_run_is_done(warm, tmp_path, capfd):
    result = launch(config(tmp_path), bodies.CloseCrashes)
    assert (result.state, result.restarts) == ("finished", 0)
    told = " ".join(capfd.readouterr().out.split())
    assert "gmi 0 was killed by SIGKILL while it closed its environments" in told


def test_why_a_role_raised_is_told_although_its_close_hangs(warm, tmp_path):
    with pytest.raises(GmiDied, match="ValueError: on purpose"):
        launch(config(tmp_path), bodies.RaisesAndWontClose)


def test_an_evaluation_whose_episodes_never_end_is_cut_and_says_so(warm, tmp_path, capfd):
    result = launch(config(tmp_path, run__eval_episodes=4), bodies.EndlessEvaluation)
    assert result.eval_return == 60.0  # CartPole pays one a step
    assert (result.gmis[0]["eval_episodes"], result.gmis[0]["eval_cut"]) == (4, 4)
    assert "4 of 4 episodes of the evaluation had not ended after 60 steps" in " ".join(
        capfd.readouterr().out.split()
    )


# The watchdog alone ----------------------------------------------------------------------------


class Gang:
    """GMIs that do nothing by themselves; their process is this one."""

    def __init__(self, pids):
        self.pids, self.ended = pids, []

    def at_work(self):
        return self.pids

    def write_stacks(self, gmi_id):
        return True

    def end(self, gmi_id, why):
        self.ended.append((gmi_id, why))


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def monotonic(self):
        return self.now_s


@pytest.fixture
def watched(monkeypatch):
    """A watchdog of two GMIs with 10 s, their heartbeats, and time that passes."""
    clock, gang = Clock(), Gang(dict.fromkeys((0, 1), os.getpid()))
    monkeypatch.setattr("gmi_drl.launcher.watch.watchdog.time", clock)
    tally = create_tally(2, ("heartbeat",)).open()
    dog = Watchdog(gang, tally, 10.0)

    def passes(seconds, look_s=0.5):
        for _ in range(int(seconds / look_s)):
            clock.now_s += look_s
            dog.look()
        return [gmi_id for gmi_id, _ in gang.ended]

    passes(1)
    return [Heartbeat(tally, gmi_id) for gmi_id in (0, 1)], passes, gang


def test_who_is_silent_in_a_phase_is_ended_and_who_beats_is_not(watched):
    (first, second), passes, gang = watched
    first.beat("rollout")
    second.beat("update")
    passes(8)
    first.beat()
    assert passes(4) == [1]
    # Both are in this process: their deaths are one, and who hung is named.
    assert gang.ended[0][1].startswith("gmi 1 of it hung in phase update")


def test_who_waits_for_another_is_not_ended_and_has_all_the_time_after_it(watched):
    (first, second), passes, _ = watched
    first.beat("")
    second.beat("update")
    bind(second)
    try:
        with waiting:
            assert passes(100) == []
        assert passes(8) == []
        assert passes(4) == [1]
    finally:
        bind(None)


def test_a_process_that_is_stopped_is_ended_whatever_its_gmi_says(watched, monkeypatch):
    (first, second), passes, gang = watched
    first.beat("")
    second.begin_wait()
    assert passes(20) == []
    monkeypatch.setattr("gmi_drl.launcher.watch.watchdog._state_of", lambda pid: "T")
    passes(0.5)
    assert "hung at work" in gang.ended[0][1]
    assert "is stopped by a signal" in gang.ended[0][1]


def test_set_up_has_twenty_minutes_at_least(watched):
    _, passes, gang = watched
    assert passes(1190) == []
    passes(20)
    assert "in phase set-up" in gang.ended[0][1]


def test_a_new_process_is_in_its_set_up_until_it_says_more(watched):
    (first, second), passes, gang = watched
    second.beat("")
    first.beat("rollout")
    passes(5)
    gang.pids = gang.pids | {0: 1}  # its word is still that of the process before it
    assert passes(100) == []


def test_who_hangs_before_the_first_look_is_ended_too(watched):
    (first, second), passes, gang = watched
    gang.pids = {1: os.getpid()}  # gmi 0 has no process yet
    second.beat("")
    passes(5)
    first.beat("rollout")
    gang.pids = dict.fromkeys((0, 1), os.getpid())
    assert passes(20) == [0]


def test_the_count_of_beats_begins_again_and_hides_neither_phase_nor_process():
    tally = create_tally(1, ("heartbeat",)).open()
    heart = Heartbeat(tally, 0)
    heart.beat("rollout")
    heart._word |= -1 << 30 & (1 << 64) - 1  # the last beat that can be counted
    heart.beat()
    assert pulse(tally[0, "heartbeat"]) == ("rollout", False, os.getpid())
    heart.begin_wait()
    assert pulse(tally[0, "heartbeat"]) == ("rollout", True, os.getpid())


def test_time_in_which_the_launcher_did_not_run_is_no_silence(watched):
    (first, second), passes, _ = watched
    first.beat("rollout")
    second.beat("rollout")
    passes(5)
    assert passes(600, look_s=600) == []  # one look, after ten minutes
