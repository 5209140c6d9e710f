"""What can be tuned of a config: all that check lets run, with the learning problem held."""

import pytest

from gmi_drl.placement import (
    ConfigError,
    Device,
    Topology,
    check,
    from_yaml,
    layout_of,
    load_config,
)
from gmi_drl.selector.tune.candidate import DeviceSplit
from gmi_drl.selector.tune.keep import kept_sentence
from gmi_drl.selector.tune.space import (
    config_of,
    layout_text,
    own_of,
    space_of,
)

AUTO = {"env": {"num_env": "auto"}, "layout": {"gmi_per_gpu": "auto"}}


def config_with(**sections):
    data = {"version": 1, "env": {"id": "CartPole-v1"}, "run": {"total_steps": 10**9}}
    data["tune"] = {"keep": "none"}  # test_keep.py is about what follows num_env
    for name, keys in sections.items():
        data[name] = {**data.get(name, {}), **keys} if isinstance(keys, dict) else keys
    return load_config(data)


def on_cores(cores, groups=1):
    return Topology.from_cores(range(cores), groups)


def on_gpus(count=1, cores=16, unusable=("mig",)):
    gpus = tuple(
        Device(
            i, "gpu", "H100", tuple(range(i * cores, (i + 1) * cores)), f"GPU-{i}",
            sm_count=132, mem_bytes=80 << 30, capability=(9, 0),
        )
        for i in range(count)
    )  # fmt: skip
    return Topology(gpus, unusable=tuple((name, "not here") for name in unusable))


def counts(space):
    return [its[0].row.gmi_per_gpu for its in space.rows]


def num_envs(space):
    return [candidate.num_env for candidate in space.rows[0]]


def every(space):
    return [candidate for its in space.rows for candidate in its]


def test_the_numbers_of_gmis_that_are_given_are_tried_and_the_configs_own():
    given = {"tune": {"gmi_per_gpu": [4, 2]}, "hardware": {"backend": "direct"}}
    space, _ = space_of(config_with(**AUTO, **given), on_gpus())
    assert counts(space) == [2, 4]
    own = config_with(layout={"gmi_per_gpu": 3}, **given)
    assert counts(space_of(own, on_gpus())[0]) == [2, 3, 4]


def test_what_is_not_tried_of_the_numbers_that_are_given_is_told():
    def asked(counts, **given):
        return space_of(config_with(**{**AUTO, **given}, tune={"gmi_per_gpu": counts}), on_cores(2))

    space, held = asked([3, 2])
    assert counts(space) == [2]
    (note,) = [one for one in held if one.startswith("tune.gmi_per_gpu without 3, which cannot")]
    assert "2 of the 2 cores" in note
    with pytest.raises(ConfigError) as none:
        asked([64])
    (fault,) = none.value.faults
    assert str(fault).startswith("tune.gmi_per_gpu=[64]; with 64: device 0 has 2 of the 2 cores")
    assert str(fault).endswith("Use 2 or fewer.")
    with pytest.raises(
        ConfigError, match=r"tune.gmi_per_gpu=\[1\]; no other .* layout.gmi_per_gpu"
    ):
        asked([1], layout={"gmi_per_gpu": 2})
    assert counts(asked([2], layout={"gmi_per_gpu": 2})[0]) == [2]


def test_on_cores_rows_are_counts_of_gmis_that_each_have_a_core():
    space, _ = space_of(config_with(), on_cores(5))
    assert counts(space) == [1, 2, 3, 4, 5]
    assert {its[0].row.backend for its in space.rows} == {"cpu"}
    assert num_envs(space)[:6] == [4, 6, 8, 12, 16, 24]
    assert num_envs(space)[-1] == 4096
    assert every(space)[0].samples == 4 * 16


def test_the_paper_knows_powers_of_two():
    space, _ = space_of(config_with(tune={"algorithm": "paper"}), on_cores(6))
    assert counts(space) == [1, 2, 4]
    assert num_envs(space)[:4] == [4, 8, 16, 32]


def test_what_is_a_number_beside_an_auto_is_held():
    some, held = space_of(config_with(env={"num_env": "auto"}), on_cores(4))
    assert counts(some) == [1]
    assert "gmi_per_gpu 1" in held
    some, held = space_of(config_with(layout={"gmi_per_gpu": "auto"}), on_cores(4))
    assert counts(some) == [1, 2, 3, 4]
    assert num_envs(some) == [64]
    assert "num_env 64" in held
    assert space_of(config_with(**AUTO), on_cores(4))[0] == space_of(config_with(), on_cores(4))[0]


def test_the_config_as_given_is_a_candidate_where_it_leaves_nothing_open():
    given = config_with(env={"num_env": 100}, layout={"gmi_per_gpu": 5})
    space, _ = space_of(given, on_cores(8))
    own = own_of(given, space)
    assert (own.row.gmi_per_gpu, own.num_env) == (5, 100)
    assert own_of(config_with(**AUTO), space) is None
    assert own_of(config_with(env={"num_env": 100}, layout={"gmi_per_gpu": 7}), space) is None
    beyond = config_with(env={"num_env": 100}, tune={"max_num_env": 64})
    assert own_of(beyond, space_of(beyond, on_cores(8))[0]) is None


def test_an_update_that_is_given_stays_and_the_horizon_follows():
    kept = config_with(tune={"keep": "update", "batch": 1024}, algorithm={"horizon": 64}, **AUTO)
    space, held = space_of(kept, on_cores(3))
    assert "an update of 1,024 steps (the horizon follows, down to 17)" in held
    for one in every(space):
        assert one.samples == one.num_env * one.horizon * one.row.gmi_per_gpu
        assert config_of(kept, one).algorithm.horizon == one.horizon >= 17
        near = 1024 / 1.1 < one.samples < 1024 * 1.1
        assert near or one.horizon <= 18, one  # of what else divides
        assert one.samples <= 2 * 1024
    assert counts(space) == [1, 2, 3]
    with pytest.raises(ConfigError, match=r"tune.batch=8192; 4096 environments .* 65,536 steps"):
        space_of(
            config_with(tune={"keep": "update", "batch": 8192, "min_num_env": 4096}), on_cores(1)
        )


def test_templates_ask_for_pairs():
    space, _ = space_of(config_with(layout={"template": "tdg_ex"}), on_cores(4))
    assert counts(space) == [2, 3, 4]
    assert space.rows[1][0].samples == 4 * 2 * 16  # of three GMIs two simulate
    serving = config_with(mode="serving", layout={"template": "tdg"})
    assert counts(space_of(serving, on_cores(4))[0]) == [2, 4]
    with_trainers = config_with(mode="async", experience={"batch_segments": 2, "capacity": 5})
    space, _ = space_of(with_trainers, on_cores(4, 2))
    assert counts(space) == [1, 2]
    assert space.rows[1][0].samples == 4 * 20 * 2 * 2  # num_env, horizon, segments, trainers


def test_gpus_are_cut_by_every_backend_that_works():
    space, _ = space_of(config_with(), on_gpus())
    of_two = {its[0].row for its in space.rows if its[0].row.gmi_per_gpu == 2}
    assert of_two == {
        DeviceSplit(2, *how) for how in (["mps"], ["mps", 2.0], ["direct"], ["green"])
    }
    assert [r for its in space.rows if (r := its[0].row).gmi_per_gpu == 1] == [
        DeviceSplit(1, "direct")
    ]
    assert max(counts(space)) == 16  # a core for each
    assert num_envs(space)[:2] == [128, 192]
    space, _ = space_of(config_with(), on_gpus(), works=["direct"])
    assert {its[0].row.backend for its in space.rows} == {"mps", "direct"}
    fixed, held = space_of(config_with(hardware={"backend": "mps"}), on_gpus())
    assert {its[0].row.backend for its in fixed.rows} == {"mps"}
    assert "backend mps" in held


def test_unequal_shares_run_by_a_layout_file(tmp_path):
    config = config_with(layout={"template": "tdg_ex"}, hardware={"backend": "mps"})
    machine = on_gpus()
    space, _ = space_of(config, machine)
    shares = {its[0].row.percents for its in space.rows if its[0].row.gmi_per_gpu == 3}
    assert shares == {None, (33, 33, 33), (16, 16, 67)}
    uneven = next(c for c in every(space) if c.row.percents == (16, 16, 67))
    file = tmp_path / "tuned.layout.yaml"
    file.write_text(layout_text(config, uneven, machine))
    resolved = config_of(config, uneven, file)
    assert not check(resolved, machine)
    assert [gmi.sm_percent for gmi in layout_of(resolved, machine).gmis] == [16, 16, 67]
    assert from_yaml(file.read_text(), machine, uneven.num_env).template == "tdg_ex"


@pytest.mark.parametrize(
    ("config", "machine"),
    [
        (config_with(**AUTO), on_cores(3)),
        (config_with(mode="serving", layout={"template": "tdg"}), on_gpus(2)),
        (config_with(algorithm={"minibatches": 3, "horizon": 5}), on_gpus(2, unusable=())),
    ],
)
def test_every_candidate_is_a_config_that_check_lets_run(config, machine):
    for one in every(space_of(config, machine)[0]):
        if one.row.percents is None:
            resolved = config_of(config, one)
            assert resolved.is_resolved
            assert not check(resolved, machine)
            assert load_config(resolved.model_dump(mode="json")) == resolved


@pytest.mark.parametrize(
    ("sections", "where"),
    [
        ({"layout": {"file": "x.yaml"}}, "layout.file"),
        ({"tune": {"keep": "update", "batch": 7, "min_num_env": 16}}, "tune.batch"),
        ({"layout": {"template": "tdg"}}, "layout.template"),
        ({"mode": "async", "layout": {"template": "tcg"}, "tune": {"keep": "update"}}, "serving"),
        ({"layout": {"template": "tcg"}, "algorithm": {"name": "dqn"},
          "tune": {"keep": "update"}}, "serving"),
    ],
)  # fmt: skip
def test_nothing_to_tune_is_a_fault_of_the_config(sections, where):
    with pytest.raises(ConfigError) as caught:
        space_of(config_with(**sections), on_cores(2))
    assert where in str(caught.value)


def test_bounds_are_the_ends_of_a_row():
    def row(**tune):
        return num_envs(space_of(config_with(tune=tune), on_cores(1))[0])

    assert row(min_num_env=24, max_num_env=70) == [24, 32, 48, 64]
    assert row(min_num_env=50, max_num_env=60) == [50]
    assert row(max_num_env=3) == [3]  # its even ones: 3 x 16 samples in two minibatches
    assert row(min_num_env=1, max_num_env=4) == [1, 2, 3, 4]
    assert row(min_num_env=10_000)[0] == 10_000


def test_an_update_is_no_larger_than_a_twentieth_of_the_run():
    space, held = space_of(config_with(run={"total_steps": 100_000}), on_cores(2))
    assert max(one.samples for one in every(space)) == 4096
    assert held[-1] == "updates of at most 4,096 steps: a run of 100,000 has 20 or more"
    short, large = {"total_steps": 100}, {"num_env": 512, "id": "CartPole-v1"}
    space, _ = space_of(config_with(run=short, env=large), on_cores(2))
    assert max(one.samples for one in every(space)) == 512 * 16  # as the config has it
    with pytest.raises(ConfigError, match=r"total_steps=100; an update would take 4,096 steps"):
        space_of(config_with(run=short, tune={"min_num_env": 256}), on_cores(2))
    kept, _ = space_of(config_with(run=short, tune={"keep": "update", "batch": 8192}), on_cores(2))
    assert max(one.num_env for one in every(kept)) == 1024


def test_an_update_that_changes_is_said_with_both_numbers():
    config, machine = config_with(env={"num_env": 64}), on_cores(2)
    chosen = next(c for c in every(space_of(config, machine)[0]) if c.samples == 32_768)
    assert kept_sentence(config, machine, chosen) == (
        "an update takes 32,768 steps instead of 1,024, which may slow learning down (tune.keep: "
        "update keeps it)"
    )
    auto = kept_sentence(config_with(**AUTO), machine, chosen)
    assert "instead of 1,024 (num_env 64, 1 GMI on each device)" in auto
    kept = config_with(tune={"keep": "update", "batch": 1024}, algorithm={"horizon": 64})
    chosen = next(c for c in every(space_of(kept, machine)[0]) if c.horizon == 32)
    assert kept_sentence(kept, machine, chosen) == (
        "an update stays 1,024 steps: horizon 32 instead of 64"
    )
    same = next(c for c in every(space_of(config, machine)[0]) if c.samples == 1024)
    assert kept_sentence(config, machine, same) == ""


def test_no_room_for_the_fewest_gmis_is_a_fault_that_says_so():
    with pytest.raises(ConfigError, match="each GMI needs one"):
        space_of(config_with(layout={"template": "tdg_ex"}), on_cores(1))


@pytest.mark.parametrize(
    ("template", "groups", "tried"),
    [("tcg_ex", 1, [2, 3, 4]), ("tcg_ex", 2, [1, 2]), ("tdg_ex", 1, [3, 4])],
)
def test_fewer_gmis_than_an_update_is_made_of_are_not_tried(template, groups, tried):
    """One GMI is left out of each update, or one agent of each trainer."""
    layout = {"gmi_per_gpu": "auto", "template": template}
    config = config_with(
        env={"num_env": "auto"}, layout=layout, algorithm={"drop_slowest": 1},
        tune={"keep": "gradient_steps"},
    )  # fmt: skip
    space, _ = space_of(config, on_cores(4, groups))
    assert counts(space) == tried


@pytest.mark.parametrize("keep", ["update", "gradient_steps"])
def test_fewer_gmis_than_an_update_is_made_of_are_told_where_they_are_asked_for(keep):
    config = config_with(
        **{**AUTO, "tune": {"gmi_per_gpu": [1, 4], "keep": keep}}, algorithm={"drop_slowest": 2}
    )
    space, held = space_of(config, on_cores(4))
    assert set(counts(space)) == {4}
    assert any("tune.gmi_per_gpu without 1, which cannot run here" in line for line in held)
