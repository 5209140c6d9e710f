"""Layouts as YAML: they come back as they were, and what is wrong with a text is told by line."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmi_drl.placement import (
    ConfigError,
    Device,
    LayoutError,
    Topology,
    layout_of,
    load_config,
    tcg,
    tdg_ex,
)
from gmi_drl.placement.config.config import HardwareConfig
from gmi_drl.placement.layout_yaml import from_yaml, parse_layout, to_yaml
from gmi_drl.placement.slicing import sliced

GIB = 1 << 30
TWO = """\
version: 1
template: tcg_ex
gmis:
  - {gpu: 0, roles: [trainer, simulator, agent], sm_percent: 70, memory: 12.5 GiB}
  - {gpu: 0, roles: [simulator, agent, trainer]}
"""


def gpus(count, cores=8):
    return Topology(
        tuple(
            Device(
                i, "gpu", "NVIDIA H200", tuple(range(i * cores, (i + 1) * cores)), f"GPU-{i}", 132,
                141 * GIB, (9, 0), mig_mode=False,
            )
            for i in range(count)
        )
    )  # fmt: skip


@given(
    st.sampled_from(["cpu", "direct", "mps", "green", "mig"]), st.integers(1, 3), st.integers(2, 7),
    st.sampled_from([tcg, tdg_ex]),
)  # fmt: skip
def test_a_layout_comes_back_as_it_was(backend, devices, gmis, template):
    cpu = Topology.from_cores(range(devices * gmis + 1), devices)
    topology = cpu if backend == "cpu" else gpus(devices)
    hardware = HardwareConfig(allow_create=True)
    layout = sliced(template(topology, gmis, 64, backend), hardware)
    assert from_yaml(to_yaml(layout), topology, 64, backend) == layout


def test_numbers_of_environments_are_written_where_they_differ():
    layout = tcg(gpus(1), 2, 64, "direct")
    assert "num_env:" not in to_yaml(layout)
    changed = dataclasses.replace(layout.gmis[1], num_env=8)
    uneven = dataclasses.replace(layout, gmis=(layout.gmis[0], changed))
    assert from_yaml(to_yaml(uneven), gpus(1), 64) == uneven


def test_what_is_left_out_is_shared_evenly():
    layout = from_yaml(TWO, gpus(1), 32, "mps")
    assert [gmi.sm_percent for gmi in layout.gmis] == [70, 30]
    assert [gmi.mem_bytes for gmi in layout.gmis] == [int(12.5 * GIB), int(127.5 * GIB)]
    assert [gmi.cores for gmi in layout.gmis] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert {gmi.roles for gmi in layout.gmis} == {("simulator", "agent", "trainer")}


def test_the_same_file_is_read_on_any_machine_that_has_its_devices():
    there = to_yaml(sliced(tcg(gpus(8), 2, 64, "mps"), HardwareConfig()))
    with pytest.raises(ConfigError) as caught:
        from_yaml(there, gpus(2), 64)
    assert len(caught.value.faults) == 12
    assert str(caught.value.faults[0]) == (
        "GmiSpec 4: gpu=2; this machine has 2 devices, counted from 0. Lower it, or make a layout "
        "for this machine: gmi-drl plan --layout."
    )
    assert from_yaml(there, gpus(8, cores=4), 64).gmi(15).cores == (30, 31)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("memory", "memroy"), "line 4: a.yaml: gmis.0.memroy; unknown key. Did you mean"),
        (("12.5 GiB", "12 gb"), "line 4: a.yaml: gmis.0.memory='12 gb'; must be bytes"),
        (("[simulator,", "[simulate,"), "line 5: a.yaml: gmis.1.roles.0='simulate'; must be one of "
         "simulator, agent, trainer. Did you mean simulator?"),
        (("template: tcg_ex", "template: tgc"), "line 2: a.yaml: template='tgc'; must be one of"),
        (("gpu: 0,", "gpu: -1,"), "line 4: a.yaml: gmis.0.gpu=-1; must be 0 or more."),
        (("memory: 12.5 GiB", "cores: 3-1"), "line 4: a.yaml: gmis.0.cores='3-1'; must be cores"),
        (("memory: 12.5 GiB", "mig: {start: 1}"), "a.yaml: gmis.0.mig.profile; missing. Add it: "
         "for example 3g.40gb."),
        (("version: 1", "version: 2"), "line 1: a.yaml: version=2; must be 1"),
        (("gmis:", "gmi:"), "a.yaml: gmis; missing. Add it: a list with gpu and roles"),
        (("sm_percent: 70", "gpu: 1"), "line 4: a.yaml: gmis.0.gpu; given twice, first in line 4"),
        ((", roles: [simulator, agent, trainer]", ""), "a.yaml: gmis.1.roles; missing. Add it: its "
         "roles, for example [simulator, agent, trainer]."),
        (("template", "- template"), "not YAML"),
        (("version: 1", "version: true"), "line 1: a.yaml: version=True; must be 1. Write"),
        (("version: 1", "version: 1.0"), "line 1: a.yaml: version=1.0; must be 1. Write"),
        (("12.5 GiB", "9" * 400 + " GiB"), "gmis.0.memory='999"),
        (("12.5 GiB", "9" * 5000), "line 4: folder/a.yaml, column 74; not YAML: this is no int"),
        (("12.5 GiB", "9" * 30), "9; is more than any device has. For example 12 GiB."),
        *(
            (("version: 1", f"version: {odd}"), f"not YAML: this is no {odd[2:].split()[0]}, or")
            for odd in ("!!int abc", "!!int ''", "!!float x", "!!timestamp x", "!!bool x")
        ),
        (("version: 1", f"version: 0x{'f' * 5000}"), "not YAML: this is no int, or one too large"),
    ],
)  # fmt: skip
def test_a_fault_is_told_with_its_line(change, told):
    with pytest.raises(ConfigError) as caught:
        parse_layout(TWO.replace(*change, 1), "folder/a.yaml")
    assert told in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "3", "version: 1\ntemplate: tcg\ngmis: []\n"])
def test_a_text_without_gmis_is_no_layout(text):
    with pytest.raises(ConfigError):
        parse_layout(text)


def test_a_config_names_a_layout_beside_it(tmp_path):
    (tmp_path / "a.yaml").write_text(TWO)
    path = tmp_path / "config.yaml"
    path.write_text("version: 1\nenv: {id: Ant-v5, num_env: 8}\nlayout: a.yaml\n")
    config = load_config(path)
    layout = layout_of(config, gpus(1))
    assert [(gmi.backend, gmi.sm_percent, gmi.num_env) for gmi in layout.gmis] == [
        ("mps", 70, 8), ("mps", 30, 8),
    ]  # fmt: skip
    again = load_config(config.model_dump(mode="json"))
    assert (again, layout_of(again, gpus(1))) == (config, layout)
    assert layout_of(load_config(path, ["layout={file: a.yaml}"]), gpus(1)) == layout
    with pytest.raises(ConfigError, match=r"layout.gmi_per_gpu=2; the layout file says it. Leave"):
        load_config({**config.model_dump(), "layout": {"file": "a.yaml", "gmi_per_gpu": 2}})
    with pytest.raises(ConfigError, match=r"layout.file=.*b.yaml'; No such file"):
        layout_of(load_config(path, ["layout=b.yaml"]), gpus(1))


def test_too_few_cores_for_what_names_none():
    text = TWO.replace("sm_percent: 70, memory: 12.5 GiB", "cores: 0-1")
    with pytest.raises(LayoutError, match="the others name all but 0, and each needs one"):
        from_yaml(text, Topology.from_cores([0, 1]), 8)
