"""What joins the GMIs of a layout."""

from gmi_drl.placement import Device, Topology, decoupled
from gmi_drl.runtime import packing
from gmi_drl.wiring import wires_of


def test_a_gmi_of_a_large_machine_is_given_no_more_than_a_call_carries(tmp_path):
    gpus = tuple(Device(i, "gpu", "A100", (i,), f"GPU-{i}") for i in range(8))
    layout = decoupled(Topology(gpus), 4, 64, "direct", 4)
    wires = wires_of(layout, tmp_path)
    assert len(wires.links) == 16 * 16
    for gmi in layout.gmis:
        mine = wires.of(gmi.gmi_id)
        assert mine.out_of(gmi.gmi_id) == wires.out_of(gmi.gmi_id)
        assert mine.into(gmi.gmi_id) == wires.into(gmi.gmi_id)
        packing.pack(mine)
