"""The benchmark of time to return: its arithmetic and bookkeeping; nothing is trained or tuned."""

import json
import math

import pytest

TASK = "CartPole-v1"
SHAPE = {"gmi_per_gpu": 1, "num_env": 16, "horizon": 64, "minibatches": 4, "samples": 1024}


@pytest.fixture
def learning(selector_scripts):
    """The script as a module."""
    import learning

    assert learning.__file__.endswith("selector/learning.py")
    return learning


@pytest.fixture
def rows(learning):
    import learning_rows

    return learning_rows


def a_run(way, seed, *points, task=TASK, seconds=10.0, steps=100_000, early=False, **more):
    """A training run with these (seconds, return)."""
    from learning_raw import TrainingRun

    told = tuple((at_s, round(1000 * at_s), mean) for at_s, mean in points)
    more = {"noise_scale": None, "wall_s": seconds + 1.0, "shape": SHAPE} | more
    return TrainingRun(
        task=task, way=way, seed=seed, steps=steps, seconds=seconds, points=told,
        ended_early=early, machine="two cores", commit="abc", **more,
    )  # fmt: skip


def raw_of(folder, *lines, seeds=3):
    """A raw file of these lines."""
    from learning_raw import RawFile

    options = {"seeds": seeds, "factor": 1.1, "budget_s": 300.0, "steps": None}
    raw = RawFile(folder / "raw.jsonl", options)
    for line in lines:
        raw.add(line)
    return raw


PREDICTION = {"own_samples": 1024, "own_horizon": 64, "noise_scale": 1024.0, "decay": 0.9405}


def a_tune(way, seconds, prediction=None):
    from learning_raw import TuneRun

    chosen = "num_env 32, 2 GMIs on each device"
    return TuneRun(TASK, way, {"env": {"id": TASK}}, seconds, chosen, prediction)


def given_runs():
    """The median seed ends at 300, which two of three reach: after 8 and after 9 seconds."""
    ends = (200.0, 300.0, 400.0)
    middles = ((8.0, 190.0), (9.0, 300.0), (8.0, 310.0))
    return [
        a_run("given", seed, (4.0, 100.0), middle, (10.0, end), noise_scale=1024.0)
        for seed, (middle, end) in enumerate(zip(middles, ends, strict=True))
    ]


def named(rows):
    return {row["name"]: row for row in rows}


def test_the_target_is_the_return_of_the_median_seed_at_its_end(rows):
    assert rows.target_of(given_runs()) == 300.0
    assert rows.target_of(given_runs()[:2]) == 200.0
    assert rows.target_of([a_run("given", 0)]) is None


def test_a_grid_run_ends_early_only_where_the_target_cannot_be_higher(rows):
    def given(*ends):
        return [a_run("given", seed, (10.0, end)) for seed, end in enumerate(ends)]

    assert rows.bound_of(given(300.0, 100.0), 5) is None
    assert rows.bound_of(given(300.0, 100.0, 200.0), 5) == 300.0
    for others in ((0.0, 0.0), (500.0, 0.0), (500.0, 500.0)):
        assert rows.target_of(given(300.0, 100.0, 200.0, *others)) <= 300.0
    assert rows.bound_of(given(300.0, 100.0), 2) == rows.target_of(given(300.0, 100.0)) == 100.0


def test_seconds_to_a_return_are_those_of_its_first_crossing_or_at_least_the_runs(rows):
    run = a_run("steps", 0, (2.0, 50.0), (4.0, 310.0), (6.0, 290.0), (9.0, 320.0))
    assert rows.time_to(run, 300.0) == rows.TimeToReturn(4.0, False)
    assert rows.time_to(run, 400.0) == rows.TimeToReturn(10.0, True)


@pytest.mark.parametrize(
    ("times", "seconds", "censored"),
    [
        ([(4.0, False), (11.0, True), (6.0, False)], 6.0, False),
        ([(4.0, False), (11.0, True), (12.0, True)], 11.0, True),
        ([(4.0, False), (6.0, True)], 5.0, True),
        ([(5.0, True), (9.0, False), (10.0, False)], 10.0, False),
    ],
)
def test_a_median_among_runs_that_never_got_there_is_a_bound(rows, times, seconds, censored):
    its = rows.median_of([rows.TimeToReturn(*one) for one in times])
    assert its == rows.TimeToReturn(seconds, censored)


def test_a_task_is_told_by_its_tuned_ways_and_its_grid(rows, tmp_path):
    large = {**SHAPE, "num_env": 1024, "samples": 65_536}
    lines = [
        *given_runs(),
        a_tune("learning", 30.0, PREDICTION),
        a_tune("steps", 30.0),
        *(a_run("learning", seed, (4.0 + seed, 310.0), (11.0, 500.0), seconds=11.0, steps=220_000)
          for seed in range(3)),
        *(a_run("steps", seed, (5.0, 90.0), (10.5, 150.0), seconds=11.0, steps=440_000, shape=large)
          for seed in range(3)),
    ]  # fmt: skip
    shapes = [shape for shape in rows.GRID if shape != rows.GIVEN_SHAPE]
    for place, shape in enumerate(shapes):
        at_s = 4.0 + place  # to the target; the last ones do not get there
        points = [(at_s, 301.0)] if at_s < 9.0 else [(11.0, 250.0)]
        run = {"seconds": points[0][0], "steps": round(1_000_000 / at_s), "early": at_s < 9.0}
        lines += [a_run(shape, seed, *points, **run) for seed in range(3)]
    its = named(rows.rows_of(raw_of(tmp_path, *lines), [TASK, "Hopper-v5"]))

    given, ours, fast = (its[f"{TASK}/{way}"] for way in ("given", "learning", "steps"))
    assert (given["value"], given["ratio"], given["reached"]) == (9.0, None, 2)
    assert (ours["value"], ours["peer"], ours["ratio"]) == (5.0, 9.0, 1.8)
    assert ours["over_given"] == pytest.approx(5 / 9, abs=1e-4)
    assert ours["over_given_run"] == 0.5
    assert ours["spread"] == [4.0, 6.0]
    assert (ours["best_of_grid_s"], ours["regret"]) == (4.0, 0.25)
    assert (ours["return_then"], ours["return_end"]) == (310.0, 500.0)
    # 1 M steps take 100 s as given, of which 4/9 are saved.
    assert ours["tune_over_saved"]["1M"] == pytest.approx(30 / (100 * 4 / 9), abs=1e-4)

    assert (fast["value"], fast["censored"], fast["reached"]) == (11.0, True, 0)
    assert fast["over_given"] == pytest.approx(11 / 9, abs=1e-4)
    assert (fast["return_then"], fast["return_end"]) == (90.0, 150.0)
    assert fast["tune_over_saved"] == {"1M": None, "10M": None}

    grid = its[f"{TASK}/grid"]
    assert (grid["best"], grid["value"], grid["complete"]) == (shapes[0], 4.0, True)
    assert len(grid["points"]) == len(rows.GRID) + 2
    errors = its[f"{TASK}/prediction"]
    assert (errors["noise_scale"], errors["own_samples"]) == (1024.0, 1024)
    assert errors["value"] == errors["constants"]["2"]
    assert errors["peer"] == errors["constants"]["1"]
    # By steps/s alone the large batch would be the first: by its size it is not.
    points = {point["name"]: point for point in grid["points"]}
    assert points["steps"]["steps_per_s"] > points["learning"]["steps_per_s"]
    assert points["steps"]["predicted"] > points["learning"]["predicted"]

    assert {row["machine"] for row in its.values()} == {"two cores"}  # not the one that tells
    median = its["median/learning"]
    assert (median["value"], median["repeats"]) == (ours["over_given"], 1)
    assert median["holds"] is False  # the regret
    assert its["median/steps"]["censored"]
    assert "Hopper-v5/given" not in its


def test_a_prediction_is_off_by_what_no_shared_factor_explains(rows):
    from gmi_drl.selector.tune.efficiency import Prediction

    def result(steps_per_s, seconds, samples=1024, reached=True):
        end = 300.0 if reached else 100.0
        shape = {**SHAPE, "samples": samples}
        steps = round(steps_per_s * seconds)
        run = a_run("any", 0, (seconds, end), seconds=seconds, steps=steps, shape=shape)
        return rows.WayResult.of([run], 300.0)

    prediction = Prediction(1024, 64, 1024.0)  # updates of 3,072 learn half as much of a sample
    as_predicted = [result(1000, 8.0), result(2000, 4.0), result(2000, 8.0, samples=3072)]
    assert rows.prediction_error(as_predicted, prediction) == pytest.approx(0, abs=1e-3)
    off = [result(1000, 8.0), result(2000, 8.0)]
    assert rows.prediction_error(off, prediction) == pytest.approx(math.log(2) / 2, abs=1e-3)
    late = [*as_predicted, result(500, 10.0, reached=False)]  # it would take 16 s
    assert rows.prediction_error(late, prediction) == pytest.approx(0, abs=1e-3)
    too_late = [*as_predicted, result(4000, 10.0, reached=False)]  # it would take 2 s
    assert rows.prediction_error(too_late, prediction) > 0.5


def test_the_claim_is_of_the_median_and_of_the_worst_task_and_of_all_of_them(rows):
    def row(over, censored=False, regret=0.05, repeats=5):
        return {"over_given": over, "censored": censored, "regret": regret, "repeats": repeats}

    def holds(*its, tasks=3):
        return rows.median_row("learning", its, tasks, 5)["holds"]

    fast, middle = row(0.5), row(0.7)
    assert holds(fast, middle, row(1.05))
    assert not holds(fast, middle, row(1.06))
    assert not holds(fast, middle, row(1.0, censored=True))
    assert not holds(fast, row(0.71), row(1.0))
    assert not holds(fast, row(0.7, regret=0.2), row(1.0, regret=0.2))
    assert not holds(fast, middle, tasks=3)
    assert not holds(fast, middle, row(1.0, repeats=4))


def test_ranks_of_alike_values_are_shared(rows):
    assert rows.rank_correlation([1.0, 2.0, 3.0], [10.0, 100.0, 1000.0]) == 1.0
    assert rows.rank_correlation([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == -1.0
    # scipy.stats.spearmanr gives 0.9487 of these
    assert rows.rank_correlation([1.0, 2.0, 2.0, 4.0], [1.0, 2.0, 3.0, 4.0]) == 0.9487
    assert rows.rank_correlation([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) is None
    assert rows.rank_correlation([1.0, 2.0], [1.0, 2.0]) is None


def test_the_grid_keeps_updates_or_lets_them_grow(learning):
    for task in learning.TASKS:
        given = learning.given_of(task)
        shape = learning.shape_of(given)
        assert (shape["gmi_per_gpu"], shape["num_env"]) == (1, 16)
        configs = learning.grid_of(given)
        assert len(configs) == len(learning.GRID) - 1
        for point, config in configs.items():
            its, given_horizon = learning.shape_of(config), shape["horizon"]
            if point.endswith("+"):
                assert its["horizon"] == given_horizon
                assert its["samples"] > 1.9 * shape["samples"]
            else:
                assert its["horizon"] <= given_horizon
                assert 0.9 * shape["samples"] <= its["samples"] <= 2 * shape["samples"]
        assert {config["env"]["id"] for config in configs.values()} == {task}


def test_a_raw_file_is_read_up_to_its_last_whole_line_and_gone_on_with(rows, tmp_path):
    raw = raw_of(tmp_path, *given_runs(), a_tune("learning", 30.0))
    whole = raw.path.read_text()
    raw.path.write_text(whole + '{"kind": "run", "task": "Cart')
    again = raw_of(tmp_path)
    assert again.lines == raw.lines
    assert raw.path.read_text() == whole
    assert again.run(TASK, "given", 2).return_end == 400.0
    assert again.tune(TASK, "learning").seconds == 30.0
    with pytest.raises(SystemExit, match="another --raw"):
        raw_of(tmp_path, seeds=5)


class Machine:
    """Trains and tunes nothing, and notes what it was asked."""

    def __init__(self, learning, monkeypatch):
        self.asked, self.until = [], []
        monkeypatch.setattr(learning, "tuned", self.tuned)
        monkeypatch.setattr(learning, "length_of", self.length_of)
        monkeypatch.setattr(learning, "train", self.train)
        monkeypatch.setattr("grid.runtime.init", lambda preload: None)
        monkeypatch.setenv("XDG_CACHE_HOME", "")  # put back at the end

    def tuned(self, task, way, given, budget_s):
        self.asked.append(f"tune {way}")
        return a_tune(way, 5.0)

    def length_of(self, task, way, config, given, factor):
        from learning_raw import Length

        self.asked.append(f"length {way}")
        return Length(task, way, round(2e4 * given.seconds * factor), 2e4)

    def train(self, task, way, seed, config, total_steps, until=None):
        self.asked.append(f"{way} {seed}: {total_steps}")
        if until is not None:
            self.until.append((way, seed, until))
        return a_run(way, seed, (4.0, 150.0), (10.0, 200.0 + seed), steps=total_steps)


@pytest.fixture
def fake_machine(learning, monkeypatch):
    return Machine(learning, monkeypatch)


@pytest.fixture
def call(learning, tmp_path, capsys):
    """Calls the script; its exit code, the rows it printed, what it said."""

    def call(*arguments):
        places = ["--raw", str(tmp_path / "raw.jsonl"), "--pictures", str(tmp_path), "--dry"]
        code = learning.main(["--tasks", TASK, *places, *arguments])
        printed = capsys.readouterr()
        rows = [json.loads(line) for line in printed.out.splitlines()]
        for row in rows:
            del row["date"]  # the second at which the row was written
        return code, named(rows), printed.err

    return call


def test_ways_take_turns_and_what_is_there_is_not_run_again(fake_machine, call, tmp_path):
    ways = ("--ways", "given", "learning", "--seeds", "2")
    code, rows, _ = call(*ways)
    assert code == 0
    assert fake_machine.asked == [
        "tune learning", "given 0: 100000", "length learning", "learning 0: 220000",
        "given 1: 100000", "learning 1: 220000",
    ]  # fmt: skip
    assert rows[f"{TASK}/learning"]["value"] == 10.0
    assert all((tmp_path / f"learning.{kind}").stat().st_size > 5_000 for kind in ("png", "svg"))

    fake_machine.asked.clear()
    assert call(*ways)[0] == 0
    assert fake_machine.asked == []
    assert call(*ways, "--rows-only")[1] == rows

    code, rows, _ = call("--seeds", "2", "--ways", "given", "learning", "grid")
    assert code == 0
    assert len(fake_machine.asked) == 8 * 3  # a length and two seeds of all but that as given
    assert {until for _, _, until in fake_machine.until} == {200.0}  # the lower of both
    assert rows[f"{TASK}/grid"]["complete"]


def test_what_there_was_no_time_for_is_told(fake_machine, call):
    code, rows, told = call("--ways", "given", "steps", "--minutes", "0")
    assert code == 1
    assert (rows, fake_machine.asked) == ({}, [])
    assert f"missing: {TASK} steps: seeds [0, 1, 2, 3, 4], and its tune" in told


def test_a_way_that_fails_is_told_and_the_others_go_on(learning, fake_machine, call, monkeypatch):
    from gmi_drl.selector.errors import TuneError

    def fails(task, way, given, budget_s):
        raise TuneError("nothing was found")

    monkeypatch.setattr(learning, "tuned", fails)
    code, rows, told = call("--ways", "given", "steps", "--seeds", "1")
    assert code == 1
    assert list(rows) == [f"{TASK}/given"]
    assert f"{TASK} tune steps: FAILED: nothing was found" in told
    assert f"missing: {TASK} steps: seeds [0], and its tune" in told


def test_ways_are_held_against_that_as_given(learning):
    with pytest.raises(SystemExit):
        learning.parse(["--ways", "learning"])


def test_rules_are_compared_with_four_times_the_environments(learning, monkeypatch):
    import keep_rules
    from keep_rules import GIVEN, configs_of, returns_of

    configs = configs_of(learning.given_of(TASK))
    assert configs[GIVEN]["env"]["num_env"] == 16
    others = {name: its for name, its in configs.items() if name != GIVEN}
    assert {its["env"]["num_env"] for its in others.values()} == {64}
    horizons = {name: its["algorithm"]["horizon"] for name, its in others.items()}
    assert horizons.pop("update") == 32  # of 64: an update has twice the samples at most
    assert set(horizons.values()) == {64}
    minibatches = {name: its["algorithm"]["minibatches"] for name, its in others.items()}
    assert minibatches.pop("gradient_steps") == 16
    assert set(minibatches.values()) == {4}
    clips = {its["algorithm"].get("clip", 0.2) for its in others.values()}
    assert clips == {0.1, 0.2, 0.4}
    lines = [(1000, None), (2000, 10.0), (4000, 40.0)]  # before the first episode: as the first
    lines = [{"steps": steps, "return_mean": mean} for steps, mean in lines]
    monkeypatch.setattr(keep_rules, "lines_of", lambda config: lines)
    assert returns_of(configs[GIVEN], 0) == ((2000 * 10 + 2000 * 40) / 4000, 40)
