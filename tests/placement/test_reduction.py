"""Algorithm 1 and Table 2 of the paper, and which shapes a strategy can serve."""

import itertools
import re

import pytest

from gmi_drl.placement import STRATEGIES, Topology, algorithm_1, decoupled, reducing, tcg, tcg_ex
from gmi_drl.placement import costs as cost
from gmi_drl.placement.reduction import algorithm_1_with_reason, shape_fault


def mpl_of(sizes):
    ids = itertools.count()
    return [[next(ids) for _ in range(size)] for size in sizes]


def all_layouts(largest=8):
    """Every number of GMIs by device, up to the order of the devices."""
    for devices in range(1, largest + 1):
        yield from itertools.combinations_with_replacement(range(1, largest + 1), devices)


def stated(sizes):
    """The paper's words: rings need two devices or more, with as many GMIs each as every other
    has, and no two ends of rings on one device; without a second device all is in one place."""
    if len(sizes) == 1:
        return "mpr"
    rings_are_possible = all(size == sizes[0] for size in sizes)
    ends_have_devices_of_their_own = all(size <= len(sizes) for size in sizes)
    return "mrr" if rings_are_possible and ends_have_devices_of_their_own else "har"


def test_algorithm_1_on_every_layout_up_to_8x8():
    chosen = {}
    for sizes in all_layouts():
        mpl = mpl_of(sizes)
        strategy = algorithm_1(mpl)
        assert strategy == stated(sizes) == algorithm_1(mpl[::-1])
        assert algorithm_1_with_reason(mpl)[1]
        chosen[strategy] = chosen.get(strategy, 0) + 1
        if sum(sizes) > 1:
            assert shape_fault(strategy, mpl) is None  # what it chooses can be done
    assert chosen == {"mpr": 8, "mrr": 35, "har": 12_869 - 8 - 35}


@pytest.mark.parametrize(
    ("mpl", "strategy"),
    [
        ([[0, 1, 2], [3, 4, 5], [6, 7, 8]], "mrr"),  # the paper's example
        ([[0, 1, 2], [3, 4, 5]], "har"),
        ([[0, 1], [2]], "har"),
        ([[0, 1, 2, 3]], "mpr"),
        ([], "mpr"),
    ],
)
def test_algorithm_1_on_layouts_worked_by_hand(mpl, strategy):
    assert algorithm_1(mpl) == strategy


def test_only_gmis_that_train_reduce():
    cores = Topology.from_cores(range(6), 3)
    assert reducing(tcg_ex(cores, 2, 1)) == [[0, 1], [2, 3], [4, 5]]
    assert reducing(decoupled(cores, 2, 1, trainer_gpus=2)) == [[2, 3], [4, 5]]
    assert reducing(tcg(cores, 2, 1)) == []


@pytest.mark.parametrize(
    ("strategy", "sizes", "rule"),
    [
        ("local", (2,), "there are 2 GMIs, which would drift apart"),
        ("mpr", (1,), "there is one GMI"),
        ("mrr", (3,), "all GMIs are on one device"),
        ("har", (3,), "all GMIs are on one device"),
        ("mrr", (2, 1), r"different numbers of GMIs \(2, 1\)"),
        ("mrr", (3, 3), "there are 3 GMIs on each of 2 devices"),
        ("ipc", (1, 1), "the GMIs are on 2 devices"),
    ],
)
def test_a_shape_that_a_strategy_cannot_serve(strategy, sizes, rule):
    found, remedy = shape_fault(strategy, mpl_of(sizes))
    assert re.search(rule, found)
    assert remedy.startswith("Use ")


def test_a_group_always_has_a_strategy():
    for sizes in all_layouts(4):
        mpl = mpl_of(sizes)
        can = [s for s in STRATEGIES if shape_fault(s, mpl) is None]
        assert ("local" in can) == (sum(sizes) == 1)
        assert ("mpr" in can) == (sum(sizes) > 1)


def test_table_2_worked_by_hand():
    # 2 GMIs on each of 4 GPUs, 1 MB, 1 GB/s between processes, 4 GB/s between GPUs.
    assert cost.ring(8, 1e6, 1e9) == pytest.approx(1.75e-3)  # 14 MB over 8 GB/s
    assert cost.mrr(2, 4, 1e6, 4e9) == pytest.approx(0.375e-3 + 0.25e-3)
    assert cost.har(2, 4, 1e6, 1e9, 4e9) == pytest.approx(1e-3 + 0.375e-3)
    assert cost.har(1, 4, 1e6, 1e9, 4e9) == cost.mrr(1, 4, 1e6, 4e9) == pytest.approx(0.375e-3)
    assert cost.ring(1, 1e6, 1e9) == 0


def test_table_2_refuses_what_it_has_no_equation_for():
    with pytest.raises(ValueError, match="t=3, g=2"):
        cost.mrr(3, 2, 1e6, 1e9)
