"""Groups of SMs, the smallest parts that green contexts cut a GPU into, and shares of whole groups.

Sizes by architecture: CUDA driver API, "Green Contexts" (cuDevSmResourceSplitByCount). A GPU of 132
SMs has 16 groups of 8 and 4 SMs that belong to none.
"""

from __future__ import annotations

from .topology import Device


def group_sms(device: Device) -> int:
    """SMs in a group on this GPU: the least that a green context can have."""
    major = (device.capability or (0, 0))[0]
    if major >= 9:
        return 8
    return {8: 4, 7: 2}.get(major, 1)


def num_groups(device: Device) -> int:
    """Groups this GPU is cut into; 0 where its SMs are not known. The driver may give fewer."""
    return (device.sm_count or 0) // group_sms(device)


def percent_of(count: int, groups: int) -> int:
    """The `sm_percent` of a GMI with `count` of `groups` groups: their share, rounded down."""
    return 100 * count // groups


def groups_of(sm_percent: int | None, groups: int) -> int:
    """Of `groups` groups, those of a GMI with this share: the most whose `percent_of` is no larger.

    Undoes `percent_of` where there are at most 100 groups. None: all.
    """
    if sm_percent is None:
        return groups
    return min(groups, ((sm_percent + 1) * groups - 1) // 100)
