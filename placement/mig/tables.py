"""Lists the MIG profiles of NVIDIA's parts: sizes, places, SMs and memory, by nvidia-smi.

Names, fractions and places are those of NVIDIA's MIG user guide ("Supported MIG Profiles"); SMs and
memory are what `nvidia-smi mig -lgip` prints on such a GPU. Drivers differ in the last quarter of a
GiB, and the least seen is here. Where no listing was seen, memory is nine tenths of the share of
the part's memory, and SMs are None. Profiles with media engines ("+me") have the same places and
sizes as the plain ones and are left out: nothing here decodes video.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gmi_drl.placement.topology import Device

_GIB: Final = 1 << 30


@dataclass(frozen=True)
class Profile:
    """A kind of GPU instance: how much of the GPU it is, and where it may lie."""

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
    split = names.split()
    places = _PLACES_OF_7 if len(split) == len(_PLACES_OF_7) else _PLACES_OF_4
    return tuple(
        Profile(name, profile_id, size, starts, int(mem_gib * _GIB), sm_count)
        for name, mem_gib, sm_count, (profile_id, size, starts) in zip(
            split, gib, sms, places, strict=True
        )
    )


_SMS_A100: Final = (14, 14, 28, 42, 56, 98)
_SMS_H100: Final = (16, 26, 32, 60, 64, 132)
_NAMES_80: Final = "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"

A30: Final = _profiles("1g.6gb 2g.12gb 4g.24gb", (5.81, 11.69, 23.44), (14, 28, 56))
A100_40: Final = _profiles(
    "1g.5gb 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb",
    (4.75, 9.62, 9.62, 19.62, 19.62, 39.38),
    _SMS_A100,
)
A100_80: Final = _profiles(_NAMES_80, (9.5, 19.5, 19.5, 39.25, 39.25, 78.75), _SMS_A100)
H100_80: Final = _profiles(_NAMES_80, (9.75, 19.62, 19.62, 39.5, 39.5, 79.25), _SMS_H100)
H100_80_PCIE: Final = _profiles(
    _NAMES_80, (9.75, 19.62, 19.62, 39.5, 39.5, 79.25), (14, 14, 30, 46, 62, 114)
)
H100_94: Final = _profiles(
    "1g.12gb 1g.24gb 2g.24gb 3g.47gb 4g.47gb 7g.94gb",
    (10.57, 21.5, 21.5, 46.12, 46.12, 92.62),
    _SMS_H100,
)
H100_96: Final = _profiles(
    "1g.12gb 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb",
    (10.8, 21.6, 23.0, 46.5, 46.5, 93.0),
    _SMS_H100,
)
H200: Final = _profiles(
    "1g.18gb 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb",
    (16.0, 32.5, 32.5, 63.1, 63.1, 140.0),
    _SMS_H100,
)
B200: Final = _profiles(
    "1g.23gb 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb",
    (20.1, 40.2, 40.2, 80.5, 80.5, 161.1),
    (None,) * 6,
)

# A word of the device's name, its least memory in GiB, its SMs (None: any), and its profiles. The
# first that fits is it.
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
