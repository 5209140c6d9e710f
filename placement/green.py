"""Counts groups of SMs, the smallest parts that green contexts cut a GPU into.

Sizes by architecture: CUDA driver API, "Green Contexts" (cuDevSmResourceSplitByCount). A GPU of 132
SMs has 16 groups of 8 and 4 SMs that belong to none.
"""

from __future__ import annotations

from .topology import Device


def group_sms(device: Device) -> int:
    """Returns the SMs in a group on this GPU, the least that a green context can have."""
    major = (device.capability or (0, 0))[0]
    if major >= 9:
        return 8
    return {8: 4, 7: 2}.get(major, 1)


def num_groups(device: Device) -> int:
    """Returns how many groups this GPU has; 0 where its SMs are not known. Drivers give fewer."""
    return (device.sm_count or 0) // group_sms(device)


def percent_of(count: int, groups: int) -> int:
    """Returns the `sm_percent` of a GMI with `count` of `groups` groups, rounded down."""
    return 100 * count // groups


def groups_of(sm_percent: int | None, groups: int) -> int:
    """Returns how many of `groups` groups a GMI with this share has: the most that fit in it.

    Undoes `percent_of` where there are at most 100 groups. None: all.
    """
    if sm_percent is None:
        return groups
    return min(groups, ((sm_percent + 1) * groups - 1) // 100)
