"""Who holds which object, against a model that counts the slow way."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gmi_drl.runtime.driver.reference_counts import ReferenceCounter

KEYS = [bytes([number]) for number in range(6)]
PEOPLE = [("process", 1), ("process", 2), ("task", "a"), frozenset({1, 2})]


class Naive:
    """All pairs; what nobody holds is found by looking at everything again and again."""

    def __init__(self):
        self.pairs = []

    def hold(self, key, holder):
        if (key, holder) not in self.pairs:
            self.pairs.append((key, holder))

    def let_go(self, gone):
        free = set()
        while gone:
            self.pairs = [pair for pair in self.pairs if pair not in gone]
            now = {key for key, _ in gone} - {key for key, _ in self.pairs}
            free |= now
            gone = [(key, holder) for key, holder in self.pairs if holder in now]
        return free


steps = st.lists(
    st.one_of(
        st.tuples(st.just("hold"), st.sampled_from(range(6)), st.sampled_from(PEOPLE)),
        # An object holds older ones only.
        st.tuples(st.just("hold"), st.integers(0, 5), st.integers(0, 5)).filter(
            lambda step: step[1] < step[2]
        ),
        st.tuples(st.just("release"), st.integers(0, 5), st.sampled_from([*PEOPLE, *range(6)])),
        st.tuples(st.just("gone"), st.none(), st.sampled_from(PEOPLE)),
    ),
    max_size=40,
)


def holders_of(references, key):
    return [holder for holder in references._keys if key in references.keys(holder)]


@given(steps)
def test_any_order_of_holding_and_releasing_frees_what_nobody_holds(steps):
    references, naive = ReferenceCounter(), Naive()
    for step, number, who in steps:
        key = None if number is None else KEYS[number]
        holder = KEYS[who] if isinstance(who, int) else who
        if step == "hold":
            references.hold(key, holder)
            naive.hold(key, holder)
        else:
            free = references.release(key, holder) if key else references.holder_gone(holder)
            wanted = [pair for pair in naive.pairs if pair[1] == holder and key in (None, pair[0])]
            assert len(free) == len(set(free))
            assert set(free) == naive.let_go(wanted)
        for each in KEYS:
            holders = holders_of(references, each)
            assert sorted(map(repr, holders)) == sorted(
                repr(other) for held, other in naive.pairs if held == each
            )
            assert references.held(each) == bool(holders)


def test_a_holder_counts_once_however_often_it_holds():
    references = ReferenceCounter()
    for _ in range(3):
        references.hold(b"a", "x")
    assert references.release(b"a", "x") == [b"a"]
    assert references.release(b"a", "x") == []


def test_a_container_frees_what_it_alone_held():
    references = ReferenceCounter()
    references.hold(b"list", "driver")
    references.hold(b"first", b"list")
    references.hold(b"second", b"list")
    references.hold(b"second", "driver")
    assert references.release(b"list", "driver") == [b"list", b"first"]
    assert holders_of(references, b"second") == ["driver"]


def test_a_chain_of_a_hundred_thousand_containers_is_freed_at_once():
    references = ReferenceCounter()
    keys = [number.to_bytes(4, "big") for number in range(100_000)]
    for outer, inner in itertools.pairwise(keys):
        references.hold(inner, outer)
    references.hold(keys[0], "driver")
    assert references.holder_gone("driver") == keys
    assert vars(references) == vars(ReferenceCounter())
