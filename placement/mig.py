"""Chooses the MIG instances of a device's GMIs: those that exist first, then new ones that fit.

A GPU has 8 slices of memory (A30: 4). An instance of a profile covers `size` of them, from one of
the profile's `starts` on, and no two instances overlap. That alone decides the placement; SMs
follow from it.

Profiles' names, fractions and places are those of NVIDIA's MIG user guide ("Supported MIG
Profiles"); SMs and memory are what `nvidia-smi mig -lgip` prints on such a GPU. Drivers differ in
the last quarter of a GiB, and the least seen is used. Without a listing memory is nine tenths of
the share of the part's memory, and SMs are None. Profiles with media engines ("+me") have
the same places and sizes as the plain ones and are left out: nothing here decodes video.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from .layout import LayoutError, MigSlice
from .topology import Device, MigInstance

_GIB: Final = 1 << 30
Interval = tuple[int, int]  # memory slices: the first, and how many


@dataclass(frozen=True)
class Profile:
    """A kind of GPU instance: its size, and where it may lie."""

    name: str  # "3g.40gb"
    profile_id: int  # as nvidia-smi prints it and takes it
    size: int  # memory slices
    starts: tuple[int, ...]  # memory slices at which it may begin
    mem_bytes: int  # that a process in it can use, at least
    sm_count: int | None  # None: not published


# (profile_id, memory slices, places) of 1g, 1g-wide, 2g, 3g, 4g, 7g; and of A30's 1g, 2g, 4g.
_PLACES_OF_7: Final = (
    (19, 1, tuple(range(7))),
    (15, 2, (0, 2, 4, 6)),
    (14, 2, (0, 2, 4)),
    (9, 4, (0, 4)),
    (5, 4, (0,)),
    (0, 8, (0,)),
)
_PLACES_OF_4: Final = ((14, 1, (0, 1, 2, 3)), (5, 2, (0, 2)), (0, 4, (0,)))


def _profiles(names: str, gib: Sequence[float], sms: Sequence[int | None]) -> tuple[Profile, ...]:
    """Returns the profiles of one part from the listings' columns."""
    profile_names = names.split()
    places = _PLACES_OF_7 if len(profile_names) == len(_PLACES_OF_7) else _PLACES_OF_4
    return tuple(
        Profile(name, profile_id, size, starts, int(mem_gib * _GIB), sm_count)
        for name, mem_gib, sm_count, (profile_id, size, starts) in zip(
            profile_names, gib, sms, places, strict=True
        )
    )


_SMS_A100: Final = (14, 14, 28, 42, 56, 98)
_SMS_H100: Final = (16, 26, 32, 60, 64, 132)
_NAMES_80: Final = "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"

A30: Final = _profiles("1g.6gb 2g.12gb 4g.24gb", (5.81, 11.69, 23.44), (14, 28, 56))
_NAMES_40: Final = "1g.5gb 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb"
A100_40: Final = _profiles(_NAMES_40, (4.75, 9.62, 9.62, 19.62, 19.62, 39.38), _SMS_A100)
A100_80: Final = _profiles(_NAMES_80, (9.5, 19.5, 19.5, 39.25, 39.25, 78.75), _SMS_A100)
H100_80: Final = _profiles(_NAMES_80, (9.75, 19.62, 19.62, 39.5, 39.5, 79.25), _SMS_H100)
H100_80_PCIE: Final = _profiles(
    _NAMES_80, (9.75, 19.62, 19.62, 39.5, 39.5, 79.25), (14, 14, 30, 46, 62, 114)
)
_NAMES_94: Final = "1g.12gb 1g.24gb 2g.24gb 3g.47gb 4g.47gb 7g.94gb"
H100_94: Final = _profiles(_NAMES_94, (10.57, 21.5, 21.5, 46.12, 46.12, 92.62), _SMS_H100)
_NAMES_96: Final = "1g.12gb 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb"
H100_96: Final = _profiles(_NAMES_96, (10.8, 21.6, 23.0, 46.5, 46.5, 93.0), _SMS_H100)
_NAMES_141: Final = "1g.18gb 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb"
H200: Final = _profiles(_NAMES_141, (16.0, 32.5, 32.5, 63.1, 63.1, 140.0), _SMS_H100)
_NAMES_180: Final = "1g.23gb 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb"
B200: Final = _profiles(_NAMES_180, (20.1, 40.2, 40.2, 80.5, 80.5, 161.1), (None,) * 6)

# A word of the device's name, its least memory in GiB, its SMs (None: any), and its profiles. The
# first match counts.
_PARTS: Final[tuple[tuple[str, float, int | None, tuple[Profile, ...]], ...]] = (
    ("A30", 0, None, A30),
    ("A100", 60, None, A100_80),
    ("A100", 0, None, A100_40),
    ("H100", 95, None, H100_96),
    ("H100", 85, None, H100_94),
    ("H100", 70, 114, H100_80_PCIE),
    ("H100", 70, None, H100_80),
    ("H200", 130, None, H200),
    ("GH200", 130, None, ()),  # of 144 GB: no profiles are published
    ("GH200", 90, None, H100_96),
    ("B200", 170, None, B200),
)


def profiles_of(device: Device) -> tuple[Profile, ...]:
    """Returns the profiles of a GPU, the smallest first; none without MIG, or if it is unknown."""
    if device.mig_mode is None:
        return ()
    words = re.split(r"[^A-Z0-9]+", device.name.upper())
    mem_gib = (device.mem_bytes or 0) / _GIB
    for word, least_gib, sm_count, profiles in _PARTS:
        if word in words and mem_gib >= least_gib and sm_count in (None, device.sm_count):
            return profiles
    return ()


def placements(
    wanted: Sequence[Profile], taken: Iterable[Interval] = ()
) -> tuple[MigSlice, ...] | None:
    """Returns a place for an instance of each profile beside `taken`; None if they do not fit."""
    order = sorted(range(len(wanted)), key=lambda n: (-wanted[n].size, wanted[n].name))
    starts = _find_starts([wanted[n] for n in order], _slices(taken))
    if starts is None:
        return None
    places = dict(zip(order, starts, strict=True))
    return tuple(MigSlice(wanted[n].name, places[n]) for n in range(len(wanted)))


def pack(
    requests: Sequence[int], profiles: Sequence[Profile], existing: Sequence[MigInstance] = ()
) -> tuple[MigSlice, ...]:
    """Returns an instance for each of `requests`, which are the least bytes of memory.

    Existing instances are used first, the smallest that are large enough, except for those that
    compute instances share ("1c.3g.40gb"). Other requests get new ones beside all existing ones:
    equal requests get equal profiles, with as few slices of memory in sum as possible, and with as
    many SMs as these allow. LayoutError says what does not fit.
    """
    used = _match(requests, _without_compute_instances(existing))
    unmatched = [n for n in range(len(requests)) if n not in used]
    taken = [(instance.start, instance.size) for instance in existing]
    created = _choose_new([requests[n] for n in unmatched], profiles, taken, list(used.values()))
    slices = {n: MigSlice(instance.profile, instance.start) for n, instance in used.items()}
    slices.update(zip(unmatched, created, strict=True))
    return tuple(slices[n] for n in range(len(requests)))


def mig_slices(
    device: Device, count: int, mem_bytes: int | None = None, allow_create: bool = False
) -> tuple[MigSlice, ...]:
    """Returns instances for `count` GMIs on a device, each with `mem_bytes` or more.

    Without `mem_bytes`: the largest existing ones, if there are enough; else those of the profile
    with which the least instance is largest. Instances that compute instances share ("1c.3g.40gb")
    are left alone. New ones are planned only with `allow_create`. LayoutError has the reason and,
    where it helps, the commands by which an administrator makes them.
    """
    gpu = f"GPU {device.index} ({device.name})"
    if device.mig_mode is None:
        raise LayoutError(f"{gpu}: backend mig; its kind has no MIG. Use backend mps, or direct.")
    profiles = profiles_of(device)
    usable = sorted(
        (i for i in whole_instances(device) if i.mem_bytes >= (mem_bytes or 0)),
        key=lambda instance: (instance.mem_bytes, instance.sm_count or 0),
        reverse=mem_bytes is None,
    )
    if len(usable) >= count:
        return _sorted_by_start(
            MigSlice(instance.profile, instance.start) for instance in usable[:count]
        )
    if not profiles:
        raise LayoutError(
            f"{gpu}: {count} MIG instances{_size(mem_bytes)}; it has {_describe(usable)}, and the "
            "profiles of this kind are not known. Make them with nvidia-smi mig, or use fewer GMIs."
        )
    try:
        if mem_bytes is None:
            planned = _largest(device, count)
        else:
            planned = _sorted_by_start(pack([mem_bytes] * count, profiles, device.mig))
    except LayoutError as error:
        raise LayoutError(f"{gpu}: {error}") from None
    if not allow_create:
        commands = "\n".join(f"  {line}" for line in commands_for(device, planned))
        raise LayoutError(
            f"{gpu}: {count} MIG instances{_size(mem_bytes)}; it has {_describe(usable)}, and none "
            "are made without hardware.allow_create. Set hardware.allow_create: true (needs root "
            f"and an idle GPU), or have an administrator run:\n{commands}"
        )
    return planned


def whole_instances(device: Device) -> tuple[MigInstance, ...]:
    """Returns the instances of a device that are whole GPU instances, by their start."""
    return tuple(_without_compute_instances(device.mig))


def instance_at(device: Device, place: MigSlice) -> MigInstance | Profile | None:
    """Returns the instance at a place, else the profile that would make it, if known."""
    existing = (i for i in device.mig if (i.profile, i.start) == (place.profile, place.start))
    profiles = (profile for profile in profiles_of(device) if profile.name == place.profile)
    return next(existing, None) or next(profiles, None)


def commands_for(device: Device, slices: Sequence[MigSlice]) -> list[str]:
    """Returns the commands that make the missing ones of `slices` on the device."""
    gpu = device.uuid or str(device.index)
    existing = {(instance.profile, instance.start) for instance in device.mig}
    ids = {profile.name: profile.profile_id for profile in profiles_of(device)}
    missing = [s for s in _sorted_by_start(slices) if (s.profile, s.start) not in existing]
    commands = [] if device.mig_mode else [f"sudo nvidia-smi -i {gpu} -mig 1"]
    if missing:
        specs = ",".join(f"{ids.get(s.profile, s.profile)}:{s.start}" for s in missing)
        commands.append(f"sudo nvidia-smi mig -i {gpu} -cgi {specs} -C")
    return commands


def _largest(device: Device, count: int) -> tuple[MigSlice, ...]:
    """Returns existing instances and new ones; LayoutError if there is no room for `count`."""
    profiles, existing = profiles_of(device), whole_instances(device)
    taken = [(instance.start, instance.size) for instance in device.mig]
    for least in sorted(profiles, key=lambda profile: (-profile.size, -_sms(profile))):
        fitting = [i for i in existing if i.mem_bytes >= least.mem_bytes and _sms_reach(i, least)]
        reused = [MigSlice(i.profile, i.start) for i in fitting[:count]]
        created = placements([least] * (count - len(reused)), taken)
        if created is not None:
            return _sorted_by_start([*reused, *created])
    raise LayoutError(_no_room([0] * (count - len(existing)), profiles, taken, existing))


def _choose_new(
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
    fitting = [[p for p in profiles if p.mem_bytes >= least_bytes] for least_bytes in kinds]
    if not all(fitting):
        largest = max(profiles, key=lambda profile: profile.mem_bytes)
        raise LayoutError(
            f"an instance{_size(kinds[0])}; the largest is {largest.name} with "
            f"{largest.mem_bytes / _GIB:.1f} GiB. Ask for less memory, or use more GPUs."
        )
    numbers = [requests.count(least_bytes) for least_bytes in kinds]

    def cost(chosen: tuple[Profile, ...]) -> tuple[int, int]:
        pairs = list(zip(chosen, numbers, strict=True))
        return sum(p.size * n for p, n in pairs), -sum(_sms(p) * n for p, n in pairs)

    slices = max((start + p.size for p in profiles for start in p.starts), default=0)
    for chosen in sorted(_choices(fitting, numbers, slices - len(_slices(taken))), key=cost):
        profile_of = dict(zip(kinds, chosen, strict=True))
        if places := placements([profile_of[least_bytes] for least_bytes in requests], taken):
            return places
    if not requests:
        return ()
    raise LayoutError(_no_room(requests, profiles, taken, used))


def _choices(
    fitting: Sequence[Sequence[Profile]], numbers: Sequence[int], room: int
) -> Iterator[tuple[Profile, ...]]:
    """Yields all choices of a profile for each kind of request whose slices fit into `room`."""
    if not fitting:
        yield ()
        return
    for profile in fitting[0]:
        remaining_room = room - profile.size * numbers[0]
        if remaining_room >= 0:
            for rest in _choices(fitting[1:], numbers[1:], remaining_room):
                yield profile, *rest


def _match(requests: Sequence[int], existing: Sequence[MigInstance]) -> dict[int, MigInstance]:
    """Matches existing instances to indices of `requests`, the largest requests first."""
    free, matched = sorted(existing, key=lambda i: (i.mem_bytes, i.start)), {}
    for n in sorted(range(len(requests)), key=lambda n: -requests[n]):
        match = next((i for i in free if i.mem_bytes >= requests[n]), None)
        if match is not None:
            free.remove(match)
            matched[n] = match
    return matched


def _find_starts(profiles: Sequence[Profile], taken: frozenset[int]) -> list[int] | None:
    """Returns a start for each profile, ascending for equal ones; None if they do not fit."""
    if not profiles:
        return []
    # The highest start first: 3g before 4g keeps place 0 free for profiles that need it.
    for start in reversed(profiles[0].starts):
        cover = covered(start, profiles[0].size)
        if taken.isdisjoint(cover):
            rest = _find_starts(profiles[1:], taken.union(cover))
            if rest is not None:
                return [start, *rest]
    return None


def _no_room(
    requests: Sequence[int],
    profiles: Sequence[Profile],
    taken: Sequence[Interval],
    used: Sequence[MigInstance],
) -> str:
    """Explains why there is no room for new instances, one for each request, beside `used` ones."""
    need = max(requests)
    beside = " beside those that exist" if taken else ""
    if need != min(requests):
        sizes = ", ".join(f"{nbytes / _GIB:.1f}" for nbytes in sorted(requests, reverse=True))
        return (
            f"new MIG instances of {sizes} GiB or more do not fit together{beside}. Ask for less "
            "memory, or use fewer GMIs on this GPU."
        )
    count = 0
    for profile in profiles:
        while profile.mem_bytes >= need and placements([profile] * (count + 1), taken):
            count += 1
    less = ", or ask for less memory" if need else ""
    if used:
        missing, total = len(requests), len(used) + count
        return (
            f"{len(used) + missing} MIG instances{_size(need)}; there {_verb(len(used))} "
            f"{_describe(used)}, {missing} {_verb(missing)} missing, and there is room for "
            f"{count or 'none'}{beside}. Use {total} GMI{'s' * (total > 1)} on this GPU{less}."
        )
    remedy = f"Use {count} GMIs or fewer on this GPU" if count else "Use other GPUs"
    return f"{len(requests)} new MIG instances{_size(need)}; {count} fit{beside}. {remedy}{less}."


def _without_compute_instances(instances: Iterable[MigInstance]) -> list[MigInstance]:
    return [instance for instance in instances if not re.match(r"\d+c\.", instance.profile)]


def covered(start: int, size: int) -> range:
    """Returns the memory slices of an instance."""
    return range(start, start + size)


def _slices(taken: Iterable[Interval]) -> frozenset[int]:
    return frozenset(itertools.chain.from_iterable(covered(*interval) for interval in taken))


def _sms(profile: Profile) -> int:
    """Returns the SMs or, if these are not published, the g of the name, for comparison."""
    return profile.sm_count or int(profile.name.partition("g")[0])


def _sms_reach(instance: MigInstance, least: Profile) -> bool:
    return None in (instance.sm_count, least.sm_count) or (instance.sm_count or 0) >= _sms(least)


def _sorted_by_start(slices: Iterable[MigSlice]) -> tuple[MigSlice, ...]:
    return tuple(sorted(slices, key=lambda slice_: slice_.start))


def _size(mem_bytes: int | None) -> str:
    return f" of {mem_bytes / _GIB:.1f} GiB or more" if mem_bytes else ""


def _verb(count: int) -> str:
    return "is" if count == 1 else "are"


def _describe(instances: Sequence[MigInstance]) -> str:
    names = ", ".join(f"{instance.profile} at {instance.start}" for instance in instances)
    return f"{len(instances)} ({names})" if names else "none"
