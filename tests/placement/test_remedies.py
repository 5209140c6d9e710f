"""A remedy that names a value mends its fault, whatever else is wrong."""

import copy
import random
import re

import pytest

from gmi_drl.placement import ALGORITHMS, TEMPLATES, ConfigError, Topology, check, load_config

# How remedies name a value of the fault's own key.
OWN = [r"Use (\d+)\b", r"Use \d+ or (\d+), or change", r"Use ([a-z_]+)[.,]"]
SETTINGS = {
    "horizon": [1, 2, 16, 100], "minibatches": [1, 3, 7], "drop_slowest": [1, 2],
    "recurrent": ["gru"], "batch_size": [1, 1000], "replay_start": [10, 2000],
    "replay_capacity": [1, 100], "n_step": [3], "population": [2, 8, 64], "games": [1, 8, 100],
    "gate_games": [3], "hindsight": [0.5], "sampler": ["prioritized"], "elites": [9],
    "normalize_value": [True],
}  # fmt: skip


def drawn(draw):
    """A config that may have any fault of numbers, and devices."""
    name = draw.choice(list(ALGORITHMS))
    settings = {
        key: draw.choice(values)
        for key, values in SETTINGS.items()
        if key in ALGORITHMS[name].model_fields and draw.random() < 0.3
    }
    if draw.random() < 0.3:
        settings["optimizer"] = draw.choice(ALGORITHMS[name].optimizers)
    given = {
        "version": 1,
        "mode": draw.choice(["sync", "async"]),
        "env": {"id": "CartPole-v1", "num_env": draw.choice([1, 3, 8, 64, 1000])},
        "algorithm": {"name": name, **settings},
        "layout": {"gmi_per_gpu": draw.choice([1, 2, 3])},
        "comm": {"reduction": draw.choice(["auto", "mpr", "mrr", "har", "local"])},
        "experience": {"batch_segments": draw.choice([1, 3]), "capacity": draw.choice([2, 5])},
    }
    if draw.random() < 0.3:
        given["layout"]["template"] = draw.choice(list(TEMPLATES))
    devices = draw.choice([1, 2, 4])
    return given, Topology.from_cores(range(4 * devices), devices)


def faults_of(given, topology):
    try:
        return check(load_config(given), topology)
    except ConfigError as error:
        return error.faults


def values_of(fault):
    """The keys and values that its remedy names."""
    for pattern in OWN:
        if match := re.match(pattern, fault.remedy):
            yield fault.where, match[1]
    if match := re.search(r"[Ss]et (\w+\.\w+): (\w+)", fault.remedy):
        yield match[1], match[2]
    if match := re.search(r"raise games to (\d+)|population of (\d+)", fault.remedy):
        yield f"algorithm.{'games' if match[1] else 'population'}", match[1] or match[2]


@pytest.mark.parametrize("seed", range(8))
def test_a_value_that_a_remedy_names_mends_its_fault(seed):
    draw, tried = random.Random(seed), 0
    for _ in range(40):
        given, topology = drawn(draw)
        for fault in faults_of(given, topology):
            for key, value in values_of(fault):
                if key.startswith("hardware.") or not re.fullmatch(r"\w+\.\w+", key):
                    continue  # there would be other devices
                section, _, name = key.partition(".")
                mended = copy.deepcopy(given)
                known = {"true": True, "false": False}
                mended[section][name] = known.get(value, int(value) if value.isdigit() else value)
                after = faults_of(mended, topology)
                told = {(other.where, other.rule.split(" ")[0]) for other in after}
                assert (fault.where, fault.rule.split(" ")[0]) not in told, (fault, after, given)
                tried += 1
    assert tried > 10
