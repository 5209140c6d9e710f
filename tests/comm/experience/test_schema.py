"""Channels, groupings and schemas: what is refused, and why; the way over a link."""

import sys

import pytest

import bodies_experience as bodies
from gmi_drl.comm.errors import SchemaError
from gmi_drl.comm.experience import Channel, Grouping, Schema, Stream, joined, mcc, ucc
from gmi_drl.comm.experience.schema import check_same

OBSERVATION = Channel("observation", (4,), "float32")
REWARD = Channel("reward", (), "float32")


@pytest.mark.parametrize("grouping", bodies.GROUPINGS)
def test_a_schema_is_the_same_at_the_other_end(grouping):
    plan = bodies.schema(grouping, capacity=7, lz4={"image"})
    assert Schema.from_bytes(plan.to_bytes()) == plan
    assert Schema.from_bytes(plan.to_bytes()).streams() == plan.streams()


def test_a_schema_of_another_version_is_refused_by_its_sender_s_name():
    raw = bodies.schema().to_bytes().replace(b'"format":1', b'"format":2')
    with pytest.raises(SchemaError, match=r"gmi 3, GPU 1 describes .* format 2, known here is 1"):
        Schema.from_bytes(raw, "gmi 3, GPU 1")
    with pytest.raises(SchemaError, match="the other end describes"):
        Schema.from_bytes(b"[]")


def test_the_papers_groupings():
    channels = [OBSERVATION, REWARD]
    names = ("observation", "reward")
    assert ucc(channels, 8).streams == (Stream(names, 1),)
    assert mcc(channels, 8).streams == (Stream(names[:1], 8), Stream(names[1:], 8))
    assert joined(channels, 8).streams == (Stream(names, 8),)


def test_blocks_lie_in_cache_lines_of_their_own_and_the_last_packet_has_the_segment_s():
    usual, last = bodies.schema("ucc").layouts[0]
    assert [block.name for block in usual.blocks] == ["observation", "image", "reward"]
    assert [block.offset for block in last.blocks] == [0, 64, 128, 192]
    assert last.blocks[3].shape == (3, 5)
    assert (usual.nbytes, last.nbytes) == (128 + 12, 192 + 60)


def schema_of(channels, steps):
    return Schema(tuple(channels), mcc(channels, steps), steps, 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Channel("x", (2,), "complex64"), "dtype 'complex64' is none of"),
        (lambda: Channel("x", (0,), "float32"), "every width is at least 1"),
        (lambda: Channel("", (), "float32"), "without a name"),
        (lambda: schema_of([REWARD, REWARD], 4), "channels reward: each name stands for one"),
        (lambda: schema_of([REWARD], 0), "0 steps"),
        (lambda: schema_of([Channel("last", (), "float32", True)], 4), "a tensor each step"),
        (
            lambda: Schema((REWARD,), Grouping("g", (Stream(("reward",), 3),)), 4, 1),
            "3 steps a packet of reward; the 4 steps",
        ),
        (
            lambda: Schema((REWARD, OBSERVATION), mcc([REWARD], 4), 4, 1),
            "has channels reward, the schema has observation, reward",
        ),
        (lambda: Schema((REWARD,), mcc([REWARD], 4), 4, 0), "num_env 0"),
        (lambda: Schema((REWARD,), mcc([REWARD], 4), 4, 1, capacity=1), "room for 2 segments"),
        (
            lambda: Schema((REWARD,), mcc([REWARD], 4), 4, 1, lz4={"reward"}),
            "lz4 channel 'reward' is float32; only uint8",
        ),
        (
            lambda: Schema((REWARD,), mcc([REWARD], 4), 4, 1, lz4={"image"}),
            "lz4 channel 'image': there are reward",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_rule(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_lz4_asks_for_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "lz4", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install -e '\.\[lz4\]'"):
        bodies.schema(lz4={"image"})


def test_agents_of_one_batcher_must_send_the_same_and_both_are_named():
    grouping = mcc([REWARD], 4)
    mine = Schema((REWARD,), grouping, 4, 1)
    other = Channel("reward", (2,), "float32")
    for its, message in (
        (Schema((other,), mcc([other], 4), 4, 1), r"float32 \[\] a step from gmi 0 and .* gmi 1"),
        (Schema((REWARD,), mcc([REWARD], 8), 8, 1), "gmi 0 sends segments of 4 steps, gmi 1 of 8"),
        (
            Schema((REWARD, OBSERVATION), mcc([REWARD, OBSERVATION], 4), 4, 1),
            "channel 'observation' is missing from gmi 0 and float32",
        ),
    ):
        with pytest.raises(SchemaError, match=message):
            check_same([("gmi 0", mine), ("gmi 1", its)])
    # The number of environments and the grouping may differ.
    check_same([("gmi 0", mine), ("gmi 1", Schema((REWARD,), ucc([REWARD], 4), 4, 5))])
