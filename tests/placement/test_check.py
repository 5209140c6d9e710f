"""`check`: every reason a config cannot run on the devices there are."""

import pytest

from gmi_drl.placement import Device, Topology, check, layout_of, load_config


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


def test_more_gmis_than_cores_of_a_device():
    assert told(cores(3, 2), "layout.gmi_per_gpu=2") == [
        "layout.gmi_per_gpu=2; device 0 has 1 of the 3 cores, and each GMI needs one. Use 1 or "
        "fewer, or lower hardware.num_gpus."
    ]
    assert told(cores(2), "layout.gmi_per_gpu=3")[0].endswith("Use 2 or fewer.")


def test_more_devices_than_cores():
    assert told(cores(2, 3)) == [
        "hardware.num_gpus=3; there are 2 cores, and each group needs one. Use 2 or fewer."
    ]


def test_more_gpus_than_there_are():
    assert told(gpus(2), "hardware.num_gpus=3") == [
        "hardware.num_gpus=3; there are 2 devices. Use 2 or fewer, or leave it out for all."
    ]


def test_backend_and_devices_must_agree():
    assert "the devices are GPUs" in told(gpus(1), "hardware.backend=cpu")[0]
    assert "no device was found" in told(Topology(()))[0]


@pytest.mark.parametrize(
    ("rows", "parts", "remedy"),
    [
        (("env.num_env=1", "algorithm.horizon=1"), 2, "Use 1, or"),
        (("env.num_env=7", "algorithm.horizon=1"), 3, "Use 1 or 7, or"),
    ],
)
def test_minibatches_that_do_not_divide_are_told_the_nearest_that_do(rows, parts, remedy):
    (fault,) = told(cores(1), *rows, f"algorithm.minibatches={parts}")
    assert remedy in fault


def test_what_passes_the_check_has_a_layout():
    assert layout_of(config("layout.gmi_per_gpu=2"), cores(4, 2)).mpl == [[0, 1], [2, 3]]
    assert {gmi.backend for gmi in layout_of(config(), gpus(2)).gmis} == {"direct"}
    assert {gmi.backend for gmi in layout_of(config(), cores(2)).gmis} == {"cpu"}
