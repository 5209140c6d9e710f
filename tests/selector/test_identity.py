"""What a record depends on: the versions of what runs, as far as it is there."""

from gmi_drl.selector import identity


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
