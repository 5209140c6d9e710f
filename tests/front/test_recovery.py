"""GMIs that are killed while they train: the run ends as if nothing had been."""

import itertools
import json
import os
import re
from pathlib import Path

import pytest

import bodies_recovery
import faults
import gmi_drl
import killers
from gmi_drl import runtime
from gmi_drl.gmi import GmiDied
from run_files import metrics
from small_jobs import job_file

pytestmark = pytest.mark.usefixtures("warm")


ITERATIONS = 6


def config(tmp_path, gmis=2, **changes):
    return job_file(
        tmp_path,
        changes,
        run={
            "total_steps": ITERATIONS * 16 * 8 * gmis, "checkpoint_every": 2, "eval_episodes": 4,
        },
        algorithm={"network": [16], "horizon": 16, "minibatches": 2, "epochs": 1},
        layout={"gmi_per_gpu": gmis},
        comm={"checksum_every": 1},
    )  # fmt: skip


def launch(path, role=bodies_recovery.Mortal, **options):
    return gmi_drl.launch(path, view="none", roles={"trainer": role}, **options)


def begun(path, gmi):
    """The iterations a GMI has begun, over all its processes."""
    return [int(line.split()[0]) for line in (path / f"begun{gmi}").read_text().splitlines()]


def check_whole(result, path, moments, gmis=2, lost=1):
    """`lost`: how many iterations a kill may cost; one where a GMI survives."""
    assert faults.struck(path) == len(moments)
    assert result.restarts == len(moments)
    assert (result.state, result.iteration) == ("finished", ITERATIONS)
    assert [line["iteration"] for line in metrics(result.folder)] == list(range(1, ITERATIONS + 1))
    assert all(answer == result.gmis[0] for answer in result.gmis)
    assert result.gmis[0]["eval_return"] > 0
    checkpoints = sorted(entry.name for entry in (result.folder / "checkpoints").iterdir())
    assert checkpoints == ["iteration_000002", "iteration_000004", "iteration_000006"]
    recorded = json.loads((result.folder / "run.json").read_text())["restarts"]
    assert sorted(entry["gmi_id"] for entry in recorded) == sorted(m[0] for m in moments)
    for gmi in range(gmis):
        extra = len(begun(path, gmi)) - ITERATIONS
        assert extra <= lost * len(moments)


@pytest.mark.parametrize(
    "moments",
    [
        [(1, "start", 0)],
        [(0, "simulate", 3)],
        [(1, "reduce", 3)],
        [(0, "checkpoint", 4)],
        [(1, "reduce", 3), (0, "take over", 3)],
        *(
            pytest.param(moments, marks=pytest.mark.slow)
            for moments in (
                [(0, "start", 0)],
                [(1, "assembled", 0)],
                [(1, "simulate", 0)],
                [(1, "simulate", 3)],
                [(0, "reduce", 2)],
                [(1, "checkpoint", 4)],
                [(0, "committed", 4)],
                [(1, "evaluate", 6)],
                [(0, "evaluate", 6)],
                [(1, "finished", 6)],
                [(0, "finished", 6)],
                [(1, "reduce", 3), (1, "reduce", 3)],
                [(1, "reduce", 3), (1, "take over", 0)],
                [(0, "reduce", 1), (1, "reduce", 3), (0, "simulate", 5)],
            )
        ),
    ],
    ids=lambda moments: " and ".join(f"{g} at {p} {i}" for g, p, i in moments),
)
def test_a_killed_gmi_comes_back_and_the_run_is_whole(tmp_path, monkeypatch, moments):
    path = tmp_path / "faults"
    faults.script(monkeypatch, path, *moments)
    check_whole(launch(config(tmp_path)), path, moments)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 3, reason="three GMIs need three cores")
def test_two_of_three_at_once_take_everything_from_the_third(tmp_path, monkeypatch):
    path, moments = tmp_path / "faults", [(0, "reduce", 3), (2, "reduce", 3)]
    faults.script(monkeypatch, path, *moments)
    check_whole(launch(config(tmp_path, gmis=3)), path, moments, gmis=3)


def test_a_gmi_that_took_the_state_over_can_give_it_at_once(tmp_path, monkeypatch):
    """Who gave it dies before the next iteration; with no checkpoint all would be lost."""
    path, moments = tmp_path / "faults", [(1, "reduce", 3), (0, "took over", 3)]
    faults.script(monkeypatch, path, *moments)
    result = launch(config(tmp_path, run__checkpoint_every=0))
    assert faults.struck(path) == result.restarts == 2
    assert begun(path, 1) == [0, 1, 2, 3, 3, 4, 5]
    assert result.gmis[0] == result.gmis[1]


def test_when_none_lives_all_go_on_from_the_last_checkpoint(tmp_path, monkeypatch):
    path, moments = tmp_path / "faults", [(0, "simulate", 3), (1, "simulate", 3)]
    faults.script(monkeypatch, path, *moments)
    check_whole(launch(config(tmp_path)), path, moments, lost=2)
    assert set(begun(path, 0)) == set(range(ITERATIONS))


@pytest.mark.slow
def test_when_the_fork_server_is_killed_it_is_named_and_all_go_on(tmp_path, monkeypatch, capsys):
    path, before = tmp_path / "faults", runtime.preloaded().pid
    faults.script(monkeypatch, path, (1, "simulate", 3))
    result = gmi_drl.launch(
        config(tmp_path), view="plain", roles={"trainer": bodies_recovery.Parricide}
    )
    assert (result.state, result.iteration, result.restarts) == ("finished", ITERATIONS, 2)
    assert faults.struck(path) == 1
    assert [line["iteration"] for line in metrics(result.folder)] == list(range(1, ITERATIONS + 1))
    why = f"it went down with the fork server (pid {before}), which was killed by SIGKILL"
    recorded = json.loads((result.folder / "run.json").read_text())["restarts"]
    assert [entry["how"] for entry in recorded] == [f"was killed by SIGKILL: {why}"] * 2
    assert capsys.readouterr().out.count(f"{why}; restarted on its slice (1 of 3)") == 2


def test_when_none_lives_and_nothing_was_saved_training_begins_anew(tmp_path, monkeypatch):
    path, moments = tmp_path / "faults", [(0, "simulate", 1), (1, "simulate", 1)]
    faults.script(monkeypatch, path, *moments)
    check_whole(launch(config(tmp_path)), path, moments, lost=2)  # iterations 0 and 1, each time


@pytest.mark.parametrize("point", ["start", "simulate", "reduce", "checkpoint", "finished"])
def test_the_only_gmi_goes_on_from_its_last_checkpoint(tmp_path, monkeypatch, point):
    iteration = {"start": 0, "checkpoint": 4, "finished": 6}.get(point, 3)
    path, moments = tmp_path / "faults", [(0, point, iteration)]
    faults.script(monkeypatch, path, *moments)
    check_whole(launch(config(tmp_path, gmis=1)), path, moments, gmis=1, lost=2)
    if iteration == 3:
        assert begun(path, 0) == [0, 1, 2, 3, 2, 3, 4, 5]


def test_a_resumed_run_that_is_lost_begins_again_where_it_was_resumed(tmp_path, monkeypatch):
    """Not from checkpoints of the old line that lie beyond."""
    faults.script(monkeypatch, tmp_path / "none")
    run = launch(config(tmp_path, gmis=1, run__checkpoint_every=2))
    path = tmp_path / "faults"
    faults.script(monkeypatch, path, (0, "simulate", 3))
    resumed = gmi_drl.launch(
        resume=run.folder / "checkpoints" / "iteration_000002",
        overrides=["run.checkpoint_every=5"],
        roles={"trainer": bodies_recovery.Mortal},
        view="none",
    )
    assert begun(path, 0) == [2, 3, 2, 3, 4, 5]
    assert [line["iteration"] for line in metrics(resumed.folder)] == [1, 2, 3, 4, 5, 6]


def test_a_gmi_that_dies_again_and_again_ends_the_run(tmp_path, monkeypatch):
    path = tmp_path / "faults"
    faults.script(monkeypatch, path, *[(1, "simulate", 2)] * 3)
    with pytest.raises(GmiDied, match=r"gmi 1 .*killed by SIGKILL after it was restarted 2 times"):
        launch(config(tmp_path, run__max_restarts=2))
    assert faults.struck(path) == 3


def test_without_restarts_the_first_death_ends_the_run(tmp_path, monkeypatch):
    path = tmp_path / "faults"
    faults.script(monkeypatch, path, (1, "simulate", 5))
    with pytest.raises(GmiDied, match=r"gmi 1 .*killed by SIGKILL; stopped") as died:
        launch(config(tmp_path, run__max_restarts=0))
    (folder,) = (tmp_path / "runs" / "t").iterdir()
    assert died.value.__notes__ == [f"to go on: gmi-drl launch --resume {folder}"]
    assert str(died.value).endswith("its log is empty")


def test_a_role_that_is_not_recoverable_is_not_restarted(tmp_path, monkeypatch):
    path = tmp_path / "faults"
    faults.script(monkeypatch, path, *[(1, "run", 0)] * 2)
    with pytest.raises(GmiDied, match=r"gmi 1 .*killed by SIGKILL"):
        launch(config(tmp_path), role=bodies_recovery.Stubborn)
    assert faults.struck(path) == 1


STRICKEN = """
import faults
import gmi_drl
import killers
from gmi_drl.comm import GroupFinished, GroupReformed

{example}

class Role(Counting):
    def GMI_run(self):
        allreduce = self.mgr.allreduce

        def stricken(number, *rest):
            faults.strike(self.GMI_id, "count", int(number))
            return allreduce(number, *rest)

        self.mgr.allreduce = stricken
        return super().GMI_run()
"""


@pytest.mark.parametrize("at", [(1, 0), (0, 20), (1, 99)])
def test_the_role_of_the_page_comes_back(tmp_path, monkeypatch, at):
    page = (Path(__file__).parents[2] / "docs" / "recovery.md").read_text()
    (example,) = [b for b in re.findall(r"```python\n(.*?)```", page, re.S) if "Counting" in b]
    (tmp_path / "mine.py").write_text(STRICKEN.format(example=example))
    gmi, number = at
    faults.script(monkeypatch, tmp_path / "faults", (gmi, "count", number))
    result = gmi_drl.launch(config(tmp_path, roles__trainer="mine:Role"), view="none")
    assert result.gmis == [100, 100]
    assert result.restarts == faults.struck(tmp_path / "faults") == 1


def test_a_role_named_in_the_config_may_say_that_it_is_not_recoverable(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("from bodies_recovery import Stubborn as Role\n")
    path = tmp_path / "faults"
    faults.script(monkeypatch, path, *[(1, "run", 0)] * 2)
    with pytest.raises(GmiDied, match=r"gmi 1 .*killed by SIGKILL"):
        gmi_drl.launch(config(tmp_path, roles__trainer="mine:Role"), view="none")
    assert faults.struck(path) == 1


def test_the_user_is_told(tmp_path, monkeypatch, capsys):
    faults.script(monkeypatch, tmp_path / "faults", (1, "reduce", 3))
    gmi_drl.launch(config(tmp_path), view="plain", roles={"trainer": bodies_recovery.Mortal})
    told = capsys.readouterr().out
    assert "warning: gmi 1 was killed by SIGKILL; restarted on its slice (1 of 3)" in told


def last_process(path, gmi):
    """The process in which a GMI began its last iteration; None before the first."""
    try:
        return int((path / f"begun{gmi}").read_text().splitlines()[-1].split()[1])
    except (OSError, IndexError, ValueError):
        return None


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_many_kills_at_random_moments_cost_iterations_and_not_what_is_learned(
    tmp_path, monkeypatch
):
    iterations = 60
    job = config(
        tmp_path,
        run__total_steps=iterations * 2 * 16 * 64, run__checkpoint_every=20,
        run__max_restarts=1000, run__eval_episodes=20,
        env__num_env=16, env__max_episode_steps=200,
        algorithm__horizon=64, algorithm__epochs=4, algorithm__network=[64, 64],
        algorithm__learning_rate=1e-3,
    )  # fmt: skip
    path = tmp_path / "faults"
    faults.script(monkeypatch, path)
    dead = {None}

    def both():
        """The GMIs, once the last one that was killed trains again."""
        processes = [last_process(path, gmi) for gmi in range(2)]
        return [] if dead & {*processes} else processes

    def kill(pid):
        dead.add(pid)
        return killers.kill_started(pid)

    with killers.Killer(7, 0.3, both, kill, itertools.count().__next__, most=20):
        result = launch(job)
    assert (result.state, result.iteration) == ("finished", iterations)
    assert result.restarts >= 12  # of 20, or as many as a slow machine found time for
    assert [line["iteration"] for line in metrics(result.folder)] == list(range(1, iterations + 1))
    assert result.gmis[0] == result.gmis[1]
    lost = max(len(begun(path, gmi)) for gmi in range(2)) - iterations
    assert lost <= result.restarts
    assert result.eval_return > 100  # of 200; a policy at random has 22
