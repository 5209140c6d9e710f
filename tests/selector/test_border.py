"""The search finds where packing stops paying, on machines where that is known."""

import pytest

from gmi_drl.selector.record.results import CandidateResult
from gmi_drl.selector.tune.candidate import Ask, Chosen
from recorded import candidate, measured

pytestmark = pytest.mark.usefixtures("selector_scripts")


def every(machine):
    return [one for its in machine.space.rows for one in its]


def test_the_border_is_where_the_formula_says():
    """Of the best there is: several GMIs below it, one above, and as fast as each other at it."""
    import border

    for seed in range(50):
        for caps, several in ((border.CAPS["below"], True), (border.CAPS["above"], False)):
            for cap in caps:
                machine = border.generate(seed, cap)
                best = max(every(machine), key=machine.truth)
                assert (best.row.gmi_per_gpu > 1) == several, (seed, cap)
        at = round(machine.border / 2)
        one, two = (machine.truth(candidate(g, 2 * at // g)) for g in (1, 2))
        assert one == pytest.approx(two, rel=0.01)


def test_it_packs_below_the_border_and_not_above():
    """The claim of `bench/selector/border.py`, on machines that it does not have."""
    import border

    for side, caps in border.CAPS.items():
        row = border.row_of(side, range(60_000, 60_012))
        assert border.holds(row), row
        assert row["repeats"] == 12 * len(caps)


def test_a_search_that_never_packs_does_not_hold_the_claim(monkeypatch):
    import border

    def alone(space, seconds):
        def search(measure):
            one = space.rows[0][-1]
            measure(Ask(one, seconds))
            return Chosen(one, None, (), complete=True)

        return search

    rows = []
    monkeypatch.setattr(border, "emit", lambda bench, **row: rows.append(row))
    monkeypatch.setattr(border, "default", alone)
    assert border.main(["--machines", "3"]) == 1
    below, above = rows
    assert (below["value"], above["value"]) == (0.0, 1.0)
    assert (below["regret_mean"] > 0.1, above["regret_mean"]) == (True, 0.0)


def test_on_cores_a_choice_is_held_against_the_best_of_the_other_number_of_gmis():
    from border_cores import best_of, holds, row_of

    its = [CandidateResult(candidate(g, n), measured(g * n)) for g in (1, 2) for n in (32, 64)]
    best = best_of(its)
    assert [(g, one.candidate.num_env) for g, one in best.items()] == [(1, 64), (2, 64)]
    rates = {best[1].candidate: [90.0, 100.0, 95.0], best[2].candidate: [180.0, 150.0, 190.0]}
    small, wide = (row_of("small", rates, best[g], best[3 - g]) for g in (2, 1))
    assert (small["ratio"], small["ratio_spread"]) == (2.0, [1.5, 2.0])
    assert small["chosen"] == {"gmi_per_gpu": 2, "num_env": 64}
    assert wide["ratio"] == 0.5
    assert not holds([small, wide])
    assert not holds([small, small])
    assert holds([small, wide | {"ratio": 0.99}])
