"""How faults name what they are about: a GMI of a layout, or a device."""

from __future__ import annotations

from gmi_drl.placement.faults import Fault
from gmi_drl.placement.layout import GmiSpec
from gmi_drl.placement.topology import Device


def spec_fault(gmi: GmiSpec, name: str, value: object, rule: str, remedy: str) -> Fault:
    """A fault of one field of a GMI: "GmiSpec 3: sm_percent=130; ..."."""
    return Fault(f"GmiSpec {gmi.gmi_id}: {name}", value, rule, remedy)


def place(device: Device) -> str:
    """A device as messages name it: GPU 0, or device 0 where it is a group of cores."""
    return f"{'GPU' if device.kind == 'gpu' else 'device'} {device.index}"
