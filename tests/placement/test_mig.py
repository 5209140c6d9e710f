"""MIG instances as intervals of memory slices: which fit together, and which GMIs get."""

import dataclasses
import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_mig import maximal_combinations
from gmi_drl.placement import Device, LayoutError, MigInstance, MigSlice, mig
from gmi_drl.placement.mig import (
    commands_for,
    mig_slices,
    pack,
    placements,
    profiles_of,
)

GIB = 1 << 30
PARTS = {
    "A100_40": ("NVIDIA A100-SXM4-40GB", 40, 108),
    "A100_80": ("NVIDIA A100 80GB PCIe", 80, 108),
    "A30": ("NVIDIA A30", 24, 56),
    "H100_80": ("NVIDIA H100 80GB HBM3", 79.6, 132),
    "H100_80_PCIE": ("NVIDIA H100 PCIe", 79.6, 114),
    "H100_94": ("NVIDIA H100 NVL", 93.6, 132),
    "H100_96": ("NVIDIA GH200 480GB", 95.6, 132),
    "H200": ("NVIDIA H200", 140.4, 132),
    "B200": ("NVIDIA B200", 179.1, 148),
}
SEVEN = [part for part in PARTS if part != "A30"]


def device(part, mig=(), mode=True):
    name, gib, sms = PARTS[part]
    return Device(
        0, "gpu", name, (), uuid="GPU-0", sm_count=sms, mem_bytes=int(gib * GIB), mig_mode=mode,
        mig=tuple(mig),
    )  # fmt: skip


def instance(part, name, start):
    its = {profile.name: profile for profile in profiles_of(device(part))}[name]
    return MigInstance(f"MIG-{name}-{start}", name, start, its.size, its.mem_bytes, its.sm_count)


def fits(profiles):
    """The rule itself, by trying all places: instances are disjoint intervals."""
    for starts in itertools.product(*(profile.starts for profile in profiles)):
        covered = [
            n
            for p, start in zip(profiles, starts, strict=True)
            for n in range(start, start + p.size)
        ]
        if len(covered) == len(set(covered)):
            return True
    return False


def plain(part):
    """Without 1g-wide, which shares its compute slice's place with 2g."""
    return [p for p in profiles_of(device(part)) if (p.name[0], p.size) != ("1", 2)]


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_known_by_its_name_and_memory(part):
    assert profiles_of(device(part)) is getattr(mig, part)
    assert profiles_of(device(part, mode=None)) == ()


@pytest.mark.parametrize(
    "name", ["NVIDIA A100X", "Tesla V100", "NVIDIA H20", "NVIDIA L40S", "GB200"]
)
def test_other_parts_are_not_taken_for_one_of_these(name):
    assert profiles_of(dataclasses.replace(device("H200"), name=name)) == ()


@pytest.mark.parametrize("part", PARTS)
def test_a_set_of_profiles_is_valid_iff_places_are_disjoint(part):
    for size in range(1, 6):
        for some in itertools.combinations_with_replacement(profiles_of(device(part)), size):
            assert bool(placements(some)) == fits(some)
    smallest = profiles_of(device(part))[0]
    assert placements([smallest] * len(smallest.starts))
    assert not placements([smallest] * (len(smallest.starts) + 1))


def arrangements(pairs, taken=frozenset()):
    """Every set of disjoint placements, from all there are of all profiles."""
    if not pairs:
        yield (), taken
        return
    (profile, start), rest = pairs[0], pairs[1:]
    yield from arrangements(rest, taken)
    its = frozenset(range(start, start + profile.size))
    if not its & taken:
        for more, covered in arrangements(rest, taken | its):
            yield (profile, *more), covered


@pytest.mark.parametrize(("part", "count"), [*((part, 14) for part in SEVEN), ("A30", 4)])
def test_every_maximal_combination_is_found_and_what_is_part_of_none_is_refused(part, count):
    profiles = plain(part)
    found = maximal_combinations(profiles)
    assert len(found) == count
    if part not in ("A100_80", "A30"):  # the places are the same on all of seven slices
        return
    expected = {
        tuple(sorted(p.name for p in some))
        for some, taken in arrangements([(p, start) for p in profiles for start in p.starts])
        if not any(placements([p], [(n, 1) for n in taken]) for p in profiles)
    }
    assert {tuple(sorted(names)) for names in found} == expected
    full = [Counter(names) for names in found]
    for size in range(1, 9):
        for some in itertools.combinations_with_replacement(profiles, size):
            assert bool(placements(some)) == any(
                Counter(p.name for p in some) <= whole for whole in full
            )


@pytest.mark.parametrize(
    ("part", "count", "gib", "expected"),
    [
        ("H200", 3, 28, ["2g.35gb:0", "2g.35gb:2", "2g.35gb:4"]),
        ("H200", 4, 28, ["1g.35gb:0", "1g.35gb:2", "1g.35gb:4", "1g.35gb:6"]),
        ("B200", 2, 60, ["3g.90gb:0", "3g.90gb:4"]),
        ("A100_80", 1, 30, ["4g.40gb:0"]),
        ("A100_40", 1, 30, ["7g.40gb:0"]),
        ("A30", 2, 10, ["2g.12gb:0", "2g.12gb:2"]),
        ("H100_80", 1, None, ["7g.80gb:0"]),
        ("H100_80", 2, None, ["3g.40gb:0", "3g.40gb:4"]),
        ("H100_94", 3, None, ["2g.24gb:0", "2g.24gb:2", "2g.24gb:4"]),
        ("H100_96", 7, None, [f"1g.12gb:{n}" for n in range(7)]),
        ("A30", 4, None, [f"1g.6gb:{n}" for n in range(4)]),
    ],
)
def test_gmis_get_the_smallest_that_fit_or_the_largest_there_is_room_for(
    part, count, gib, expected
):
    mem = None if gib is None else gib * GIB
    found = mig_slices(device(part), count, mem, allow_create=True)
    assert [f"{its.profile}:{its.start}" for its in found] == expected


def test_what_exists_is_used_first_and_nothing_new_is_planned_without_leave():
    exist = [instance("A100_80", "3g.40gb", 4), instance("A100_80", "1g.10gb", 0)]
    here = device("A100_80", exist)
    assert mig_slices(here, 1) == (MigSlice("3g.40gb", 4),)
    assert mig_slices(here, 1, 5 * GIB) == (MigSlice("1g.10gb", 0),)
    assert mig_slices(here, 2, 15 * GIB, allow_create=True) == (
        MigSlice("2g.20gb", 2),
        MigSlice("3g.40gb", 4),
    )
    with pytest.raises(
        LayoutError, match=r"2 MIG instances of 15\.0 GiB .*has 1 \(3g\.40gb at 4\)"
    ):
        mig_slices(here, 2, 15 * GIB)


def test_an_instance_that_several_share_is_left_alone():
    shared = dataclasses.replace(instance("A100_80", "3g.40gb", 0), profile="1c.3g.40gb")
    here = device("A100_80", [shared])
    assert mig_slices(here, 1, allow_create=True) == (MigSlice("3g.40gb", 4),)


def test_refusals_say_the_commands_that_an_administrator_runs():
    here = device("H200", mode=False)
    with pytest.raises(LayoutError) as refused:
        mig_slices(here, 2, 60 * GIB)
    assert str(refused.value).splitlines() == [
        "GPU 0 (NVIDIA H200): 2 MIG instances of 60.0 GiB or more; it has none, and none are made "
        "without hardware.allow_create. Set hardware.allow_create: true (needs root and an idle "
        "GPU), or have an administrator run:",
        "  sudo nvidia-smi -i GPU-0 -mig 1",
        "  sudo nvidia-smi mig -i GPU-0 -cgi 9:0,9:4 -C",
    ]
    there = instance("H200", "3g.71gb", 4)
    places = [MigSlice("3g.71gb", 0), MigSlice("3g.71gb", 4)]
    assert commands_for(device("H200", [there]), places) == [
        "sudo nvidia-smi mig -i GPU-0 -cgi 9:0 -C"
    ]


@pytest.mark.parametrize(
    ("here", "count", "gib", "reason"),
    [
        (device("H200", mode=None), 1, None, "no MIG. Use backend mps"),
        (device("H200"), 8, None, "8 new MIG instances; 7 fit. Use 7 GMIs or fewer"),
        (device("H200"), 5, 30, "5 new .*30.0 GiB or more; 4 fit. .*or ask for less memory"),
        (device("A30"), 1, 30, "the largest is 4g.24gb with 23.4 GiB. Ask for less"),
        (
            dataclasses.replace(device("H200"), name="NVIDIA Z9"),
            1, None, "it has none, and the profiles of this kind are not known",
        ),
        (
            device("A100_80", [instance("A100_80", "7g.80gb", 0)]),
            2, None, r"2 MIG instances; there is 1 \(7g.80gb at 0\), 1 is missing, and there is "
            r"room for none beside those that exist. Use 1 GMI on this GPU\.$",
        ),
        (
            device("A30", [instance("A30", *i) for i in (("1g.6gb", 0), ("1g.6gb", 1),
                                                         ("2g.12gb", 2))]),
            4, None, r"4 MIG instances; there are 3 \(1g.6gb at 0, .*\), 1 is missing, and there "
            r"is room for none beside those that exist. Use 3 GMIs on this GPU\.$",
        ),
        (
            device("H200", [instance("H200", "3g.71gb", 4)]),
            4, 30, r"there is 1 \(3g.71gb at 4\), 3 are missing, and there is room for 2 beside "
            "those that exist. Use 3 GMIs on this GPU, or ask for less memory",
        ),
        (
            device("A100_80", [dataclasses.replace(instance("A100_80", "7g.80gb", 0),
                                                   profile="1c.7g.80gb")]),
            2, None, r"2 new MIG instances; 0 fit beside those that exist. Use other GPUs\.$",
        ),
    ],
)  # fmt: skip
def test_refusals_have_a_reason_and_a_remedy(here, count, gib, reason):
    with pytest.raises(LayoutError, match=reason):
        mig_slices(here, count, gib and gib * GIB, allow_create=True)


def test_requests_of_several_sizes_share_a_gpu():
    profiles = profiles_of(device("A100_80"))
    sizes = [35 * GIB, 15 * GIB, 15 * GIB]
    assert [its.profile for its in pack(sizes, profiles)] == ["3g.40gb", "2g.20gb", "2g.20gb"]
    with pytest.raises(LayoutError, match=r"35\.0, 35\.0, 15\.0 GiB or more do not fit together"):
        pack([35 * GIB, *sizes[:2]], profiles)
    with pytest.raises(LayoutError, match="the profiles of this kind of GPU are not known"):
        pack(sizes, ())


@given(
    st.sampled_from(sorted(PARTS)),
    st.lists(st.integers(1, 150), min_size=1, max_size=7),
    st.data(),
)
def test_packed_instances_are_disjoint_large_enough_and_refused_only_when_none_fit(
    part, gibs, data
):
    profiles = profiles_of(device(part))
    requests = [gib * GIB for gib in gibs]
    exist = []
    for profile in data.draw(st.lists(st.sampled_from(profiles), max_size=3)):
        free = placements([profile], [(its.start, its.size) for its in exist])
        exist += [instance(part, profile.name, its.start) for its in free or ()]
    by_name = {profile.name: profile for profile in profiles}
    try:
        found = pack(requests, profiles, exist)
    except LayoutError:
        if not exist and len(set(requests)) == 1:
            assert not any(
                p.mem_bytes >= requests[0] and placements([p] * len(gibs)) for p in profiles
            )
        return
    assert len(set(found)) == len(found)
    for its, request in zip(found, requests, strict=True):
        assert by_name[its.profile].mem_bytes >= request
        assert its.start in by_name[its.profile].starts
    new = {its for its in found} - {MigSlice(its.profile, its.start) for its in exist}
    places = [(its.start, by_name[its.profile].size) for its in new]
    places += [(its.start, its.size) for its in exist]
    covered = [n for start, size in places for n in range(start, start + size)]
    assert len(covered) == len(set(covered))
