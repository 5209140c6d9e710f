"""Chooses the MIG instances of a device's GMIs: those that exist first, then new ones that fit.

A GPU has 8 slices of memory (A30: 4). An instance of a profile covers `size` of them, from one of
the profile's `starts` on, and no two instances overlap: this is all there is to placing them, SMs
follow.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from gmi_drl.placement.layout import LayoutError, MigSlice
from gmi_drl.placement.topology import Device, MigInstance

from .tables import Profile, profiles_of

__all__ = [
    "Profile", "commands_for", "mig_slices", "pack", "placements", "profiles_of", "whole_instances",
]  # fmt: skip

_GIB: Final = 1 << 30
Interval = tuple[int, int]  # memory slices: the first, and how many


def placements(
    wanted: Sequence[Profile], taken: Iterable[Interval] = ()
) -> tuple[MigSlice, ...] | None:
    """Returns a place for an instance of each profile beside `taken`; None if they do not fit."""
    order = sorted(range(len(wanted)), key=lambda n: (-wanted[n].size, wanted[n].name))
    starts = _place([wanted[n] for n in order], _slices(taken))
    if starts is None:
        return None
    places = dict(zip(order, starts, strict=True))
    return tuple(MigSlice(wanted[n].name, places[n]) for n in range(len(wanted)))


def pack(
    requests: Sequence[int], profiles: Sequence[Profile], existing: Sequence[MigInstance] = ()
) -> tuple[MigSlice, ...]:
    """Returns an instance for each of `requests`, which are the least bytes of memory.

    Instances that exist are used first, the smallest that are large enough, but for those that
    several share ("1c.3g.40gb"). The others get new ones beside all that exist: equal requests
    equal profiles, with as few slices of memory in sum as can be, and with as many SMs as those
    allow. LayoutError says what does not fit.
    """
    used = _matched(requests, _whole(existing))
    rest = [n for n in range(len(requests)) if n not in used]
    taken = [(instance.start, instance.size) for instance in existing]
    new = _created([requests[n] for n in rest], profiles, taken, list(used.values()))
    chosen = {n: MigSlice(instance.profile, instance.start) for n, instance in used.items()}
    chosen.update(zip(rest, new, strict=True))
    return tuple(chosen[n] for n in range(len(requests)))


def mig_slices(
    device: Device, count: int, mem_bytes: int | None = None, allow_create: bool = False
) -> tuple[MigSlice, ...]:
    """Returns instances for `count` GMIs on a device, each with `mem_bytes` or more.

    Without `mem_bytes`: the largest that exist, if there are enough; else the profile with which
    the least of them is largest. Instances that several share ("1c.3g.40gb") are left alone. What
    does not exist is only planned with `allow_create`. LayoutError has the reason and, where it
    helps, the commands by which an administrator makes them.
    """
    where = f"GPU {device.index} ({device.name})"
    if device.mig_mode is None:
        raise LayoutError(
            f"{where}: backend mig; instance kind has no MIG. Use backend mps, or direct."
        )
    existing, profiles = whole_instances(device), profiles_of(device)
    enough = sorted(
        (instance for instance in existing if instance.mem_bytes >= (mem_bytes or 0)),
        key=lambda instance: (instance.mem_bytes, instance.sm_count or 0),
        reverse=mem_bytes is None,
    )
    if len(enough) >= count:
        return _by_start(MigSlice(instance.profile, instance.start) for instance in enough[:count])
    if not profiles:
        raise LayoutError(
            f"{where}: {count} MIG instances{_of(mem_bytes)}; it has {_listed(enough)}, and the "
            "profiles of this kind are not known. Make them with nvidia-smi mig, or use fewer GMIs."
        )
    taken = [(instance.start, instance.size) for instance in device.mig]
    try:
        planned = _planned(profiles, existing, taken, count, mem_bytes)
    except LayoutError as error:
        raise LayoutError(f"{where}: {error}") from None
    if not allow_create:
        commands = "\n".join(f"  {line}" for line in commands_for(device, planned))
        raise LayoutError(
            f"{where}: {count} MIG instances{_of(mem_bytes)}; it has {_listed(enough)}, and none "
            "are made without hardware.allow_create. Set hardware.allow_create: true (needs root "
            f"and an idle GPU), or have an administrator run:\n{commands}"
        )
    return planned


def whole_instances(device: Device) -> tuple[MigInstance, ...]:
    """Returns the instances of a device that have a GPU instance to themselves, by their place."""
    return tuple(sorted(_whole(device.mig), key=lambda instance: instance.start))


def commands_for(device: Device, slices: Sequence[MigSlice]) -> list[str]:
    """Returns the commands that make those of `slices` that do not exist on the device."""
    gpu = device.uuid or str(device.index)
    have = {(instance.profile, instance.start) for instance in device.mig}
    ids = {profile.name: profile.profile_id for profile in profiles_of(device)}
    missing = [s for s in _by_start(slices) if (s.profile, s.start) not in have]
    commands = [] if device.mig_mode else [f"sudo nvidia-smi -i {gpu} -mig 1"]
    if missing:
        specs = ",".join(f"{ids.get(s.profile, s.profile)}:{s.start}" for s in missing)
        commands.append(f"sudo nvidia-smi mig -i {gpu} -cgi {specs} -C")
    return commands


def _planned(
    profiles: Sequence[Profile],
    existing: Sequence[MigInstance],
    taken: Sequence[Interval],
    count: int,
    mem_bytes: int | None,
) -> tuple[MigSlice, ...]:
    """Returns existing instances and new ones; LayoutError if there is no room for `count`."""
    if mem_bytes is not None:
        used = _matched([mem_bytes] * count, existing)
        missing = [mem_bytes] * (count - len(used))
        new = _created(missing, profiles, taken, list(used.values()))
        return _by_start([*(MigSlice(i.profile, i.start) for i in used.values()), *new])
    for least in sorted(profiles, key=_largest_first):
        good = [i for i in existing if i.mem_bytes >= least.mem_bytes and _sms_reach(i, least)]
        kept = [MigSlice(i.profile, i.start) for i in good[:count]]
        made_of = placements([least] * (count - len(kept)), taken)
        if made_of is not None:
            return _by_start([*kept, *made_of])
    raise LayoutError(_no_room([0] * (count - len(existing)), profiles, taken, existing))


def _created(
    requests: Sequence[int],
    profiles: Sequence[Profile],
    taken: Sequence[Interval],
    used: Sequence[MigInstance],
) -> tuple[MigSlice, ...]:
    if requests and not profiles:
        raise LayoutError(
            f"{len(requests)} new MIG instances; the profiles of this kind of GPU are not known. "
            "Make them with nvidia-smi mig, or use fewer GMIs."
        )
    kinds = sorted(set(requests), reverse=True)
    fitting = [[p for p in profiles if p.mem_bytes >= need] for need in kinds]
    if not all(fitting):
        largest = max(profiles, key=lambda profile: profile.mem_bytes)
        raise LayoutError(
            f"an instance{_of(kinds[0])}; the largest is {largest.name} with "
            f"{largest.mem_bytes / _GIB:.1f} GiB. Ask for less memory, or use more GPUs."
        )
    numbers = [requests.count(need) for need in kinds]

    def cost(chosen: tuple[Profile, ...]) -> tuple[int, int]:
        pairs = list(zip(chosen, numbers, strict=True))
        return sum(p.size * n for p, n in pairs), -sum(_sms(p) * n for p, n in pairs)

    slices = max((start + p.size for p in profiles for start in p.starts), default=0)
    for chosen in sorted(_within(fitting, numbers, slices - len(_slices(taken))), key=cost):
        by_need = dict(zip(kinds, chosen, strict=True))
        if places := placements([by_need[need] for need in requests], taken):
            return places
    if not requests:
        return ()
    raise LayoutError(_no_room(requests, profiles, taken, used))


def _within(
    fitting: Sequence[Sequence[Profile]], numbers: Sequence[int], room: int
) -> Iterator[tuple[Profile, ...]]:
    """Yields a profile for each kind of request, in all ways whose slices are not too many."""
    if not fitting:
        yield ()
        return
    for profile in fitting[0]:
        left = room - profile.size * numbers[0]
        if left >= 0:
            for rest in _within(fitting[1:], numbers[1:], left):
                yield profile, *rest


def _matched(requests: Sequence[int], existing: Sequence[MigInstance]) -> dict[int, MigInstance]:
    """Returns instances by place in `requests`: as many as can be, the largest requests first."""
    free, matched = sorted(existing, key=lambda i: (i.mem_bytes, i.start)), {}
    for n in sorted(range(len(requests)), key=lambda n: -requests[n]):
        fits = next((instance for instance in free if instance.mem_bytes >= requests[n]), None)
        if fits is not None:
            free.remove(fits)
            matched[n] = fits
    return matched


def _place(wanted: Sequence[Profile], taken: frozenset[int]) -> list[int] | None:
    """Returns a start for each; equal ones come together, and lie in ascending order."""
    if not wanted:
        return []
    # The highest place first: 3g before 4g keeps place 0 free for what can lie nowhere else.
    for start in reversed(wanted[0].starts):
        cover = _covered(start, wanted[0].size)
        if not taken & cover:
            rest = _place(wanted[1:], taken | cover)
            if rest is not None:
                return [start, *rest]
    return None


def _no_room(
    requests: Sequence[int],
    profiles: Sequence[Profile],
    taken: Sequence[Interval],
    used: Sequence[MigInstance],
) -> str:
    """Returns why there is no room for new instances, one a request, beside `used` ones."""
    need = max(requests)
    beside = " beside those that exist" if taken else ""
    if need != min(requests):
        sizes = ", ".join(f"{one / _GIB:.1f}" for one in sorted(requests, reverse=True))
        return (
            f"new MIG instances of {sizes} GiB or more do not fit together{beside}. Ask for less "
            "memory, or use fewer GMIs on this GPU."
        )
    fits = 0
    for profile in profiles:
        while profile.mem_bytes >= need and placements([profile] * (fits + 1), taken):
            fits += 1
    less = ", or ask for less memory" if need else ""
    if used:
        missing, most = len(requests), len(used) + fits
        return (
            f"{len(used) + missing} MIG instances{_of(need)}; there {_are(len(used))} "
            f"{_listed(used)}, {missing} {_are(missing)} missing, and there is room for "
            f"{fits or 'none'}{beside}. Use {most} GMI{'s' * (most > 1)} on this GPU{less}."
        )
    remedy = f"Use {fits} GMIs or fewer on this GPU" if fits else "Use other GPUs"
    return f"{len(requests)} new MIG instances{_of(need)}; {fits} fit{beside}. {remedy}{less}."


def _whole(instances: Iterable[MigInstance]) -> list[MigInstance]:
    return [instance for instance in instances if not re.match(r"\d+c\.", instance.profile)]


def _covered(start: int, size: int) -> frozenset[int]:
    return frozenset(range(start, start + size))


def _slices(taken: Iterable[Interval]) -> frozenset[int]:
    return frozenset(itertools.chain.from_iterable(_covered(*interval) for interval in taken))


def _sms(profile: Profile) -> int:
    """Returns the SMs or, where they are not published, the g of the name, which orders alike."""
    return profile.sm_count or int(profile.name.partition("g")[0])


def _sms_reach(instance: MigInstance, least: Profile) -> bool:
    return None in (instance.sm_count, least.sm_count) or (instance.sm_count or 0) >= _sms(least)


def _largest_first(profile: Profile) -> tuple[int, int]:
    return -profile.size, -_sms(profile)


def _by_start(slices: Iterable[MigSlice]) -> tuple[MigSlice, ...]:
    return tuple(sorted(slices, key=lambda slice_: slice_.start))


def _of(mem_bytes: int | None) -> str:
    return f" of {mem_bytes / _GIB:.1f} GiB or more" if mem_bytes else ""


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _listed(instances: Sequence[MigInstance]) -> str:
    names = ", ".join(f"{instance.profile} at {instance.start}" for instance in instances)
    return f"{len(instances)} ({names})" if names else "none"
