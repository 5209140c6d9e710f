"""What agents, trainers, and the ends of a policy board do in tests, in their processes."""

import time
from datetime import timedelta

import torch

from gmi_drl.comm.experience import (
    Batcher,
    Channel,
    Compressor,
    Dispatcher,
    Migrator,
    Route,
    Schema,
    joined,
    mcc,
    ucc,
)

LONG = timedelta(seconds=30)
STEPS, ENVS = 4, 3
CHANNELS = (
    Channel("observation", (5,), "float32"),
    Channel("image", (2, 2), "uint8"),
    Channel("reward", (), "float32"),
    Channel("last", (ENVS, 5), "float32", per_segment=True),
)
GROUPINGS = {"ucc": ucc, "mcc": mcc, "joined": joined}


def schema(grouping="mcc", **options):
    return Schema(CHANNELS, GROUPINGS[grouping](CHANNELS, STEPS), STEPS, ENVS, **options)


def step_of(number, t):
    """What segment `number` has at step t, in every channel."""
    return {
        "observation": torch.full((ENVS, 5), float(number * 16 + t)),
        "image": torch.full((ENVS, 2, 2), (number + t) % 256, dtype=torch.uint8),
        "reward": torch.full((ENVS,), float(-number)),
    }


def last_of(number):
    return {"last": torch.full((ENVS, 5), number + 0.5)}


def send(dispatcher, number, version=0):
    """Sends a whole segment."""
    dispatcher.begin(version)
    for t in range(STEPS):
        dispatcher.put(t, step_of(number, t))
    return dispatcher.end(last_of(number))


def numbers_in(batch):
    """Which segments a batch is made of, after a look at each number in it."""
    found = []
    for place in range(len(batch.segments)):
        mine = slice(place * ENVS, (place + 1) * ENVS)
        number = int(-batch.columns["reward"][0, place * ENVS])
        for t in range(STEPS):
            for name, expected in step_of(number, t).items():
                assert torch.equal(batch.columns[name][t, mine], expected), (name, number, t)
        assert torch.equal(batch.per_segment["last"][place], last_of(number)["last"])
        found.append(number)
    return found


def dispatcher_on(sender, plan, name="gmi 9, GPU 1", **options):
    return Dispatcher(plan, Compressor(plan, Migrator([Route(sender, 9, name=name)], **options)))


# Killed at any time -------------------------------------------------------------------------

STOP, BEGUN, ENDED = 0, 1, 8  # words of a ledger: BEGUN + agent; ENDED + number of the segment


def agent(link, grouping, ledger, which):
    """Sends segments, numbered on over its processes, until told to stop."""
    words = ledger.map().cast("Q")
    plan = schema(grouping, capacity=2)
    with link.sender(plan.to_bytes(), plan.streams(), LONG) as sender:
        dispatcher = dispatcher_on(sender, plan)
        while not words[STOP]:
            words[BEGUN + which] += 1
            number = words[BEGUN + which]
            send(dispatcher, number)
            words[ENDED + which * 100_000 + number] = 1


def trainer(links, state):
    """Trains until all agents have closed. Its state: numbers trained on, and its marks.

    Two banks and a word that says which one holds: a snapshot is taken at once or not at all.
    """
    words = state.map().cast("q")
    half = (len(words) - 8) // 2
    batcher = Batcher({which: link.receiver() for which, link in enumerate(links)}, 2, None, LONG)
    kept, marks = _restored(words, half, len(links))
    batcher.resume(marks)
    while (batch := batcher.next(0)) is not None:
        for segment, number in zip(batch.segments, numbers_in(batch), strict=True):
            kept.append(segment.gmi_id * 100_000 + number)
        _snapshot(words, half, kept, batcher.trained(batch))
        batcher.done(batch)
    counts = [batcher.counts(which) for which in range(len(links))]
    for which, count in enumerate(counts):
        words[1 + which] = count.under_way
    _snapshot(words, half, kept, batcher.trained())


def _restored(words, half, links):
    start = 8 + words[0] * half
    kept = [words[start + 1 + i] for i in range(words[start])]
    at = start + half - 6 * links
    marks = {w: tuple(words[at + 6 * w : at + 6 * w + 6]) for w in range(links)}
    return kept, marks if words[start] else {}


def _snapshot(words, half, kept, marks):
    bank = 1 - words[0]
    start = 8 + bank * half
    words[start] = len(kept)
    for i, number in enumerate(kept):
        words[start + 1 + i] = number
    at = start + half - 6 * len(marks)
    for which, mark in marks.items():
        for i, value in enumerate(mark):
            words[at + 6 * which + i] = value
    words[0] = bank


# The policy board ---------------------------------------------------------------------------


def publish(board, numel, ledger):
    """Publishes vectors filled with their version, from where the board is, until told to stop."""
    words = ledger.map().cast("Q")
    writer = board.writer()
    vector = torch.empty(numel)
    while not words[STOP]:
        version = writer.version() + 1
        writer.publish(version, vector.fill_(version))
    writer.finish()


def read(board, numel, ledger, which):
    """Reads until the board is finished; how often is in the ledger."""
    words = ledger.map().cast("Q")
    reader, out = board.reader(), torch.empty(numel)
    before = reader.wait(-1, LONG)
    reads = 0
    while True:
        finished = reader.finished()
        version = reader.read(out)
        assert version >= before, f"version {version} after {before}"
        assert bool((out == version).all()), f"torn: {out.unique()[:4]} in version {version}"
        before = version
        reads += 1
        words[BEGUN + which] = reads
        if finished:
            return


def publish_late(board, delay_s):
    time.sleep(delay_s)  # the readers are to wait: that is what is tested
    board.writer().publish(0, torch.zeros(3))
