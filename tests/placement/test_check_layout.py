"""Every reason a layout cannot run: of templates none, of edited ones what was edited wrong."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmi_drl.placement import (
    Device,
    GmiSpec,
    GpuProcess,
    Layout,
    MigInstance,
    MigSlice,
    Topology,
    check,
    decoupled,
    layout_of,
    load_config,
    tcg,
    tcg_ex,
    tdg,
    tdg_ex,
)
from gmi_drl.placement.checks.layout import gmi_faults, layout_faults
from gmi_drl.placement.config.config import HardwareConfig
from gmi_drl.placement.slicing import sliced
from gmi_drl.placement.templates import TEMPLATES, rollout_workers_of

GIB = 1 << 30
H200 = Device(
    0, "gpu", "NVIDIA H200", tuple(range(8)), "GPU-0", 132, 141 * GIB, (9, 0), mig_mode=False
)


def machine(count=1, cuda=None, unusable=(), **changes):
    gpus = tuple(
        dataclasses.replace(H200, index=i, cores=tuple(range(8 * i, 8 * i + 8)), uuid=f"GPU-{i}",
                            **changes)
        for i in range(count)
    )  # fmt: skip
    return Topology(gpus, unusable=tuple(unusable), cuda=cuda)


def edited(backend, *edits, topology=None, template=tcg_ex, gmis=None, hardware=None):
    """What is told of a template's layout after the GMIs from 0 on were changed so."""
    hardware = hardware or HardwareConfig()
    topology = topology or machine()
    layout = template(topology, gmis or max(1, len(edits)), 64, backend)
    changed = [dataclasses.replace(g, **e) for g, e in zip(layout.gmis, edits, strict=False)]
    changed += layout.gmis[len(edits) :]
    layout = sliced(dataclasses.replace(layout, gmis=tuple(changed)), hardware)
    return [str(fault) for fault in [*layout_faults(layout, hardware), *gmi_faults(layout, 64)]]


def test_gmis_under_mps_may_all_have_the_whole_device():
    assert edited("mps", gmis=8, hardware=HardwareConfig(sm_overcommit=8)) == []
    found = sliced(tcg_ex(machine(), 8, 64, "mps"), HardwareConfig(sm_overcommit=8))
    assert {gmi.sm_percent for gmi in found.gmis} == {100}


def test_runs_that_share_a_gpu_may_be_clients_of_the_server_that_holds_it_exclusively():
    server = GpuProcess(4242, "mps", GIB)
    shared = machine(share=0.5, compute_mode="exclusive", processes=(server,))
    assert edited("mps", topology=shared) == []
    alone = machine(compute_mode="exclusive", processes=(server,))
    assert "process 4242 holds it" in "".join(edited("mps", topology=alone))


HELD = {"processes": (GpuProcess(4242, "compute", 30 * GIB), GpuProcess(77, "graphics"))}
MIG = {"mig_mode": True, "mig": (MigInstance("MIG-0", "3g.71gb", 4, 4, 70 * GIB),)}


@pytest.mark.parametrize(
    ("backend", "edits", "machines", "told"),
    [
        ("mps", [{"sm_percent": 60}, {"sm_percent": 130}], {},
         "GmiSpec 1: sm_percent=130; GPU 0 has 40 left. Lower it, raise hardware.sm_overcommit, or "
         "use fewer GMIs."),
        ("mps", [{"sm_percent": 100}, {}], {}, "GmiSpec 1: sm_percent; GPU 0 has 0 left."),
        ("mps", [{"mem_bytes": 100 * GIB}, {"mem_bytes": 50 * GIB}], {},
         "GmiSpec 1: mem_bytes=53687091200; GPU 0 has 40.0 GiB left of 141.0, beside 1 that CUDA "
         "takes. Lower memory to 40.0 GiB, or use fewer GMIs."),
        ("mps", [{"mem_bytes": 140 * GIB}, {}], {},
         "GmiSpec 1: mem_bytes; GPU 0 has 0.0 GiB left of 141.0, beside 1 that CUDA takes."),
        ("mps", [{}, {"mem_bytes": 140 * GIB}], {}, "GmiSpec 0: mem_bytes; GPU 0 has 0.0 GiB left"),
        ("mps", [{"mem_bytes": 111 * GIB}], HELD, "has 110.0 GiB left of 141.0, beside 1 that CUDA "
         "takes and 30.0 that other processes hold. Lower memory to 110.0 GiB"),
        ("mps", [{}], {**HELD, "mem_bytes": 31 * GIB}, "Use fewer GMIs, or wait for those to end."),
        *((backend, [edit], {**HELD, "compute_mode": "exclusive"}, "process 4242 holds it, and no")
          for backend, edit in (("direct", {}), ("mps", {}), ("green", {}))),
        ("mps", [{"backend": "green"}, {}], {},
         "GmiSpec 1: backend='mps'; GMI 0 on GPU 0 has green, and one way of cutting a device"),
        ("mps", [{"mig": MigSlice("3g.71gb", 0)}], {}, "GmiSpec 0: mig='3g.71gb'; its backend is"),
        ("mps", [{}] * 49, {}, "GPU 0: GMIs=49; MPS takes 48 clients on a device (60 from CUDA 13"),
        ("mps", [{}] * 61, {"cuda": (13, 1)}, "GPU 0: GMIs=61; MPS takes 60 clients on a device."),
        ("mps", [{}], {"unusable": [("mps", "no daemon")]}, "cannot be used here: no daemon"),
        ("mps", [{}], {"capability": (6, 1)}, "it is of compute capability 6.1, and MPS limits"),
        ("mps", [{}], {"mig_mode": True}, "GPU 0 is in MIG mode, where its instances alone"),
        ("mps", [{}], {"compute_mode": "prohibited"}, "compute mode='prohibited'; no process may"),
        ("direct", [{}, {}], {"compute_mode": "exclusive"}, "one process may use it at a time"),
        ("direct", [{}], {"compute_mode": "exclusive", "share": 0.25}, "and there are 4 GMIs"),
        ("mps", [{}] * 7, {"share": 0.125}, "GMIs=56; MPS takes 48 clients on a device"),
        ("mps", [{"sm_percent": 60}], {"share": 0.5}, "GPU 0 has 50 left"),
        ("green", [{}], {"share": 0.5}, "hardware.gpu_share=0.5; its GMIs are threads of one"),
        ("direct", [{"sm_percent": 50}], {}, "GmiSpec 0: sm_percent=50; backend direct limits"),
        ("cpu", [{}], {}, "GmiSpec 0: backend='cpu'; GPU 0 is a GPU."),
        ("green", [{"sm_percent": 60}, {"sm_percent": 60}], {},
         "GmiSpec 1: sm_percent=60; GPU 0 has 16 groups of 8 SMs, 7 are left, and this is 9."),
        ("green", [{"sm_percent": 1}], {}, "and this is 0. Raise it."),
        ("green", [{"mem_bytes": GIB}], {}, "backend green limits SMs alone"),
        ("green", [{}], {"sm_count": None}, "the number of its SMs is not known"),
        ("mig", [{"mig": MigSlice("3g.71gb", 4)}] * 2, MIG, "GmiSpec 1: mig='3g.71gb at 4'; GMI 0"),
        ("mig", [{"mig": MigSlice("1g.18gb", 6)}], MIG, "it overlaps 3g.71gb at 4 on GPU 0"),
        ("mig", [{"mig": MigSlice("2g.35gb", 1)}], MIG, "a 2g.35gb begins at 0, 2, 4"),
        ("mig", [{"mig": MigSlice("5g.99gb", 0)}], MIG, "has profiles 1g.18gb"),
        ("mig", [{"mig": MigSlice("2g.35gb", 0)}], MIG, "none are made without hardware.allow_cre"),
        ("mig", [{"mig": MigSlice("3g.71gb", 4), "mem_bytes": 71 * GIB}], MIG, "has 70.0 GiB"),
        ("mig", [{"mig": MigSlice("3g.71gb", 4), "sm_percent": 9}], MIG, "the instance says how"),
        ("mig", [{"mig": MigSlice("3g.71gb", 4)}], {"mig_mode": None}, "NVIDIA H200 has no MIG"),
        ("direct", [{"cores": (1, 99)}], {}, "this run has 0-7, and not 99. Leave cores out"),
        ("direct", [{"cores": (1, 1)}], {}, "GmiSpec 0: cores=[1, 1]; a core is named twice"),
        ("direct", [{"num_env": 8}], {}, "GmiSpec 0: num_env=8; env.num_env is 64"),
        ("direct", [{"roles": ("agent",), "num_env": 0}], {},
         "GmiSpec 0: roles=['agent']; a GMI of template tcg_ex has simulator, agent, trainer. Use"),
    ],
)  # fmt: skip
def test_what_was_edited_wrong_is_told(backend, edits, machines, told):
    faults = edited(backend, *edits, topology=machine(**machines))
    assert [told in fault for fault in faults] == [True], faults


def test_mig_instances_are_made_where_that_is_allowed():
    wanted = {"mig": MigSlice("2g.35gb", 0)}
    allowed = HardwareConfig(allow_create=True)
    assert edited("mig", wanted, topology=machine(**MIG), hardware=allowed) == []
    (fault,) = edited("mig", wanted, topology=machine(**MIG))
    assert fault.endswith("or run: sudo nvidia-smi mig -i GPU-0 -cgi 14:0 -C")


def test_on_groups_of_cores_each_core_is_of_one_gmi():
    cpu = Topology.from_cores(range(4), 2)
    free = {"cores": ()}
    assert edited("cpu", {"cores": (1,)}, free, {"cores": (3,)}, free, topology=cpu, gmis=2) == []
    faults = edited(
        "cpu", {"cores": (0,)}, {"cores": (0, 2)}, {"cores": (3,)}, free, topology=cpu, gmis=2
    )
    assert faults == [
        "GmiSpec 1: cores='0,2'; device 0 has 0-1, and not 2. Leave cores out for an even share.",
        "GmiSpec 1: cores='0,2'; GMI 0 has 0. Give each core to one GMI.",
        "GmiSpec 3: cores='2'; GMI 1 has 2. Give each core to one GMI.",
    ]


SIMULATOR, AGENT, BOTH = {"roles": ("simulator",)}, {"roles": ("agent",)}, ("simulator", "agent")


@pytest.mark.parametrize(
    ("template", "edits", "told"),
    [
        (tdg, [{**SIMULATOR, "num_env": 64}, {**SIMULATOR, "num_env": 64}], "a simulator and its"),
        (tdg, [{}, {"gpu_id": 1}], "GmiSpec 1: gpu=1; GMIs 0 and 1 are a pair of template tdg, and "
         "the simulator is on GPU 0. Use 0."),
        (tdg_ex, [{}, {"roles": BOTH, "num_env": 64}, {}, {"roles": BOTH, "num_env": 64}],
         "it has no peer: no GMI of the layout holds a trainer. Add one with trainer."),
        (tdg_ex, [{"roles": ("trainer",), "num_env": 0}, {}],
         "GmiSpec 0: roles=['trainer']; it has no peer: no GMI of GPU 0 is left to collect for it"),
        (decoupled, [{}, {}, *[{"roles": BOTH, "num_env": 64}] * 2], "no GMI of the layout holds"),
        (decoupled, [{}, {}, {}, {"num_env": 3}], "GmiSpec 3: num_env=3; it simulates nothing."),
    ],
)  # fmt: skip
def test_roles_have_their_peers(template, edits, told):
    faults = edited("mps", *edits, topology=machine(2), template=template, gmis=2)
    assert told in faults[0], faults


def test_a_pair_has_two_halves_of_environments_in_a_file_too(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "version: 1\ntemplate: tdg\ngmis:\n"
        "  - {gpu: 0, roles: [simulator]}\n  - {gpu: 0, roles: [agent]}\n"
    )
    given = {"version": 1, "mode": "serving", "env": {"id": "Ant-v5", "num_env": 1}}
    for layout in (str(tmp_path / "a.yaml"), {"template": "tdg", "gmi_per_gpu": 2}):
        (fault,) = check(load_config({**given, "layout": layout}), machine())
        assert str(fault).startswith("env.num_env=1; template tdg simulates one half")


def test_trainers_have_as_many_agents_each():
    layout = tdg_ex(machine(2), 3, 64, "mps")
    without = [dataclasses.replace(gmi, gmi_id=i) for i, gmi in enumerate(layout.gmis[1:])]
    (fault,) = gmi_faults(dataclasses.replace(layout, gmis=tuple(without)), 64)
    assert "2 GMIs collect for it and 1 for GMI 1" in str(fault)


@pytest.mark.parametrize("agents", [(2, 0), (0, 2)])
def test_agents_without_a_trainer_at_hand_fill_up_whatever_their_place(agents):
    layout = tdg_ex(machine(3), 2, 64, "mps")
    collect, train = layout.gmis[0], layout.gmis[1]
    gmis = [dataclasses.replace(collect, gpu_id=gpu) for gpu in agents]
    gmis += [dataclasses.replace(train, gpu_id=gpu) for gpu in (0, 1)]
    gmis = [dataclasses.replace(gmi, gmi_id=i) for i, gmi in enumerate(gmis)]
    changed = dataclasses.replace(layout, gmis=tuple(gmis))
    assert rollout_workers_of(changed) == {2: [agents.index(0)], 3: [agents.index(2)]}
    assert gmi_faults(changed, 64) == []


# Templates ----------------------------------------------------------------------------------------


@st.composite
def planned(draw):
    """(config, topology) of a machine and a template that has room on it."""
    template, mode = draw(st.sampled_from([(t.name, t.mode) for t in TEMPLATES.values()]))
    devices = draw(st.integers(2 if template == "decoupled" else 1, 8))
    gmis = 2 * draw(st.integers(1, 4)) if template != "tcg_ex" else draw(st.integers(1, 8))
    if draw(st.booleans()):
        topology = Topology.from_cores(range(draw(st.integers(devices * gmis, 100))), devices)
        backend = "auto"
    else:
        capability = draw(st.sampled_from([(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)]))
        sms = draw(st.integers(64, 160 if capability >= (7, 0) else 100))
        topology = machine(devices, capability=capability, sm_count=sms)
        fitting = ["auto", "direct", "green", *(["mps"] if capability >= (7, 0) else [])]
        backend = draw(st.sampled_from(fitting))
    algorithm = {}
    if template == "parameter_server":
        algorithm = {"name": "a3c", "optimizer": template, "normalize_value": False}
    config = load_config(
        {
            "version": 1, "mode": mode, "env": {"id": "Ant-v5"}, "algorithm": algorithm,
            "hardware": {"backend": backend, "num_gpus": devices},
            "layout": {"template": template, "gmi_per_gpu": gmis},
            "experience": {"capacity": 16},
        }
    )  # fmt: skip
    return config, topology


@given(planned())
def test_every_templates_layout_passes_the_check(plan):
    config, topology = plan
    assert check(config, topology) == []
    layout = layout_of(config, topology)
    assert len(layout.gmis) == len(topology.devices) * config.layout.gmi_per_gpu
    assert layout.topology == topology


def test_uneven_gangs_have_no_rings_of_one_gmi_each(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "version: 1\ntemplate: tcg_ex\ngmis:\n"
        + "".join(f"  - {{gpu: {g}, roles: [simulator, agent, trainer]}}\n" for g in (0, 0, 1))
    )
    given = {"version": 1, "env": {"id": "Ant-v5"}, "layout": str(tmp_path / "a.yaml")}
    assert check(load_config(given), machine(2)) == []
    (fault,) = check(load_config({**given, "comm": {"reduction": "mrr"}}), machine(2))
    assert "devices have different numbers of GMIs (2, 1)" in str(fault)
    faults = [str(f) for f in check(load_config({**given, "mode": "serving"}), machine(1))]
    assert faults == ["GmiSpec 2: gpu=1; this machine has 1 device, counted from 0. Lower it, or "
                      "make a layout for this machine: gmi-drl plan --layout."]  # fmt: skip
    faults = [str(f) for f in check(load_config({**given, "mode": "serving"}), machine(2))]
    assert "Use tcg or tdg in the layout's file, or set mode: sync." in faults[0]


def test_a_template_that_needs_two_gmis_says_so():
    layout = {"template": "tdg_ex", "gmi_per_gpu": 1}
    wanted = {"version": 1, "env": {"id": "Ant-v5"}, "layout": layout}
    (fault,) = check(load_config(wanted), machine())
    assert str(fault).startswith("layout.gmi_per_gpu=1; template tdg_ex has a trainer GMI on each")


def test_mig_instances_that_a_template_lacks_are_told_with_the_commands():
    wanted = {"version": 1, "env": {"id": "Ant-v5"}, "hardware": {"backend": "mig"}}
    (fault,) = check(load_config(wanted), machine())
    assert "allow_create" in str(fault)
    assert "nvidia-smi mig" in str(fault)


def test_layouts_are_values():
    one = tcg(machine(), 2, 64, "mps")
    assert one == Layout("tcg", machine(), one.gmis)
    assert isinstance(one.gmi(1), GmiSpec)
