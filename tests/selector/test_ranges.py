"""Ranges of hyper-parameters: whatever is drawn is valid, and what could not be is told at load."""

import json
import math

import numpy as np
import pytest

from gmi_drl.placement import check, load_config
from gmi_drl.placement.topology import Topology
from gmi_drl.selector.search import faults as module
from gmi_drl.selector.search.faults import search_faults, section_faults
from gmi_drl.selector.search.ranges import Ranges, applied, text_of

RANGES = {
    "algorithm.learning_rate": {"log_uniform": [1e-5, 1e-1]},
    "algorithm.gamma": {"uniform": [0.9, 1.0]},
    "algorithm.epochs": {"integer": [1, 12]},
    "algorithm.minibatches": {"choice": [1, 2, 4, 8]},
    "env.num_env": {"choice": [8, 16]},
    "algorithm.max_grad_norm": {"choice": [None, 0.5]},
    "algorithm.schedule": {"choice": ["constant", "linear", "adaptive"]},
}


def config(ranges=RANGES, **search):
    return load_config(
        {"version": 1, "env": {"id": "CartPole-v1"}, "search": {"ranges": ranges, **search}}
    )


def test_every_config_that_is_drawn_or_moved_to_can_run():
    base = config()
    assert search_faults(base) == []
    ranges = Ranges(base.search.ranges, seed=3)
    for trial in range(60):
        values = ranges.draw(trial)
        for step in range(3):
            found = applied(base, values)
            assert check(found, Topology.from_cores([0])) == []
            assert found.search is None
            values = ranges.explored(values, (step, trial), perturb=0.3, resample=0.2)


def test_a_trial_is_drawn_the_same_whatever_was_drawn_before():
    one, other = (Ranges(config().search.ranges, seed=3) for _ in range(2))
    backwards = [other.draw(trial) for trial in reversed(range(10))]
    assert [one.draw(trial) for trial in range(10)] == backwards[::-1]
    assert one.draw(0) != Ranges(config().search.ranges, seed=4).draw(0)


def test_log_uniform_draws_each_order_of_magnitude_as_often():
    ranges = Ranges(config().search.ranges, seed=0)
    drawn = [ranges.draw(trial)["algorithm.learning_rate"] for trial in range(4000)]
    counts = np.histogram(np.log10(drawn), bins=[-5, -4, -3, -2, -1])[0]
    # 1000 each; five standard deviations of a binomial count
    assert np.abs(counts - 1000).max() < 5 * math.sqrt(4000 * 0.25 * 0.75)


def test_moves_go_both_ways_by_the_kind_of_the_range_and_inwards_at_its_ends():
    its = config(
        {
            "algorithm.learning_rate": {"log_uniform": [1e-4, 1e-2]},
            "algorithm.gamma": {"uniform": [0.9, 1.0]},
            "algorithm.epochs": {"integer": [1, 11]},
            "algorithm.activation": {"choice": ["elu", "tanh", "relu"]},
        }
    ).search.ranges
    middle = dict(zip(its, (1e-3, 0.95, 6, "tanh"), strict=True))
    moved = [Ranges(its, 0).explored(middle, (0, m), 0.2, 0.0) for m in range(50)]
    for key, expected in zip(
        its, ({8e-4, 1.2e-3}, {0.93, 0.97}, {4, 8}, {"elu", "relu"}), strict=True
    ):
        found = {round(v[key], 9) if isinstance(v[key], float) else v[key] for v in moved}
        assert found == expected
    ends = dict(zip(its, (1e-2, 1.0, 11, "relu"), strict=True))
    within = dict(zip(its, (8e-3, 0.98, 9, "tanh"), strict=True))
    for member in range(50):
        assert Ranges(its, 0).explored(ends, (0, member), 0.2, 0.0) == pytest.approx(within)
        anew = Ranges(its, 0).explored(ends, (0, member), 0.2, 1.0)
        assert not any(anew[key] == value for key, value in ends.items())


@pytest.mark.parametrize(
    ("key", "its", "search", "said"),
    [
        ("algorithm.learning_rate", {"log_uniform": [1e-3, 2]}, {},
         "search.ranges.algorithm.learning_rate.log_uniform=2.0; algorithm.learning_rate must be "
         "at most 1. Correct the range."),
        ("algorithm.epochs", {"integer": [0, 4]}, {}, "integer=0; algorithm.epochs must be 1 or"),
        # Both ends are whole numbers, and what lies between them is not.
        ("algorithm.epochs", {"uniform": [1, 4]}, {},
         "uniform=[1.0, 4.0]; algorithm.epochs must be a whole number"),
        ("algorithm.schedule", {"choice": ["linear", "linar"]}, {}, "'linar'; algorithm.schedule "
         "must be one of adaptive, constant, linear"),
        ("algorithm.minibatches", {"integer": [1, 4]}, {}, "List the values"),
        ("algorithm.minibatches", {"choice": [2, 3]}, {}, "algorithm.minibatches=3 can be drawn"),
        ("env.num_env", {"choice": [8, "auto"]}, {}, "a trial has a number of environments"),
        ("algorithm.rho_clip", {"uniform": [1, 2]}, {}, "algorithm.rho_clip is a setting of"),
        ("algorithm.name", {"choice": ["ppo", "a2c"]}, {}, "but name and optimizer, and env.num"),
        ("algorithm.learning_rat", {"uniform": [0.1, 0.2]}, {}, "Did you mean algorithm.learning_"),
        ("learning_rate", {"uniform": [0.1, 0.2]}, {}, "Did you mean algorithm.learning_rate?"),
        ("run.total_steps", {"integer": [1, 2]}, {}, "what else there is changes what is learned"),
        ("algorithm.network", {"choice": [[8], [16]]}, {"algorithm": "pbt"}, "each other's check"),
        ("algorithm.ensemble", {"integer": [3, 7]}, {"algorithm": "pbt"}, "each other's check"),
    ],
)  # fmt: skip
def test_what_could_not_be_drawn_is_told_at_load(key, its, search, said):
    faults = section_faults(config({key: its}, **search))
    assert len(faults) == 1
    assert said in str(faults[0])


def test_of_keys_that_must_fit_all_combinations_are_looked_at_and_each_value_is_validated_once(
    monkeypatch,
):
    calls = []
    monkeypatch.setattr(module, "applied", lambda *its: calls.append(its) or applied(*its))
    ranges = {
        "env.num_env": {"choice": [64.0 * n for n in range(1, 21)]},  # as YAML reads 6.4e1
        "algorithm.horizon": {"choice": [8 * n for n in range(1, 21)]},
        "algorithm.minibatches": {"choice": [2**n for n in range(10)]},
    }
    assert section_faults(config(ranges)) == []
    of_one_value = [values for _, values in calls if len(values) == 1]
    assert len(of_one_value) == 2 * (20 + 20 + 10)
    assert len(calls) - len(of_one_value) <= 100  # what trials begin with
    ranges["algorithm.minibatches"]["choice"].append(1024)  # the first of these: 64 x 8
    (fault,) = section_faults(config(ranges))
    assert "algorithm.minibatches=1024 can be drawn; it must divide the 512" in str(fault)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layout": {"gmi_per_gpu": "auto"}}, "layout.gmi_per_gpu='auto'; a search is about how"),
        (
            {
                "env": {"id": "CartPole-v1", "num_env": "auto"},
                "search": {"ranges": {"algorithm.clip": {"uniform": [0.1, 0.3]}}},
            },
            "Give a number, or a choice of",
        ),
        ({"search": None}, "search; missing"),
        ({"search": {"ranges": RANGES, "min_steps": 2_000_000}}, "at most run.total_steps"),
        ({"search": {"ranges": RANGES, "min_steps": 1000, "brackets": 9}}, "there are 7 from"),
        (
            {
                "env": {"id": "CartPole-v1", "num_env": 128},
                "search": {
                    "ranges": {"algorithm.horizon": {"choice": [8, 4]}},
                    "min_steps": 511,
                },
            },
            "search.min_steps=511; an update takes 512 steps, and no trial trains less. Use 512",
        ),
    ],
)
def test_what_no_trial_could_be_is_told(changes, said):
    data = {"version": 1, "env": {"id": "CartPole-v1"}, "search": {"ranges": RANGES}} | changes
    assert any(said in str(fault) for fault in search_faults(load_config(data)))


def test_the_shortest_update_is_that_of_numbers_as_yaml_reads_them():
    ranges = {"algorithm.horizon": {"choice": [8.0, 4.0]}}  # as YAML reads 4e0
    assert section_faults(config(ranges, min_steps=64 * 4)) == []
    (fault,) = section_faults(config(ranges, min_steps=64 * 4 - 1))
    assert "search.min_steps=255; an update takes 256 steps" in str(fault)


def test_a_value_near_1_is_not_told_as_1():
    assert [text_of(value) for value in (0.999, 0.9995, 3.14e-4, 8, [64, 64])] == [
        "0.999", "0.9995", "0.000314", "8", "[64, 64]",
    ]  # fmt: skip


def test_values_are_those_that_a_record_gives_back():
    its = config({"algorithm.network": {"choice": ((8, 8), (16,))}}).search.ranges
    values = Ranges(its, 0).draw(0)
    assert json.loads(json.dumps(values)) == values
    assert applied(config(), values).algorithm.network in ((8, 8), (16,))


def test_a_fault_that_every_trial_would_have_is_left_to_check():
    given = {
        "version": 1,
        "env": {"id": "CartPole-v1", "num_env": "auto"},
        "algorithm": {"name": "impala"},
        "search": {"ranges": {"env.num_env": {"choice": [8, 16]}}},
    }
    assert section_faults(load_config(given)) == []
    told = check(load_config(given), Topology.from_cores([0]))
    assert any("it trains in mode async" in str(fault) for fault in told)
