"""Which free memory is given back, decided in memory alone."""

from gmi_drl.runtime.store import trimmer
from gmi_drl.runtime.store.trimmer import MemoryTrimmer

MIB = 1 << 20
KEPT = trimmer._KEPT


def looks(state, holes, used_bytes, number):
    """What `number` looks give back, each in turn."""
    return [state.trim(holes, used_bytes) for _ in range(number)]


def given(found):
    return sum(nbytes for look in found for _, nbytes in look)


def test_what_was_never_written_is_not_given_back():
    state = MemoryTrimmer(4096 * MIB)
    assert not state.is_pending(0)
    assert given(looks(state, [(0, 4096 * MIB)], 0, 50)) == 0


def test_free_memory_goes_after_a_while_but_for_a_part_at_the_lowest_addresses():
    state = MemoryTrimmer(4096 * MIB)
    state.mark_used(0, KEPT + 100 * MIB)
    holes = [(0, 4096 * MIB)]
    assert state.is_pending(0)
    assert not state.is_pending(KEPT)
    assert given(looks(state, holes, 0, trimmer._COLD - 1)) == 0
    found = looks(state, holes, 0, 10)
    assert given(found) == 100 * MIB
    assert all(offset >= KEPT for look in found for offset, _ in look)
    assert max(given([look]) for look in found) <= trimmer._AT_ONCE
    assert not state.is_pending(0)


def test_memory_that_is_used_again_meanwhile_stays():
    state = MemoryTrimmer(4096 * MIB)
    holes, size = [(0, 4096 * MIB)], KEPT + 10 * MIB
    state.mark_used(0, size)
    for _ in range(5):
        assert given(looks(state, holes, 0, trimmer._COLD - 1)) == 0
        state.mark_used(0, size)
        assert state.is_pending(0)


def test_chunks_with_something_in_them_stay_and_are_not_looked_at_for_ever():
    state = MemoryTrimmer(4096 * MIB)
    state.mark_used(0, 2 * KEPT)
    holes = [(chunk * 2 * MIB + 64, (chunk + 1) * 2 * MIB) for chunk in range(KEPT // MIB)]
    assert state.is_pending(1 * MIB)
    assert given(looks(state, holes, 1 * MIB, 50)) == 0
    assert not state.is_pending(1 * MIB)
    assert state.is_pending(2 * MIB)  # something was freed, or written, since
