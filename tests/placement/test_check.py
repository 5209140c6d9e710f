"""`check`: every reason a config cannot run on the devices there are."""

import dataclasses

import pytest

from gmi_drl.placement import (
    Device,
    Layout,
    LayoutError,
    Topology,
    check,
    decoupled,
    layout_faults_of,
    layout_of,
    load_config,
    tdg,
)


def config(*overrides):
    return load_config({"version": 1, "env": {"id": "Ant-v5"}}, overrides)


def told(topology, *overrides):
    return [str(fault) for fault in check(config(*overrides), topology)]


def cores(count, groups=1):
    return Topology.from_cores(range(count), groups)


def gpus(count):
    return Topology(tuple(Device(i, "gpu", "A100", (i,), f"GPU-{i}") for i in range(count)))


def test_what_can_run_has_no_faults():
    assert told(cores(2), "layout.gmi_per_gpu=2") == []
    assert told(gpus(2), "layout.gmi_per_gpu=4", "hardware.num_gpus=2") == []


def test_all_faults_are_listed_at_once():
    faults = told(
        cores(3, 2),
        "layout.gmi_per_gpu=2",
        "algorithm.minibatches=7",
        "comm.reduction=local",
        "roles.simulator=a:B",
        "roles.trianer=a:B",
        "hardware.backend=direct",
    )
    assert faults == [
        "hardware.backend='direct'; there is no GPU. Use cpu, or auto.",
        "algorithm.minibatches=7; must divide the 1024 samples of an update of one GMI (num_env=64 "
        "x horizon=16). Use 4 or 8, or change num_env or horizon.",
        "comm.reduction='local'; there are 4 GMIs, which would drift apart. Use mpr, or auto.",
        "roles.simulator='a:B'; template tcg_ex plays all roles of a GMI with one class, named by "
        "its trainer. Move it to roles.trainer.",
        "roles.trianer='a:B'; template tcg_ex has the roles simulator, agent, trainer. "
        "Did you mean trainer?",
    ]


ONE_SAMPLE = ("env.num_env=1", "algorithm.horizon=1", "algorithm.minibatches=1")
A3C = ("algorithm.name=a3c", "layout.template=tdg_ex", "algorithm.normalize_value=false")


@pytest.mark.parametrize(
    ("overrides", "gmis", "is_told"),
    [
        (ONE_SAMPLE, 1, True),
        (ONE_SAMPLE, 2, False),  # of two GMIs
        ((*ONE_SAMPLE, "algorithm.normalize_advantage=false"), 1, False),
        ((*ONE_SAMPLE, "algorithm.horizon=2"), 1, False),
        ((*ONE_SAMPLE, *A3C), 3, True),  # of each agent
        ((*ONE_SAMPLE, *A3C, "env.num_env=2"), 3, False),
    ],
)
def test_an_advantage_that_would_always_be_0_is_told(overrides, gmis, is_told):
    said = (
        "algorithm.normalize_advantage=True; an update has one sample, whose normalised advantage "
        "is always 0. Set it to false, or raise horizon."
    )
    assert (said in told(cores(gmis), *overrides, f"layout.gmi_per_gpu={gmis}")) == is_told


def test_more_gmis_than_cores_of_a_device():
    assert told(cores(3, 2), "layout.gmi_per_gpu=2") == [
        "layout.gmi_per_gpu=2; device 0 has 1 of the 3 cores, and each GMI needs one. Use 1 or "
        "fewer, or lower hardware.num_gpus."
    ]
    assert told(cores(2), "layout.gmi_per_gpu=3")[0].endswith("Use 2 or fewer.")


def test_more_devices_than_cores():
    assert told(cores(2, 3)) == [
        "hardware.num_gpus=3; the machine has 2 cores, and each group needs one. Use 2 or fewer."
    ]


def test_more_gpus_than_there_are():
    assert told(gpus(2), "hardware.num_gpus=3") == [
        "hardware.num_gpus=3; the machine has 2 devices. Use 2 or fewer, or leave it out for all."
    ]


def test_backend_and_devices_must_agree():
    assert "the devices are GPUs" in told(gpus(1), "hardware.backend=cpu")[0]
    assert "no device was found" in told(Topology(()))[0]


@pytest.mark.parametrize(
    ("rows", "parts", "remedy"),
    [
        (
            ("env.num_env=1", "algorithm.horizon=1", "algorithm.normalize_advantage=false"),
            2,
            "Use 1, or",
        ),
        (("env.num_env=7", "algorithm.horizon=1"), 3, "Use 1 or 7, or"),
    ],
)
def test_minibatches_that_do_not_divide_are_told_the_nearest_that_do(rows, parts, remedy):
    (fault,) = told(cores(1), *rows, f"algorithm.minibatches={parts}")
    assert remedy in fault


def test_minibatches_of_tdg_ex_are_of_all_agents_of_a_trainer():
    crew = "layout.template=tdg_ex", "layout.gmi_per_gpu=4", "env.num_env=1", "algorithm.horizon=2"
    assert told(cores(4), *crew, "algorithm.minibatches=3") == []
    (fault,) = told(cores(4), *crew, "algorithm.minibatches=4")
    assert (
        "the 6 samples of an update of one GMI (num_env=1 x horizon=2 x 3 agents). Use 3 or"
        in fault
    )


def test_what_passes_the_check_has_a_layout():
    assert layout_of(config("layout.gmi_per_gpu=2"), cores(4, 2)).mpl == [[0, 1], [2, 3]]
    assert {gmi.backend for gmi in layout_of(config(), gpus(2)).gmis} == {"direct"}
    assert {gmi.backend for gmi in layout_of(config(), cores(2)).gmis} == {"cpu"}


# Modes and their templates ------------------------------------------------------------------------


def test_every_mode_has_its_template():
    assert layout_of(config(), cores(2)).template == "tcg_ex"
    assert layout_of(config("mode=async"), cores(2, 2)).template == "decoupled"
    assert layout_of(config("mode=serving"), cores(2)).template == "tcg"


@pytest.mark.parametrize(
    ("mode", "template", "home"),
    [
        ("sync", "decoupled", "async"),
        ("sync", "tdg", "serving"),
        ("async", "tcg_ex", "sync"),
        ("serving", "decoupled", "async"),
    ],
)
def test_a_template_of_another_mode_is_a_fault(mode, template, home):
    sent = ("layout.gmi_per_gpu=2", f"layout.template={template}")
    (fault,) = told(cores(4, 2), f"mode={mode}", *sent)
    assert f"it is of mode {home}, and the mode is {mode}. Use " in fault
    assert fault.endswith(f"or set mode: {home}.")


def test_decoupled_has_trainers_on_the_last_devices_and_environments_on_the_others():
    layout = layout_of(
        config("mode=async", "layout.gmi_per_gpu=2", "layout.trainer_gpus=2"), gpus(3)
    )
    assert layout.mpl_of("agent") == [[0, 1], [], []]
    assert layout.mpl_of("simulator") == layout.mpl_of("agent")
    assert layout.mpl_of("trainer") == [[], [2, 3], [4, 5]]
    assert [gmi.num_env for gmi in layout.gmis] == [64, 64, 0, 0, 0, 0]


def test_decoupled_needs_two_devices():
    (fault,) = told(cores(2), "mode=async")
    assert fault.endswith("Set hardware.num_gpus: 2, which makes two groups of the cores.")
    assert "Use mode: sync" in told(gpus(1), "mode=async")[0]
    (fault,) = told(cores(4, 2), "mode=async", "layout.trainer_gpus=2")
    assert fault.startswith("layout.trainer_gpus=2; of 2 devices one")
    assert fault.endswith("Use 1 or fewer.")
    with pytest.raises(LayoutError, match="need a device each"):
        decoupled(cores(2), 1, 8)


def test_tdg_pairs_a_simulator_with_an_agent_on_one_device():
    layout = layout_of(
        config("mode=serving", "layout.template=tdg", "layout.gmi_per_gpu=2"), cores(4, 2)
    )
    assert [gmi.roles for gmi in layout.gmis] == [("simulator",), ("agent",)] * 2
    assert [gmi.num_env for gmi in layout.gmis] == [64, 0, 64, 0]
    (fault,) = told(cores(2), "mode=serving", "layout.template=tdg", "layout.gmi_per_gpu=1")
    assert fault.endswith("Use 2, or template tcg.")
    with pytest.raises(LayoutError, match="pairs a simulator GMI with an agent"):
        tdg(cores(3), 3, 8)


def test_a_gmis_class_is_named_by_the_last_of_its_roles():
    (fault,) = told(cores(2, 2), "mode=async", "roles.simulator=a:B", "roles.agent=a:B")
    assert fault.endswith("named by its agent. Move it to roles.agent.")
    serving = ("mode=serving", "layout.template=tdg", "layout.gmi_per_gpu=2")
    assert told(cores(2), *serving, "roles.simulator=a:B", "roles.agent=a:B") == []
    (fault,) = told(cores(2), "mode=serving", "roles.trainer=a:B")
    assert "template tcg has the roles simulator, agent" in fault


def test_a_policy_to_serve_belongs_to_mode_serving():
    assert told(cores(2), "mode=serving", "run.policy=runs/x") == []
    assert "it is served" in told(cores(2), "run.policy=runs/x")[0]


def test_only_trainers_need_a_reduction():
    assert told(cores(2, 2), "mode=async", "comm.reduction=local") == []


def test_an_algorithm_trains_in_its_own_mode():
    (fault,) = told(cores(2), "algorithm.name=impala", "algorithm.minibatches=2")
    assert fault == (
        "algorithm.name='impala'; it trains in mode async, and the mode is sync. Set mode: async, "
        "or use ppo, a2c, pg, a3c, dqn, sac, td3, ddpg, es, ars, mappo, vdn, qmix, alphazero, mbpo "
        "or cem."
    )
    asynchronous = "mode=async", "hardware.num_gpus=2"
    assert told(cores(2, 2), *asynchronous) == []
    (fault,) = told(cores(2, 2), *asynchronous, "algorithm.name=ppo")
    rule = (
        "it trains in mode sync, and the mode is async. Set mode: sync, or use impala, appo, dqn, "
    )
    assert rule in fault


@pytest.mark.parametrize(
    ("agents", "trainers", "batch", "capacity", "wanted"),
    [(1, 1, 1, 2, 2), (1, 1, 2, 2, 3), (2, 1, 3, 2, 3), (2, 1, 2, 2, 2), (1, 2, 1, 2, 3)],
)
def test_links_hold_a_batch_and_one_segment_more_each(agents, trainers, batch, capacity, wanted):
    def told_with(capacity):
        return told(
            gpus(agents + trainers), "mode=async", f"layout.trainer_gpus={trainers}",
            f"experience.batch_segments={batch}", f"experience.capacity={capacity}",
            "algorithm.minibatches=1",
        )  # fmt: skip

    faults = told_with(capacity)
    assert bool(faults) == (capacity < wanted)
    assert all(f"Use {wanted} or more" in fault for fault in faults)
    assert told_with(wanted) == []


def test_only_observations_are_compressed():
    wanted = "mode=async", "hardware.num_gpus=2"
    assert told(cores(2, 2), *wanted, "experience.lz4=[observation]") == []
    (fault,) = told(cores(2, 2), *wanted, "experience.lz4=[picture]")
    assert "['picture']; only the channel observation is compressed" in fault


def test_minibatches_of_segments_are_whole_environments():
    wanted = "mode=async", "hardware.num_gpus=2", "env.num_env=6", "algorithm.minibatches=4"
    (fault,) = told(cores(2, 2), *wanted)
    assert fault == (
        "algorithm.minibatches=4; must divide the 6 environments in a trainer's batch (num_env=6 "
        "x batch_segments=1). Use 3 or 6, or change num_env or batch_segments."
    )
    two = "experience.batch_segments=2", "experience.capacity=3"
    assert told(cores(2, 2), *wanted, *two) == []


def test_where_a_layout_file_is_faulty_nothing_is_said_of_numbers_of_gmis(tmp_path):
    (tmp_path / "layout.yaml").write_text("version: 1\ntemplate: tcg_ex\ngmis: 3\n")
    given = {"version": 1, "env": {"id": "Ant-v5"}, "algorithm": {"drop_slowest": 1}}
    given["layout"] = {"file": str(tmp_path / "layout.yaml")}
    (fault,) = check(load_config(given), cores(2))
    assert "gmis=3; must be a list" in str(fault)


@pytest.mark.parametrize(
    ("topology", "remedy"),
    [
        (cores(1), "or more cores (hardware.cores)."),
        (cores(3, 2), "or more cores (hardware.cores), or lower hardware.num_gpus."),
    ],
)
def test_a_template_that_needs_more_gmis_than_cores_is_not_told_to_have_fewer(topology, remedy):
    (fault,) = told(topology, "layout.template=tdg_ex")
    assert fault.startswith("layout.gmi_per_gpu=2; device 0 has 1 of the ")
    assert fault.endswith(f"Template tdg_ex has 2 or more: use another one, {remedy}")


def test_what_one_host_cannot_use_is_no_fault_of_another_when_a_run_goes_on():
    one = dataclasses.replace(gpus(2), unusable=(("mps", "nvidia-cuda-mps-control is missing"),))
    given = config("layout.gmi_per_gpu=2", "cluster={address: 'h:1', hosts: 2}")
    hosts = [layout_of(given, topology) for topology in (one, gpus(2))]
    assert [host.gmi(0).backend for host in hosts] == ["direct", "mps"]
    assert layout_faults_of(given, Layout.joined(hosts)) == []
