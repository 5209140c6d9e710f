"""The default search: on any answers, and on machines whose best is known."""

import statistics
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gmi_drl.selector.tune.algorithms.default import LONGEST, bound, default
from gmi_drl.selector.tune.algorithms.observations import FULL, SAME, Observations
from gmi_drl.selector.tune.candidate import (
    Ask,
    Candidate,
    DeviceSplit,
    Failed,
    Measured,
    Reason,
    Space,
)


@pytest.fixture
def machines(selector_scripts):
    import machines

    return machines


def space(gmis=(1, 2), counts=tuple(2**n for n in range(2, 13)), **row):
    return Space(
        tuple(
            tuple(Candidate(DeviceSplit(g, "cpu", **row), n, 16, n * g * 16) for n in counts)
            for g in gmis
        )
    )


def measured(steps_per_s, error=0.01, memory=0.1, seconds=5.0):
    return Measured(steps_per_s, error, 3, seconds, {}, 1 << 30, None, memory, 1.0)


def play(search, answer):
    """All that was asked and answered, and what was chosen. `answer` takes an ask."""
    said = []

    def measure(ask):
        said.append((ask, answer(ask)))
        return said[-1][1]

    return said, search(measure)


@pytest.mark.parametrize("row", [0, 1])
def test_the_config_as_given_is_asked_for_early_and_wins_if_nothing_is_better(row):
    its = space(counts=(4, 8, 16, 32, 50, 64))
    own = its.rows[row][4]

    def alone(ask):
        return measured(1e4 if ask.candidate == own else 1e3)

    said, chosen = play(default(its, 1.0, own=own), alone)
    asked = [ask.candidate for ask, _ in said]
    assert own in asked[:2]
    assert chosen.winner == own
    assert chosen.complete
    assert own not in [one.candidate for one in chosen.skipped]
    spent = iter([measured(1e3), measured(900.0)])
    _, chosen = play(default(its, 1.0, own=own), lambda ask: next(spent, None))
    assert {chosen.winner, chosen.runner_up} == {asked[0], own}


@pytest.mark.parametrize(
    ("rate", "error", "wins"),
    [(1e3, 0.4, True), (960.0, 0.02, True), (900.0, 0.02, False), (100.0, 0.4, False)],
)
def test_within_the_noise_the_config_as_given_is_kept(rate, error, wins):
    """Also where another has fewer samples between updates, or seems to be faster."""
    its = space(counts=(4, 8, 16, 32, 50, 64))
    own = its.rows[1][4]

    def answer(ask):
        return measured(rate if ask.candidate == own else 1e3, error)

    _, chosen = play(default(its, 1.0, own=own), answer)
    assert (chosen.winner == own) == wins
    if wins and rate < 1e3:
        assert "it is the config as given, and of" in chosen.why
        assert "none has more steps/s beyond the noise" in chosen.why


def test_noise_between_two_near_candidates_does_not_bound_what_lies_beyond():
    known = Observations(space(gmis=(2,), counts=(32, 48, 50, 64)), 1e3)
    for one, rate in zip(known.rows[0], (42_845, 55_119, 53_115), strict=False):  # as once seen
        known.add(Ask(one, 1.0), measured(rate))
    assert bound(known, 0, 3) > 60_000


def test_where_the_config_as_given_fails_the_search_knows():
    its = space(counts=(4, 8, 16, 32, 50, 64))
    own = its.rows[0][4]
    fails = Failed("crash", "no more than 40")
    said, chosen = play(
        default(its, 1.0, own=own),
        lambda ask: fails if ask.candidate.num_env > 40 else measured(ask.candidate.num_env * 1e2),
    )
    asked = [ask.candidate for ask, _ in said]
    assert asked.count(own) == 1
    assert its.rows[0][5] not in asked
    assert chosen.winner.num_env == 32


NUMBER = st.floats(1e-3, 1e9)
ANSWERS = st.one_of(
    st.builds(measured, NUMBER, st.floats(0, 2), st.floats(0, 1.5), st.floats(0, 100)),
    st.builds(Failed, st.sampled_from(get_args(Reason)), st.just("it")),
)
ROWS = st.lists(
    st.builds(
        DeviceSplit,
        st.sampled_from((1, 2, 3, 4, 6, 8)),
        st.sampled_from(("mps", "direct")),
        st.sampled_from((1.0, 2.0)),
    ),
    min_size=1,
    max_size=6,
    unique=True,
).map(sorted)
COUNTS = st.lists(st.sampled_from([2**n for n in range(17)]), min_size=1, unique=True).map(sorted)


@given(st.lists(ANSWERS, min_size=1, max_size=30), ROWS, COUNTS, st.integers(0, 40))
@settings(max_examples=150)
def test_on_any_answers_it_ends_and_chooses_what_was_measured(answers, rows, counts, spent):
    its = Space(
        tuple(tuple(Candidate(r, n, 8, n * r.gmi_per_gpu * 8) for n in counts) for r in rows)
    )
    every = {one for row in its.rows for one in row}

    def answer(ask):
        assert ask.candidate in every
        assert 5.0 <= ask.seconds <= 5.0 * LONGEST
        played.append(ask)
        return None if len(played) > spent else answers[len(played) % len(answers)]

    played = []
    said, chosen = play(default(its, 5.0), answer)
    asked = [it for it in said if it[1] is not None]
    assert len(asked) <= max(its.size // 4, 8)
    assert chosen.complete == (len(asked) == len(said))
    last = {ask.candidate: it for ask, it in asked}  # one that was slow is asked for once more
    fine = {one for one, it in last.items() if isinstance(it, Measured)}
    assert (chosen.winner is None) == (not fine)
    assert {chosen.winner, chosen.runner_up} <= fine | {None}
    assert {one.candidate for one in chosen.skipped} >= every - last.keys()
    # The same answers make the same asks: a search that was killed goes on from those on record.
    record = iter(said)
    again, chosen_again = play(default(its, 5.0), lambda ask: next(record)[1])
    assert (again, chosen_again) == (said, chosen)


def test_a_quarter_of_the_profiles_finds_what_is_within_5_percent(machines):
    """The claim of `bench/selector/regret.py`, on machines that it does not have."""
    kept = []
    for kind in machines.KINDS:
        for seed in range(30_000, 30_010):
            machine = machines.generate(kind, seed)
            said, chosen = play(default(machine.space, machines.SECONDS), machine.answer)
            assert len(said) <= machine.space.size / 4
            kept.append(machine.truth(chosen.winner) / machine.best)
    assert statistics.fmean(kept) >= 0.95
    assert sum(one >= 0.95 for one in kept) >= 0.9 * len(kept)


def test_memory_is_projected_and_not_tried_out(machines):
    """Of hundreds of candidates that do not fit, hardly one is asked for."""
    tried = unfit = 0
    for seed in range(20):
        machine = machines.generate("memory", seed)
        unfit += sum(machine.truth(one) == 0.0 for row in machine.space.rows for one in row)
        said, chosen = play(default(machine.space, machines.SECONDS), machine.answer)
        tried += sum(isinstance(it, Failed) and it.reason == "memory" for _, it in said)
        assert any("memory would be" in one.why for one in chosen.skipped)
    assert unfit > 800
    assert tried < 20


def test_a_machine_whose_memory_shrinks_meanwhile():
    """Half of it is taken by others after five answers: the search stays below what is left."""
    asked = []

    def answer(ask):
        asked.append(ask.candidate)
        used = ask.candidate.row.gmi_per_gpu * ask.candidate.num_env / 8192
        memory = used * (2 if len(asked) > 5 else 1)
        if memory > 1:
            return Failed("memory", "no more")
        return measured(1e4 * ask.candidate.num_env**0.5, memory=memory)

    said, chosen = play(default(space(), 5.0), answer)
    last = [it for ask, it in said if ask.candidate == chosen.winner][-1]
    assert isinstance(last, Measured)
    assert last.memory <= FULL


def test_what_fills_the_memory_is_not_chosen_where_anything_else_is():
    its = space(gmis=(1,), counts=(64, 128))
    _, chosen = play(
        default(its, 5.0), lambda ask: measured(1e3 * ask.candidate.num_env, memory=0.97)
    )
    assert chosen.winner is not None  # nothing else is
    full = {128: 0.97, 64: 0.5}
    _, chosen = play(
        default(its, 5.0),
        lambda ask: measured(1e3 * ask.candidate.num_env, memory=full[ask.candidate.num_env]),
    )
    assert chosen.winner.num_env == 64
    assert chosen.why == (
        "the most steps/s of 1 measured; 1 GMI, num_env 128 was faster and fills 97% of the memory"
    )


def test_what_failed_when_it_was_measured_again_is_passed_over_and_named():
    its = space(gmis=(1,), counts=(64, 128))
    asked = []

    def answer(ask):
        asked.append(ask.candidate.num_env)
        if asked.count(128) > 1:
            return Failed("crash", "it died")
        return measured(1e3 * (1 + ask.candidate.num_env / 1e4), error=0.04)

    _, chosen = play(default(its, 5.0), answer)
    assert chosen.winner.num_env == 64
    assert "num_env 128 was faster and failed when it was measured again (crash)" in chosen.why


def test_nothing_that_runs_is_no_winner_and_soon_known():
    said, chosen = play(default(space(), 5.0), lambda ask: Failed("crash", "no such module"))
    assert chosen.winner is chosen.runner_up is None
    assert chosen.complete
    assert len(said) <= 8
    assert {one.why for one in chosen.skipped}


def test_a_budget_too_short_for_one_profile():
    said, chosen = play(default(space(), 5.0), lambda ask: None)
    assert len(said) == 1
    assert chosen.winner is None
    assert not chosen.complete


def test_what_the_budget_left_out_is_not_told_as_worse():
    answers = iter([measured(1e4), None])
    _, chosen = play(default(space(), 5.0), lambda ask: next(answers))
    assert not chosen.complete
    assert {one.why for one in chosen.skipped} == {"the budget was spent"}


def test_an_environment_that_fails_at_512():
    def answer(ask):
        one = ask.candidate
        if one.num_env >= 512:
            return Failed("crash", "AssertionError")
        return measured(1e4 * one.row.gmi_per_gpu**0.5 * one.num_env / (1 + 0.001 * one.num_env))

    said, chosen = play(default(space(), 5.0), answer)
    assert (chosen.winner.row.gmi_per_gpu, chosen.winner.num_env) == (2, 256)
    assert sum(isinstance(it, Failed) for _, it in said) <= 4
    assert any("environments failed already (crash)" in one.why for one in chosen.skipped)


def test_of_those_that_are_alike_the_one_with_the_fewest_samples_is_looked_for_and_wins():
    """All that comes beyond 64 environments is less than the noise: 0.5 % at most."""

    def answer(ask):
        n = min(ask.candidate.num_env, 64)
        return measured(1e5 * n * (1 + ask.candidate.num_env / 4096 * SAME / 2), error=0.02)

    _, chosen = play(default(space(gmis=(1,)), 5.0), answer)
    assert chosen.winner.num_env == 64
    assert "alike" in chosen.why


def test_noisy_answers_get_more_time_and_the_best_are_measured_again(machines):
    machine = machines.generate("noisy", 2)
    said, chosen = play(default(machine.space, 5.0), machine.answer)
    seconds = [ask.seconds for ask, _ in said]
    assert seconds[0] == 5.0
    assert min(seconds[1:]) > 40
    candidates = [ask.candidate for ask, _ in said]
    assert candidates.count(chosen.winner) > 1


def test_long_iterations_get_the_time_they_need_or_are_left_out():
    def answer(ask):
        iteration_s = ask.candidate.samples / 1000
        if iteration_s > ask.seconds:
            return Failed("slow", "it")
        return measured(1000.0 + ask.candidate.num_env, seconds=max(5.0, 3 * iteration_s))

    said, chosen = play(default(space(gmis=(1,)), 5.0), answer)
    assert any(ask.seconds > 5.0 for ask, _ in said)
    assert not any(isinstance(it, Failed) for _, it in said)
    assert any("iterations would take" in one.why for one in chosen.skipped)


def test_it_looks_at_backends_shares_and_numbers_that_are_no_powers_of_two():
    shared = [
        DeviceSplit(count, *how) for count in (3, 4) for how in (["mps"], ["direct"], ["mps", 2.0])
    ]
    rows = [DeviceSplit(1, "mps"), *shared]
    counts = [2**n for n in range(7, 17)]
    its = Space(
        tuple(tuple(Candidate(r, n, 8, n * r.gmi_per_gpu * 8) for n in counts) for r in rows)
    )
    best = DeviceSplit(3, "mps", 2.0)

    def answer(ask):
        n, row = ask.candidate.num_env, ask.candidate.row
        return measured(
            1e4 * n / (1 + n / 500) * {DeviceSplit(1, "mps"): 1.0, best: 1.5}.get(row, 1.2)
        )

    said, chosen = play(default(its, 5.0), answer)
    assert chosen.winner.row == best
    assert {ask.candidate.row for ask, _ in said} >= set(rows[:4])


def test_rows_stop_where_two_numbers_of_gmis_are_worse():
    def answer(ask):
        n, g = ask.candidate.num_env, ask.candidate.row.gmi_per_gpu
        return measured(1e4 * n * g / (1 + n * g / 500) / g)

    said, chosen = play(default(space(gmis=(1, 2, 3, 4, 6, 8)), 5.0), answer)
    assert chosen.winner.row.gmi_per_gpu == 1
    assert {ask.candidate.row.gmi_per_gpu for ask, _ in said} == {1, 2, 3}


def test_answers_for_one_candidate_count_by_their_certainty():
    its = space(gmis=(1,), counts=(64, 128))
    values = {64: [1000.0] * 8, 128: [1500.0, *[900.0] * 8]}

    def answer(ask):
        error = 0.5 if values[ask.candidate.num_env][0] == 1500.0 else 0.03
        return measured(values[ask.candidate.num_env].pop(0), error=error, seconds=ask.seconds)

    said, chosen = play(default(its, 5.0), answer)
    assert chosen.winner.num_env == 64
    assert len(said) > 2


def test_the_readers_own_number_of_profiles():
    said, chosen = play(
        default(space(gmis=(1, 2, 3)), 5.0, profiles=4),
        lambda ask: measured(1e4 * ask.candidate.num_env),
    )
    assert len(said) == 4
    assert not chosen.complete  # a quarter of the space, or 8, might have found more
    assert any("4 profiles" in one.why for one in chosen.skipped)
