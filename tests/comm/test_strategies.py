"""Every strategy against the sum made here, over layouts; which layouts each of them takes."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bodies_comm
import bodies_rings as bodies
from gmi_drl.comm import create_group
from gmi_drl.comm.reducers.mrr import rings_of
from ranks import run_ranks

LENGTHS = [0, 1, 2, 997, 65_537, 750_000]  # the last is 3 MB of float32
FEW = [0, 1, 997]
ROUNDINGS = {"mpr": 1, "mrr": 2, "har": 2}


def check(tmp_path, strategy, devices, lengths, wire="fp32"):
    size = len(devices)
    outcomes = run_ranks(
        bodies.reduce_many_ways, size, lengths,
        strategy=strategy, devices=devices, wire=wire, directory=tmp_path,
    )  # fmt: skip
    assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    for index, numel in enumerate(lengths):
        vectors = [bodies_comm.vector(rank, numel, index).astype("f8") for rank in range(size)]
        total, bound = sum(vectors), sum(map(np.abs, vectors))
        error = 1e-6 if wire == "fp32" else ROUNDINGS[strategy] * 2**-8 + 1e-6
        for found, *_ in outcomes:
            for op, share in ((0, 1), (1, size)):
                result = found[op * len(lengths) + index]
                assert result.dtype == np.float32
                assert (np.abs(result - total / share) <= error * bound / share).all()
                first = outcomes[0][0][op * len(lengths) + index]
                np.testing.assert_array_equal(result.view("u4"), first.view("u4"))  # bits
    for _, rows, sent in outcomes:
        assert rows.tolist() == [[10.0 + rank] * 5 for rank in range(size)]
        assert [set(values) for values in sent] == [{101.0 * src} for src in range(size)]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("strategy", "devices", "wire"),
    [
        ("mpr", (0, 0, 1), "fp32"),
        ("mpr", (0, 0, 1), "bf16"),
        ("mrr", (0, 1), "fp32"),
        ("mrr", (0, 1, 0, 1), "fp32"),
        ("mrr", (0, 0, 1, 1, 2, 2), "fp32"),
        ("mrr", (0, 0, 1, 1, 2, 2), "bf16"),
        ("har", (0, 1), "fp32"),
        ("har", (0, 0, 0, 1), "bf16"),
        ("har", (0, 0, 1, 1, 1, 2, 3, 3), "fp32"),
    ],
)
def test_a_strategy_gives_the_sum_and_the_mean_and_all_ranks_the_same_bits(
    tmp_path, strategy, devices, wire
):
    check(tmp_path, strategy, devices, LENGTHS if len(devices) < 5 else [1, 65_537], wire)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["mpr", "mrr", "har"])
@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_any_number_of_ranks_and_devices(tmp_path, strategy, size):
    for count in range(1, min(size, 4) + 1):
        devices = sorted(rank % count for rank in range(size))
        try:
            create_group(["gmi"] * size, devices, strategy=strategy, directory=tmp_path)
        except ValueError:
            continue
        check(tmp_path, strategy, devices, LENGTHS)


layouts = st.lists(st.integers(0, 3), min_size=2, max_size=6)
lengths_of = st.lists(st.integers(0, 5000), min_size=1, max_size=4)
slow_or_shared = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
relaxed = settings(suppress_health_check=slow_or_shared)


@pytest.mark.slow
@settings(relaxed, max_examples=3)
@given(layouts, lengths_of, st.sampled_from(["fp32", "bf16"]))
def test_any_layout(tmp_path, devices, lengths, wire):
    for strategy in ("mpr", "mrr", "har"):
        try:
            create_group(["gmi"] * len(devices), devices, strategy=strategy, directory=tmp_path)
        except ValueError:
            assert strategy != "mpr"
        else:
            check(tmp_path, strategy, devices, lengths, wire)


@given(st.integers(1, 6), st.integers(1, 6))
def test_rings_take_each_rank_once_and_never_two_of_a_device(many, extra):
    devices = many + extra - 1
    mpl = [range(d * many, (d + 1) * many) for d in range(devices)]
    rings = rings_of(mpl)
    last = rings.pop("last")
    assert sorted(rank for ranks in rings.values() for rank in ranks) == list(range(many * devices))
    for ranks in (*rings.values(), last):
        assert len({rank // many for rank in ranks}) == len(ranks)
    for number, rank in enumerate(last):
        assert rank in rings[f"ring{number}"]


@pytest.mark.parametrize(
    ("devices", "options", "says"),
    [
        ((0, 0, 1), {"strategy": "mrr"}, "different numbers of GMIs"),
        ((0, 0, 0, 1, 1, 1), {"strategy": "mrr"}, "3 GMIs on each of 2 devices"),
        ((0, 0), {"strategy": "har"}, "on one device"),
        ((0, 1), {"strategy": "ipc"}, "on 2 devices"),
        ((0, 1), {"strategy": "local"}, "drift apart"),
        ((0, 1), {"strategy": "star"}, "'star': use local, mpr"),
        ((0, 1), {"strategy": "mrr", "directory": None}, "no directory"),
        ((0, 1), {"wire": "fp16"}, "'fp16': use fp32 or bf16"),
        ((0, 1, 2), {"members": 2}, "3 devices for 2 members"),
    ],
)
def test_what_a_strategy_cannot_serve_is_refused(tmp_path, devices, options, says):
    given = {"members": len(devices), "directory": tmp_path, **options}
    with pytest.raises(ValueError, match=says):
        create_group(["gmi"] * given.pop("members"), devices, **given)
