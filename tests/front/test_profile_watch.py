"""When the run of a candidate is over: by a clock and records that the test makes."""

import pytest

from gmi_drl.selector.tune.profile import candidate_run
from gmi_drl.selector.tune.profile import profiler as profile_watch
from gmi_drl.selector.tune.profile.candidate_run import CandidateTimeout, StopRun
from gmi_drl.selector.tune.profile.profiler import ProfileWatch
from watches import PATIENCE, Clock, Gang, Meter

TRAINING = Gang()
SERVING = Gang("tdg", [("simulator",), ("agent",), ("simulator",), ("agent",)])


@pytest.fixture
def run(monkeypatch):
    """Plays (seconds from now, record or None) to a watch; its answer, None if it goes on."""
    clock = Clock()
    monkeypatch.setattr(profile_watch, "time", clock)
    monkeypatch.setattr(candidate_run, "time", clock)

    def play(gang, script, asked_s=2.0, busy=(1.0,), least_s=0.0):
        meter = Meter(clock)
        meter.busy = dict(enumerate(busy))
        watch = play.watch = ProfileWatch(asked_s, PATIENCE, meter, least_s)
        for after_s, record in script:
            clock.now += after_s
            if record is not None:
                watch.show(record)
            try:
                watch.tick(gang)
            except StopRun:
                return watch.answer
        return None

    return play


def iteration(number, time_s):
    return {
        "kind": "iteration", "steps": 100 * number, "time_s": time_s,
        "gmi_seconds": [{"train": 1.0}],
    }  # fmt: skip


def served(gmi_id, steps, time_s, **seconds):
    return {"kind": "served", "gmi_id": gmi_id, "steps": steps, "until_s": time_s,
            "seconds": seconds or {"simulate": 0.5}}  # fmt: skip


def steady(number, every_s=0.2):
    return [(every_s, iteration(n, n * every_s)) for n in range(1, number + 1)]


def test_it_ends_when_enough_is_known(run):
    found = run(TRAINING, steady(100))
    assert found.steps_per_s == pytest.approx(500)
    assert found.iterations == 3  # 0.6 s of them
    assert (found.host_bytes, found.device_bytes, found.memory) == (1 << 30, 2 << 30, 0.5)
    assert (found.cores, found.sm_activity) == (1.5, 0.75)
    assert TRAINING.killed == 1


def test_it_does_not_end_before_the_least_of_seconds(run):
    assert run(TRAINING, steady(100), least_s=1.5).iterations == 8  # 0.2 s each


def test_a_warm_up_is_none_of_the_least_seconds(run):
    """On a GPU the second iteration captures, say."""
    script = [(0.2, iteration(1, 0.2)), (1.4, iteration(2, 1.6))]
    script += [(0.2, iteration(n, 1.6 + 0.2 * (n - 2))) for n in range(3, 60)]
    found = run(TRAINING, script, asked_s=60.0, least_s=2.0)
    assert found.steps_per_s == pytest.approx(500)
    assert 2.0 <= found.seconds + 1e-6 < 2.5


def test_it_ends_when_the_seconds_are_over(run):
    times = [0.2, 0.7, 0.8, 1.6, 1.7, 2.5, 2.6]  # no two alike
    script = [(0.2, iteration(n, t)) for n, t in enumerate(times, 1)]
    assert run(TRAINING, script, asked_s=0.9).iterations == 5
    assert run(TRAINING, script, asked_s=60) is None


def test_a_long_iteration_is_waited_for_and_counts(run):
    script = [*steady(3, every_s=0.1), (1.0, None), (1.0, None), (1.0, iteration(4, 3.3))]
    found = run(TRAINING, script, asked_s=1.0)
    assert found.steps_per_s == pytest.approx(100 * 3 / 3.2)


@pytest.mark.parametrize(("busy", "reason"), [([1.0], "slow"), ([0.0], "hang")])
def test_one_that_does_not_end_is_no_measure(run, busy, reason):
    failed = run(TRAINING, [*steady(3, every_s=0.1), *[(1.0, None)] * 10], 1.0, busy)
    assert failed.reason == reason
    assert failed.text.startswith("an iteration has not ended after 6 s")


def test_a_first_iteration_that_took_long_lends_its_time_to_the_next(run):
    late = [*[(1.0, None)] * 7, (0.5, iteration(2, 11.5))]
    assert run(TRAINING, [(4.0, iteration(1, 4.0)), *late]).steps_per_s == pytest.approx(100 / 7.5)
    assert run(TRAINING, [(0.5, iteration(1, 0.5)), *late]).reason == "slow"


def test_nothing_at_all_until_the_deadline(run):
    failed = run(TRAINING, [(1.0, None)] * 60, asked_s=3.0)
    assert failed.reason == "slow"
    assert failed.text == (
        "the first iteration has not ended after 24 s; cores in use: gmi 0 1.00; a longer budget "
        "waits longer"
    )
    failed = run(TRAINING, [(1.0, None)] * 60, busy=[0.0])
    assert failed.text == "the first iteration has not ended after 10 s, and no GMI does anything"
    failed = run(TRAINING, [(1.0, None)] * 60, busy=[])
    assert (failed.reason, failed.text[-11:]) == ("hang", "no GMI runs")


HOLISTIC = ("simulator", "agent", "trainer")
COLLECTS, LEARNS = ("simulator", "agent"), ("trainer",)


@pytest.mark.parametrize(
    ("roles", "busy", "stuck"),
    [
        ([HOLISTIC] * 2, [0.0, 1.0], [0]),  # in doubt
        ([HOLISTIC] * 4, [1.0, 0.0, 1.0, 1.0], [1]),
        ([HOLISTIC] * 4, [0.0, 0.0, 1.0, 0.0], []),  # they wait for the one that works
        ([HOLISTIC] * 2, [1.0, 1.0], []),
        ([COLLECTS, COLLECTS, LEARNS], [1.0, 1.0, 0.0], []),  # there is nothing to learn from yet
        ([COLLECTS, COLLECTS, LEARNS], [0.0, 1.0, 1.0], [0]),
        ([COLLECTS, COLLECTS, LEARNS], [0.0, 0.0, 1.0], []),
    ],
)
def test_a_gmi_that_does_nothing_while_others_work_is_named(run, roles, busy, stuck):
    failed = run(Gang("tcg_ex", roles), [(1.0, None)] * 60, busy=busy)
    assert failed.reason == ("hang" if stuck else "slow")
    for gmi in range(len(roles)):
        assert (f"gmi {gmi} has done nothing for 2" in failed.text) == (gmi in stuck)
        assert f"gmi {gmi} {busy[gmi]:.2f}" in failed.text


def test_a_longer_budget_waits_longer_for_the_first_iteration():
    waits = [CandidateTimeout.of(budget_s).first_s for budget_s in (5, 30, 300, 1500)]
    assert waits == [10, 30, 60, 300]


def test_gmis_that_serve_are_counted_each_and_once(run):
    script = []
    for n in range(1, 40):
        for gmi in (0, 1, 2, 3):
            seconds = {"infer": 0.5} if gmi % 2 else {"simulate": 0.5}
            script.append((0.125, served(gmi, 50 * n, 0.5 * n, **seconds)))
        script.append((0.0, iteration(2 * n, 0.5 * n)))  # the launcher's sum
    found = run(SERVING, script)
    assert found.steps_per_s == pytest.approx(200)
    assert found.phases == pytest.approx({"simulate": 0.5, "infer": 0.5})


def test_one_gmi_that_falls_silent_is_waited_for_and_found(run):
    both = [(0.1, served(gmi, 50 * n, 0.1 * n)) for n in range(1, 4) for gmi in (0, 2)]
    alone = [(0.5, served(0, 150 + 50 * n, 0.4 + 0.5 * n)) for n in range(30)]
    failed = run(SERVING, [*both, *alone], asked_s=1.0)
    assert failed.reason == "slow"
    never = [(0.5, served(0, 50 * n, 0.5 * n)) for n in range(100)]
    assert run(SERVING, never).text.startswith("the first iteration has not ended")


def test_iterations_that_bring_nothing_are_none(run):
    still = [(0.2, iteration(3, 0.6 + 0.2 * n)) for n in range(40)]
    assert run(TRAINING, [*steady(3), *still], asked_s=2.0).reason == "slow"


def test_records_of_a_role_of_ones_own_do_no_harm(run):
    odd = [{"kind": "iteration"}, {"kind": "served", "gmi_id": "x"}, {"kind": []}, {},
           {"kind": "iteration", "steps": "many", "time_s": 1, "gmi_seconds": 5},
           {"kind": "iteration", "steps": 1, "time_s": 1, "gmi_seconds": [{"train": "long"}]},
           {"kind": "iteration", "steps": 1, "time_s": 1, "gmi_seconds": [5]}]  # fmt: skip
    doubled = iteration(2, 0.4) | {"gmi_seconds": [{}, {}]}
    script = [*((0.0, record) for record in odd), *steady(1), (0.0, doubled), *steady(10)]
    assert run(TRAINING, script).steps_per_s == pytest.approx(500)


def test_who_was_asked_to_stop_does(run):
    gang = Gang("tcg_ex", [("simulator", "agent", "trainer")])
    gang.asked_to_stop = True
    with pytest.raises(KeyboardInterrupt):
        run(gang, steady(1))
