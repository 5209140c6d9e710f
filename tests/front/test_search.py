"""`search`, end to end: real trials, side by side; it is gone on with, and its best launches."""

import contextlib
import functools
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import traceback
from datetime import timedelta
from pathlib import Path

import pytest
from rich.console import Console

import bodies_search
import gmi_drl
from gmi_drl.launcher.plan.planning import faults_of, planned
from gmi_drl.launcher.view.view import opened
from gmi_drl.placement import ConfigError, load_config
from gmi_drl.placement.config.yaml_text import write_yaml
from gmi_drl.runtime.cache_files import locked
from gmi_drl.runtime.errors import task_error
from gmi_drl.selector.errors import SearchError
from gmi_drl.selector.record.search_folder import RECORD, SearchFolder
from gmi_drl.selector.search import ranges as ranges_of
from gmi_drl.selector.search import searching
from gmi_drl.selector.search.faults import section_faults
from gmi_drl.selector.search.search_view import SearchProgress, SearchView, print_search
from gmi_drl.selector.search.searching import search
from gmi_drl.selector.search.trial_run import TrialRun

TESTS = Path(__file__).resolve().parents[1]
CORES = sorted(os.sched_getaffinity(0))
RATE = "algorithm.learning_rate"
NAME = "1e5"  # text, though it looks like a number
FROM_RUN_TO_RUN = {"seconds", "total_s", "checkpoint"}


pytestmark = pytest.mark.usefixtures("warm")


def written(folder, **sections):
    """A small search's config file: 256 steps an iteration, and 14 runs, some of which fail."""
    data = {
        "version": 1,
        "run": {"name": NAME, "total_steps": 2048, "seed": 3},
        "env": {"id": "CartPole-v1", "num_env": 8},
        "algorithm": {"network": [16], "horizon": 32, "epochs": 2, "schedule": "constant"},
        "search": {
            "folder": str(folder / "searches"),
            "min_steps": 512,
            "eta": 2,
            "ranges": {RATE: {"log_uniform": [1e-4, 1.0]}},
        },
        **sections,
    }
    path = folder / "config.yaml"
    path.write_text(write_yaml(data))
    return path


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A search that is done, with trials that fail because of their values."""
    folder = tmp_path_factory.mktemp("search")
    shutil.copy(TESTS / "bodies_search.py", folder / "own_role.py")
    path = written(folder, roles={"trainer": "own_role:FailsAboveATenth"})
    return path, search(path, view="none")


def essence(lines):
    """What a search found, by run: not when, nor in which order."""
    return {
        (line["trial"], line["number"]): {
            key: json.loads(json.dumps(value))
            for key, value in line.items()
            if key not in FROM_RUN_TO_RUN
        }
        for line in lines
    }


@pytest.mark.slow
def test_failed_trials_do_not_end_a_search_and_its_best_trains_the_same_again(searched, tmp_path):
    path, result = searched
    failed = [line for line in result.lines if line["kind"] == "failed"]
    assert failed
    assert all(line["values"][RATE] > 0.1 for line in failed)
    assert all(line["text"] == "ValueError: a rate of no use" for line in failed)
    assert result.values[RATE] < 0.1
    assert result.steps == 2048
    assert result.picture.stat().st_size > 10_000
    assert result.best_config == path.with_name("config.best.yaml")  # where the role is found
    again = gmi_drl.launch(
        result.best_config,
        overrides=[f"run.folder={tmp_path}", f"hardware.cores=[{CORES[0]}]"],
        view="none",
    )
    assert (again.steps, again.return_mean) == (result.steps, result.return_mean)


def told(result):
    console = Console(file=io.StringIO(), width=200, force_terminal=False)
    print_search(console, result)
    return console.file.getvalue()


def test_what_is_found_is_told_as_a_table(searched):
    _, result = searched
    text = told(result)
    assert "learning_rate" in text
    assert f"{result.failed} runs failed; the first, of trial" in text
    assert f"config: {result.best_config}" in text


def test_a_search_is_seen_as_it_goes(searched, capsys):
    path, result = searched
    run = TrialRun(7, 1, result.values, 2048)
    running = [(run, 512, None, "cores 1")]
    failed = next(line for line in result.lines if line["kind"] == "failed")
    best = next(line for line in result.lines if line["kind"] == "ended")
    with opened("live", functools.partial(SearchView, load_config(path), 14)) as view:
        view.note("search here")
        view.ended(failed, SearchProgress(1, 1, 14, running, None, 3.0))
        view.show(SearchProgress(2, 1, 14, running, best, 65.0))
    shown = " ".join(capsys.readouterr().out.split())
    for text in ("search here", "failed: ValueError", "cores 1", "512", "2,048", "best: trial",
                 "2 of 14 runs, 1 failed, 1:05"):  # fmt: skip
        assert text in shown


def test_a_policy_that_was_found_can_be_served(searched, tmp_path):
    _, result = searched
    overrides = ["mode=serving", f"run.policy={result.checkpoint}", "run.total_steps=256",
                 f"run.folder={tmp_path}", "roles={}", "search=null"]  # fmt: skip
    served = gmi_drl.launch(result.best_config, overrides=overrides, view="none")
    assert served.state == "finished"


def test_a_search_that_is_done_is_answered_from_its_record(searched):
    path, result = searched
    record = (result.folder / RECORD).read_bytes()
    found = search(path, view="none")
    assert (found.recalled, result.recalled) == (True, False)
    assert f"{result.folder} was done before" in told(found)
    assert essence(found.lines) == essence(result.lines)
    assert (result.folder / RECORD).read_bytes() == record


class StoppedByHand:
    """A view that Ctrl-C comes to when so many runs have ended."""

    def __init__(self, after):
        self.left, self.notes = after, []

    def note(self, text):
        self.notes.append(text)

    def show(self, progress):
        pass

    def ended(self, line, progress):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_a_search_that_was_stopped_goes_on_one_trial_at_a_time_and_finds_the_same(
    searched, tmp_path, monkeypatch
):
    (path, result), after = searched, 9
    here = f"search.folder={tmp_path}"
    with monkeypatch.context() as patch:
        view = StoppedByHand(after)
        patch.setattr(searching, "opened", lambda *_: contextlib.nullcontext(view))
        with pytest.raises(KeyboardInterrupt):
            search(path, overrides=[here])
    assert view.notes[-1].startswith(f"ended with {after} of 14 runs done; the same command")
    (folder,) = (tmp_path / NAME).iterdir()
    with open(folder / RECORD, "a") as record:  # as a kill in the middle of writing leaves it
        record.write('{"kind": "ended", "tri')
    found = search(path, overrides=[here, "search.trials_at_once=1"], view="none")
    assert found.resumed
    assert found.folder == folder
    assert essence(found.lines) == essence(result.lines)
    lines = [json.loads(line) for line in (folder / RECORD).read_text().splitlines()]
    asked = [(line["trial"], line["number"]) for line in lines if line["kind"] == "asked"]
    assert len(asked) == len(set(asked))
    assert lines[-1]["kind"] == "finished"


def test_members_of_a_population_go_on_from_others_with_the_values_they_are_given(tmp_path):
    path = written(
        tmp_path,
        search={
            "algorithm": "pbt",
            "folder": str(tmp_path),
            "population": 4,
            "interval_steps": 512,
            "truncation": 0.5,
            "synchronous": True,
            "ranges": {
                RATE: {"log_uniform": [1e-4, 1e-1]},
                "algorithm.horizon": {"choice": [32, 16]},
            },
        },
    )
    result = search(path, view="none")
    assert result.failed == 0
    lines = {(line["trial"], line["number"]): line for line in result.lines}
    assert len(lines) == 16
    copied = [its for its in lines.values() if its["start"] and its["start"][0] != its["trial"]]
    assert len(copied) == 2 * 3
    for key, line in lines.items():
        folder = result.folder / "trials" / f"{key[0]:03d}" / str(key[1])
        first = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
        assert first["learning_rate"] == line["values"][RATE]
        before = lines[tuple(line["start"])]["reached"] if line["start"] else 0
        assert first["steps"] == before + 8 * line["values"]["algorithm.horizon"]
    kept = {path.parent.parent for path in result.folder.glob("trials/*/*/checkpoints/*")}
    assert all(folder.name == "3" for folder in kept)  # what nobody goes on from has gone
    assert result.checkpoint.is_dir()


@pytest.mark.parametrize("replays", [False, True])
def test_a_copy_draws_numbers_of_its_own_and_the_same_ones_in_each_search(tmp_path, replays):
    dqn = {"name": "dqn", "network": [16], "horizon": 32, "replay_capacity": 2048,
           "replay_start": 64, "updates_per_row": 0.1, "batch_size": 16}  # fmt: skip
    changes = {"algorithm": dqn} if replays else {}
    searches = []
    for name in ("one", "other"):
        path = written(
            tmp_path,
            roles={"trainer": "bodies_search:Tells"},
            search={
                "algorithm": "pbt", "folder": str(tmp_path / name), "population": 4,
                "interval_steps": 1024, "truncation": 0.5, "synchronous": True,
                "ranges": {RATE: {"log_uniform": [1e-4, 1e-1]}},
            },
            **changes,
        )  # fmt: skip
        result = search(path, view="none")
        assert result.failed == 0
        searches.append({})
        for line in result.lines:
            folder = result.folder / "trials" / f"{line['trial']:03d}" / str(line["number"])
            drawn = json.loads((folder / "drawn.json").read_text())
            searches[-1][line["trial"], line["number"]] = (line["start"], drawn)
    assert searches[0] == searches[1]
    second = [one for (_, number), one in searches[0].items() if number == 1]
    copies = [start[0] for start, _ in second]
    assert len(set(copies)) < 4  # some go on from the same one
    for what in bodies_search.DRAWN:
        assert len({str(drawn[what]) for _, drawn in second}) == 4, what
    # What a replay has is learned from further.
    assert [drawn["rows"] for _, drawn in second] == [1024 if replays else 0] * 4


def test_any_algorithm_is_searched_in_any_layout_and_a_gmi_of_a_trial_may_die(tmp_path):
    """A replay in one GMI, and IMPALA in two: an agent, and a trainer that is killed."""
    dqn = {"name": "dqn", "network": [16], "horizon": 16, "replay_capacity": 2048,
           "replay_start": 64, "updates_per_row": 0.1, "batch_size": 16}  # fmt: skip
    pbt = {"algorithm": "pbt", "population": 2, "folder": str(tmp_path)}
    path = written(
        tmp_path,
        run={"name": "dqn", "total_steps": 1024, "seed": 3},
        algorithm=dqn,
        search={**pbt, "interval_steps": 512, "ranges": {
            RATE: {"log_uniform": [1e-4, 1e-1]}, "algorithm.epsilon": {"uniform": [0.01, 0.3]},
        }},
    )  # fmt: skip
    result = search(path, view="none")
    assert (result.failed, result.steps, len(result.lines)) == (0, 1024, 4)
    assert set(result.values) == {RATE, "algorithm.epsilon"}

    path = written(
        tmp_path,
        run={"name": "impala", "total_steps": 1024, "seed": 3},
        mode="async",
        algorithm={"name": "impala", "network": [16], "horizon": 16, "schedule": "constant"},
        layout={"template": "decoupled"},
        roles={"trainer": "bodies_search:DiesOnce"},
        search={**pbt, "devices": 2, "interval_steps": 512,
                "ranges": {RATE: {"log_uniform": [1e-4, 1e-1]}}},
    )  # fmt: skip
    result = search(path, view="none")
    assert (result.failed, result.steps >= 1024, len(result.lines)) == (0, True, 4)
    assert (result.folder / "trials" / "died").exists()
    lines = {(line["trial"], line["number"]): line for line in result.lines}
    assert sum(its["start"][0] != its["trial"] for its in lines.values() if its["start"]) == 1
    for key, line in lines.items():
        folder = result.folder / "trials" / f"{key[0]:03d}" / str(key[1])
        first = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
        assert first["steps"] > (lines[tuple(line["start"])]["reached"] if line["start"] else 0)


def test_a_trial_that_hangs_is_ended_and_when_all_fail_the_first_is_told(tmp_path):
    path = written(
        tmp_path,
        roles={"trainer": "bodies_search:Held"},
        search={
            "algorithm": "pbt",
            "folder": str(tmp_path),
            "population": 2,
            "interval_steps": 2048,
            "timeout_s": 0.2,
            "ranges": {RATE: {"log_uniform": [1e-4, 1e-1]}},
        },
    )
    with pytest.raises(SearchError) as caught:
        search(path, view="none")
    assert "2 trials, and all failed. The first, trial" in str(caught.value)
    assert "has written no metrics for 0.2 s (search.timeout_s)" in str(caught.value)


@pytest.mark.slow
def test_a_search_in_which_nothing_works_ends_early(tmp_path):
    ranges = {RATE: {"log_uniform": [0.2, 1.0]}}
    path = written(
        tmp_path,
        roles={"trainer": "bodies_search:FailsAboveATenth"},
        search={"folder": str(tmp_path), "min_steps": 512, "eta": 2, "ranges": ranges},
    )
    for said in ("^[89] trials, and all failed", "^10 trials, .* anew with --again"):
        with pytest.raises(SearchError, match=said):  # it goes on: what failed may be mended
            search(path, view="none")
    for role, said in (("Nobody", "bodies_search has no Nobody"), ("Pending", "is no DRL_role")):
        with pytest.raises(SearchError, match=f"no trial can be trained: .*{said}"):
            search(path, overrides=[f"roles.trainer=bodies_search:{role}"], view="none")


def test_that_no_episode_has_ended_is_told_once(tmp_path, capsys):
    path = written(
        tmp_path,
        run={"name": "s", "total_steps": 16, "seed": 3},
        algorithm={"network": [16], "horizon": 1, "minibatches": 1},
        search={"folder": str(tmp_path), "min_steps": 8, "eta": 2, "brackets": 1,
                "ranges": {"algorithm.schedule": {"choice": ["linear", "constant"]}}},
    )  # fmt: skip
    result = search(path, view="plain")
    assert (result.return_mean, result.steps, result.picture.is_file()) == (None, 16, True)
    shown = capsys.readouterr().out
    assert shown.count("has ended in 8 steps: its return is not known") == 1
    assert "Raise search.min_steps" in shown


ES = {"name": "es", "network": [], "horizon": 20, "population": 12}
ARS = {"name": "ars", "network": [], "horizon": 20, "population": 64}
TOGETHER = {
    "algorithm.population": {"choice": [8, 64]}, "algorithm.top_directions": {"choice": [2, 16]},
}  # fmt: skip
ZERO = {"name": "alphazero", "games": 16}


@pytest.mark.parametrize(
    ("algorithm", "ranges", "said"),
    [
        (ES, {"algorithm.population": {"integer": [8, 12]}},
         r"population\.integer=\[8, 12\]; 9 can be drawn, and algorithm\.population must be even"
         r".*List the values that fit: choice: \[\.\.\.\]\."),
        (ARS, TOGETHER,
         "trial [0-9]+ would have .*population=8, .*top_directions=16, and .* must be at most 4"),
        (ES, {"env.num_env": {"choice": [2, 4, 8]}, "algorithm.population": {"choice": [8, 32]}},
         r"trial [0-9]+ would have env\.num_env=8, algorithm\.population=8, and env\.num_env .*"
         "gives each of 1 GMI 4 directions"),
        (ZERO, {"algorithm.gate_games": {"integer": [10, 40]}},
         r"trial [0-9]+ would have algorithm\.gate_games=[0-9]*[13579], and .* must be even"),
    ],
    ids=["between the ends", "together", "with the environments", "of the optimizer"],
)  # fmt: skip
def test_values_that_a_trial_would_begin_with_are_looked_at(tmp_path, algorithm, ranges, said):
    search = {"folder": str(tmp_path), "ranges": ranges}
    env = {"id": "TicTacToe-v0" if algorithm is ZERO else "CartPole-v1", "num_env": 4}
    its = load_config(written(tmp_path, env=env, algorithm=algorithm, search=search))
    assert re.search(said, str(*section_faults(its)))


def test_values_that_a_member_can_come_to_are_looked_at(tmp_path):
    its = load_config(written(
        tmp_path, env={"id": "CartPole-v1", "num_env": 4}, algorithm=ARS,
        search={"algorithm": "pbt", "population": 2, "seed": 2, "ranges": TOGETHER},
    ))  # fmt: skip
    assert re.search("a member can come to have .*=8, .*=16, and", str(*section_faults(its)))


SEQUENCES = {"name": "dqn", "recurrent": {}}


@pytest.mark.parametrize(
    ("algorithm", "span", "why"),
    [
        ({"name": "dqn"}, {"reward_scale": {"uniform": [0.1, 1.0]}},
         "steps that are kept have it inside"),
        ({"name": "dqn"}, {"bootstrap_time_limit": {"choice": [True, False]}},
         "steps that are kept have it inside"),
        (SEQUENCES, {"horizon": {"choice": [8, 16]}}, "sequences that are kept have its length"),
        ({"name": "sac"}, {"temperature": {"choice": [None, 0.1]}},
         "one that is learned (null) is among the parameters"),
        ({"name": "a2c"}, {"reward_scale": {"uniform": [0.1, 1.0]}}, ""),
        ({"name": "dqn"}, {"horizon": {"choice": [8, 16]}}, ""),
        ({**SEQUENCES, "replay_save": False}, {"horizon": {"choice": [8, 16]}}, ""),
        ({"name": "sac"}, {"temperature": {"choice": [0.2, 0.1]}}, ""),
    ],
)  # fmt: skip
def test_members_do_not_change_what_a_checkpoint_has_inside(tmp_path, algorithm, span, why):
    (key,) = span

    def told(how):
        its = load_config(written(
            tmp_path, env={"id": "CartPole-v1", "num_env": 4}, algorithm=algorithm,
            search={"algorithm": how, "ranges": {f"algorithm.{key}": span[key]}},
        ))  # fmt: skip
        return [str(fault) for fault in section_faults(its)]

    assert told("hyperband") == []
    faults = told("pbt")
    assert len(faults) == bool(why)
    assert all(f"search.ranges.algorithm.{key}; {why}, and members" in fault for fault in faults)


def test_a_member_whose_changed_values_do_not_fit_fails_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(ranges_of, "_drawn", lambda span, random: span.choice[0])
    monkeypatch.setattr(ranges_of, "_changed", lambda span, *_: 16 if 16 in span.choice else 8)
    path = written(
        tmp_path,
        run={"name": "s", "total_steps": 1000, "seed": 3}, env={"id": "CartPole-v1", "num_env": 4},
        algorithm=ARS,
        search={"folder": str(tmp_path), "algorithm": "pbt", "population": 2,
                "interval_steps": 250, "trials_at_once": 1, "ranges": TOGETHER},
    )  # fmt: skip
    result = search(path, view="none")
    failed = [line["text"] for line in result.lines if line["kind"] == "failed"]
    assert failed
    assert all("must be at most 4" in text for text in failed)
    assert result.steps >= 1000


def test_the_best_config_lies_where_the_modules_that_it_names_are(tmp_path):
    path = written(tmp_path, algorithm={"network": "own:Mine"})
    line = {"trial": 2, "values": {RATE: 0.01}, "return_mean": 5.0, "reached": 2048}
    (tmp_path / "searches").mkdir()
    folder = SearchFolder(tmp_path / "searches")

    def best():
        return searching._write_best(load_config(path), path, folder, line)

    assert best() == folder.path / "best.yaml"  # of a package that is installed
    (tmp_path / "own.py").touch()
    assert best() == tmp_path / "config.best.yaml"
    assert load_config(best()).algorithm.learning_rate == 0.01


def test_what_a_trial_raised_is_told_in_a_line_with_all_that_it_says():
    def told(error):
        try:
            raise error
        except ValueError:
            return searching._short(task_error(None, traceback.format_exc(), "gmi 0"))

    assert told(ValueError("a rate of no use")) == "ValueError: a rate of no use"
    several = ValueError("it is another:\n  rate: 1; 2\nUndo that.")
    assert told(several) == "ValueError: it is another: rate: 1; 2 Undo that."


def test_two_searches_of_one_config_do_not_share_a_folder(searched):
    path, result = searched
    lock = locked(result.folder / "lock", timedelta(0), "process 7")
    with lock, pytest.raises(SearchError) as caught:
        search(path, view="none")
    assert "is being searched by process 7. Wait for it" in str(caught.value)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("search.trials_at_once=999", "each trial has its own"),
        ("search.cores=999", f"the machine has {len(CORES)} core"),
        ("env.id=CartPoll-v1", "CartPoll-v1"),
        ("algorithm.minibatches=3", "must divide the 256 samples"),
        ("search.ranges.algorithm.gamma.uniform=[0.5, 1.5]", "algorithm.gamma must be at most 1"),
        ("hardware.backend=mps", "a GPU to itself"),
    ],
)
def test_a_search_that_cannot_be_is_refused_before_anything_starts(tmp_path, override, said):
    with pytest.raises(ConfigError) as caught:
        search(written(tmp_path), overrides=[override], view="none")
    assert said in str(caught.value)
    assert not (tmp_path / "searches").exists()


def test_ranges_are_told_by_check_and_nothing_else_asks_for_them(tmp_path):
    ranges = {"algorithm.gamma": {"uniform": [0.5, 1.5]}}
    its = load_config(written(tmp_path, search={"ranges": ranges}))
    assert "algorithm.gamma must be at most 1" in str(*section_faults(its))
    assert faults_of(its) == []
    assert len(planned(its).gmis) == 1


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_search_that_is_killed_goes_on(tmp_path):
    """kill -9 of the driver: its workers end with it, and the command goes on."""
    path = written(
        tmp_path,
        run={"name": "s", "total_steps": 4096, "seed": 3},
        search={"folder": str(tmp_path / "searches"), "min_steps": 1024, "eta": 2,
                "ranges": {RATE: {"log_uniform": [1e-4, 1e-1]}}},
    )  # fmt: skip
    code = (
        "import private_leases, gmi_drl.selector.search.searching as s, sys\n"
        "s.search(sys.argv[1], view='plain')"
    )
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, cwd=TESTS, stdout=subprocess.PIPE, text=True) as process:
        ended = 0
        for line in process.stdout:
            ended += line.startswith("[")
            if ended == 3:
                break
        process.send_signal(signal.SIGKILL)
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert re.search(r"going on: [3-9] of 14 runs are done", done.stdout)
    (folder,) = (tmp_path / "searches" / "s").iterdir()
    kinds = [json.loads(line)["kind"] for line in (folder / RECORD).read_text().splitlines()]
    assert kinds.count("asked") == kinds.count("ended") + kinds.count("failed") == 14


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_hyperband_finds_a_learning_rate_that_learns_among_absurd_ones(tmp_path):
    path = written(
        tmp_path,
        run={"name": "s", "total_steps": 20_000, "seed": 1},
        env={"id": "CartPole-v1", "num_env": 16},
        algorithm={"network": [64, 64], "activation": "tanh", "horizon": 64, "minibatches": 4,
                   "epochs": 10, "value_coef": 1.0, "max_grad_norm": 0.5, "schedule": "constant"},
        search={"folder": str(tmp_path), "brackets": 2,
                "ranges": {RATE: {"log_uniform": [1e-7, 1.0]}}},
    )  # fmt: skip
    result = search(path, view="none")
    assert 1e-4 < result.values[RATE] < 3e-2  # three of the seven orders of magnitude
    assert result.return_mean > 60  # a policy at random has 22
