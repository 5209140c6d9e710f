"""What a record depends on: the versions of what runs, as far as it is there."""

from pathlib import Path

import pytest

from gmi_drl.placement import Topology, load_config
from gmi_drl.selector.record import identity


def test_extras_that_are_absent_are_not_named(monkeypatch):
    there = {"torch": "2.13", "jax": "0.10"}
    monkeypatch.setattr(identity, "version_of", lambda name: there.get(name, "unknown"))
    identity.versions.cache_clear()
    found = identity.versions()
    identity.versions.cache_clear()
    assert (found["jax"], found["numpy"]) == ("0.10", "unknown")
    assert not {"warp-lang", "mujoco-warp", "jaxlib", "mujoco-mjx"} & found.keys()


def test_an_extra_that_came_or_went_is_the_difference():
    with_it, without = {"versions": {"jax": "0.10"}, "machine": {}}, {"versions": {}, "machine": {}}
    assert identity.difference(without, with_it) == "jax unknown then, 0.10 now"
    assert identity.difference(with_it, without) == "jax 0.10 then, unknown now"
    assert identity.difference(with_it, with_it) == ""


@pytest.mark.parametrize(
    ("sections", "depends"),
    [
        ({"env": {"id": "CartPole-v1", "adapter": "torch"}}, False),
        ({"env": {"id": "Ant-v5"}}, False),
        ({"env": {"id": "Ant-v5", "adapter": "warp"}}, True),
        ({"env": {"id": "own:Any-v0"}}, True),
        ({"env": {"id": "Ant-v5"}, "roles": {"trainer": "own:Mine"}}, True),
    ],
)
def test_a_package_that_the_adapter_does_not_use_is_no_part_of_a_tuning(
    monkeypatch, sections, depends
):
    def known(**more):
        monkeypatch.setattr(identity, "versions", lambda: {"torch": "2.13", **more})
        config, cores = load_config({"version": 1, **sections}), Topology.from_cores(range(2), 1)
        its = identity.identity(config, cores, Path())
        return identity.digest_of(its), identity.answer_key(config, cores, Path())

    without, with_it = known(), known(**{"mujoco-warp": "4.0"})
    assert [a != b for a, b in zip(without, with_it, strict=True)] == [depends] * 2
