"""What GMIs get of their devices, by backend; what they ask for themselves stays."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmi_drl.placement import Device, LayoutError, MigInstance, MigSlice, Topology, tcg
from gmi_drl.placement.config.config import HardwareConfig
from gmi_drl.placement.slicing import RESERVE_BYTES, groups_of, sliced

GIB = 1 << 30
H100 = Device(
    0, "gpu", "NVIDIA H100 80GB HBM3", (0, 1), "GPU-0", 132, 80 * GIB, (9, 0), mig_mode=False
)


def shares(gmis, backend, device=H100, hardware=None, **edits):
    layout = tcg(Topology((device,)), gmis, 8, backend)
    changed = list(layout.gmis)
    for name, values in edits.items():
        pairs = zip(changed, values, strict=True)
        changed = [dataclasses.replace(gmi, **{name: value}) for gmi, value in pairs]
    layout = dataclasses.replace(layout, gmis=tuple(changed))
    return sliced(layout, hardware or HardwareConfig()).gmis


@given(st.integers(1, 48), st.sampled_from([1.0, 1.5, 2.0, 8.0, 60.0]))
def test_mps_shares_add_up_to_the_device(gmis, overcommit):
    found = shares(gmis, "mps", hardware=HardwareConfig(sm_overcommit=overcommit))
    percent, memory = ({getattr(g, key) for g in found} for key in ("sm_percent", "mem_bytes"))
    assert percent == {min(100, int(100 * overcommit) // gmis)}
    (each,) = memory
    assert each * gmis <= 80 * GIB - RESERVE_BYTES < (each + (1 << 20)) * gmis


def test_what_a_gmi_asks_for_stays_and_the_others_share_the_rest():
    found = shares(3, "mps", sm_percent=(50, None, None), mem_bytes=(None, 39 * GIB, None))
    assert [gmi.sm_percent for gmi in found] == [50, 25, 25]
    assert [gmi.mem_bytes for gmi in found] == [20 * GIB, 39 * GIB, 20 * GIB]


@given(st.integers(1, 16))
def test_green_shares_are_whole_groups_and_disjoint(gmis):
    groups = [groups_of(gmi.sm_percent, 16) for gmi in shares(gmis, "green")]
    assert groups == [16 // gmis] * gmis


def test_mig_takes_the_instances_there_are_or_plans_them():
    instances = tuple(MigInstance(f"MIG-{n}", "3g.40gb", n, 4, 39 * GIB) for n in (0, 4))
    cut = dataclasses.replace(H100, mig_mode=True, mig=instances)
    assert [g.mig for g in shares(2, "mig", cut)] == [MigSlice("3g.40gb", n) for n in (0, 4)]
    with pytest.raises(LayoutError, match="allow_create"):
        shares(2, "mig")
    planned = shares(2, "mig", hardware=HardwareConfig(allow_create=True))
    assert len({gmi.mig for gmi in planned}) == 2
    uneven = shares(2, "mig", mem_bytes=(30 * GIB, 5 * GIB))
    assert [gmi.mig.profile for gmi in uneven] == ["4g.40gb", "1g.10gb"]
    with pytest.raises(LayoutError, match=r"GMIs \[0\] name their MIG instances"):
        shares(2, "mig", cut, mig=(MigSlice("3g.40gb", 0), None))


def test_direct_and_cpu_limit_nothing():
    assert {(g.sm_percent, g.mem_bytes) for g in shares(4, "direct")} == {(None, None)}
