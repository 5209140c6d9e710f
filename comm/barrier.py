"""The meeting point of a reducer group: who has arrived, at which call, in one page of memory.

Layout of the header (64-bit words; one record of 1024 bytes a rank, after one for the group):

    seq       how many meetings this rank has arrived at
    tag[2]    what it does there, of odd and of even meetings
    value[2]  a number it brings along
    sleep     rank + 1 of whose seq it sleeps on, 0 when awake
    left      1 once it will not arrive again; `text` then says why
    pid       of the process that joined as this rank
    cores     bit set of the cores it may use
    text      length and UTF-8 bytes, read by others only after a mismatch or when it has left

Every word has one writer, its rank, so that nothing needs an atomic read-modify-write.

Why it is right. Rank r writes tag and value of meeting n, then seq = n. A rank leaves meeting n
when it has seen seq >= n of all. So whatever any rank wrote before it arrived at n is visible to
all who leave n. A rank reads the tags of n after it has left n and before it arrives at n + 1; rank
r overwrites that bank at n + 2, after it has left n + 1, after all have arrived at n + 1: two banks
are enough, and every rank sees the same tags, so that all of them or none find a mismatch.
Sleeping: a sleeper writes `sleep`, fences, and only then looks for a rank that is late, on whose
seq it sleeps if the kernel finds it unchanged. Everyone who arrives writes seq, fences, and looks
who is late; if nobody is, it is the last and wakes whoever has `sleep` set. So either the sleeper
saw the last one's seq, or the last one sees `sleep`: each sleeper is woken once a meeting. Should a
wake-up be lost even so, a sleep ends after 20 ms: late, never a hang.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Final, NoReturn

from .errors import CommError, GroupClosed, PeerLeft, ReduceTimeout
from .futex import Fence, Futex

MAGIC: Final = 0x31474D4944524C31  # "1GMIDRL1"
MAX_SIZE: Final = 4096
_RECORD_BYTES: Final = 1024
_RECORD: Final = _RECORD_BYTES // 8
_SEQ, _TAG, _VALUE, _SLEEP, _LEFT, _PID, _CORES, _TEXT = 0, 1, 3, 16, 17, 18, 24, 56
_TEXT_BYTES: Final = (_RECORD - _TEXT - 1) * 8
_SPINS: Final = 1000  # some 50 us
YIELDS: Final = 3  # each may cost a time slice later on, so that a longer wait is spent asleep
_SLEEP_S: Final = 0.020


def header_bytes(size: int) -> int:
    """Bytes of the header of a group of `size` ranks."""
    return _RECORD_BYTES * (1 + size)


def write_header(header: memoryview, size: int) -> None:
    """Marks fresh zeros as the header of a group of `size` ranks."""
    words = header.cast("Q")
    words[0], words[1] = MAGIC, size


class Barrier:
    """One rank's end of the meeting point. Not for several threads at once.

    Raises ReduceTimeout, naming everyone who is late, PeerLeft as soon as somebody late is known
    not to come, and GroupClosed after this rank has left. Any error ends this rank's membership.
    """

    def __init__(
        self, header: memoryview, rank: int, members: Sequence[str], timeout: timedelta
    ) -> None:
        size = len(members)
        self._words = header.cast("Q")
        self._text = header
        if self._words[0] != MAGIC or self._words[1] != size:
            raise GroupClosed(
                f"the shared memory is not that of a group of {size} (magic {self._words[0]:#x}, "
                f"size {self._words[1]}). Pass the GroupSpec on as it is."
            )
        self.timeout_s = timeout.total_seconds()
        self.members = tuple(members)
        self.rank = rank
        self._base = self._record(rank)
        self._peers = [self._record(r) for r in range(size) if r != rank]
        self._futexes = {b: Futex(header, b * 8 + _SEQ) for b in map(self._record, range(size))}
        self._fence = Fence()
        self._step = 0
        self._spins: int | None = None  # not known before the first meeting
        self._ended: CommError | None = None
        self._claim()

    def meet(self, tag: int, value: int = 0, yields: int = YIELDS) -> bool:
        """Waits until all ranks have arrived here; whether all of them brought the same tag.

        `yields`: how often to offer the core to others before going to sleep.
        """
        if self._ended is not None:
            raise self._ended
        words, base, fence = self._words, self._base, self._fence
        self._step = step = self._step + 1
        bank = _TAG + (step & 1)
        words[base + bank] = tag
        words[base + bank + 2] = value
        fence()
        words[base] = step
        fence()
        for peer in self._peers:
            if words[peer] < step:
                self._await(step, yields)
                break
        else:
            self._wake_sleepers()  # we are the last
        fence()
        if self._spins is None:
            self._spins = _SPINS if self._cores_suffice() else 0
        same = True
        for peer in self._peers:
            if words[peer + bank] != tag:
                same = False
        return same

    def values(self) -> list[int]:
        """What every rank brought to the last meeting, by rank; valid until the next one."""
        bank = _VALUE + (self._step & 1)
        return [self._words[self._record(r) + bank] for r in range(len(self.members))]

    def tags(self) -> list[int]:
        """The tag of every rank at the last meeting, by rank; valid until the next one."""
        bank = _TAG + (self._step & 1)
        return [self._words[self._record(r) + bank] for r in range(len(self.members))]

    def write_text(self, text: str) -> None:
        """Leaves a text that others can read once this rank has arrived at its next meeting."""
        raw = text.encode()[:_TEXT_BYTES]
        start = (self._base + _TEXT) * 8
        self._words[self._base + _TEXT] = len(raw)
        self._text[start + 8 : start + 8 + len(raw)] = raw

    def read_text(self, rank: int) -> str:
        """The text that `rank` has left."""
        start = (self._record(rank) + _TEXT) * 8
        length = min(self._words[start // 8], _TEXT_BYTES)
        return bytes(self._text[start + 8 : start + 8 + length]).decode(errors="replace")

    def leave(self, error: CommError, announce: bool = True) -> None:
        """Tells the others that this rank will not arrive again; every later call raises `error`.

        Without `announce`, this rank's text stays what it is: the others know already why.
        """
        if self._ended is not None:
            return
        self._ended = error
        if announce:
            self.write_text(str(error))
        self._fence()
        self._words[self._base + _LEFT] = 1
        self._fence()
        self._wake_sleepers()

    def _await(self, step: int, yields: int) -> None:
        """Waits for all: spinning if nobody needs this core, then yielding, then asleep."""
        words, late = self._words, self._peers
        for _ in range(self._spins or 0):
            if words[late[0]] >= step:
                late = [peer for peer in late if words[peer] < step]
                if not late:
                    return
        for _ in range(yields):
            late = [peer for peer in late if words[peer] < step]
            if not late:
                return
            os.sched_yield()
        try:
            self._sleep(late, step)
        except BaseException as error:  # also KeyboardInterrupt: this meeting cannot be repeated
            if self._ended is None:
                self.leave(GroupClosed(f"the wait was given up: {type(error).__name__} {error}"))
            raise
        finally:
            words[self._base + _SLEEP] = 0

    def _sleep(self, late: list[int], step: int) -> None:
        words, sleep = self._words, self._base + _SLEEP
        deadline_s = time.monotonic() + self.timeout_s
        while True:
            words[sleep] = late[0] // _RECORD  # its rank + 1
            self._fence()
            late = [peer for peer in late if words[peer] < step]
            if not late:
                return
            if words[sleep] != late[0] // _RECORD:
                continue
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                self._time_out(step)
            for peer in late:
                if words[peer + _LEFT]:
                    self._fence()
                    if words[peer] < step:  # it wrote seq before it left
                        self._peer_left(peer)
            seen = words[late[0]]
            if seen < step:
                self._futexes[late[0]].wait(seen, min(_SLEEP_S, left_s))

    def _wake_sleepers(self) -> None:
        words = self._words
        for rank in {words[peer + _SLEEP] for peer in self._peers} - {0}:
            self._futexes[rank * _RECORD].wake()

    def _time_out(self, step: int) -> NoReturn:
        late = [peer // _RECORD - 1 for peer in self._peers if self._words[peer] < step]
        what = describe(self._words[self._base + _TAG + (step & 1)])
        error = ReduceTimeout(what, self.timeout_s, [(rank, self.members[rank]) for rank in late])
        self.leave(error)
        raise error

    def _peer_left(self, peer: int) -> NoReturn:
        rank = peer // _RECORD - 1
        what = describe(self._words[self._base + _TAG + (self._step & 1)])
        error = PeerLeft(what, rank, self.members[rank], self.read_text(rank))
        self.leave(error)
        raise error

    @staticmethod
    def _record(rank: int) -> int:
        return (1 + rank) * _RECORD

    def _claim(self) -> None:
        pid, words = os.getpid(), self._words
        before = words[self._base + _PID]
        if before:
            raise GroupClosed(
                f"rank {self.rank} ({self.members[self.rank]}) of this group was joined already, "
                f"by process {before}. Each rank joins once; a new gang needs a new group."
            )
        words[self._base + _PID] = pid
        for core in os.sched_getaffinity(0):
            if core < (_TEXT - _CORES) * 64:
                words[self._base + _CORES + core // 64] |= 1 << core % 64

    def _cores_suffice(self) -> bool:
        """Whether every rank can have a core to itself, so that spinning takes it from nobody."""
        used = 0
        for word in range(_CORES, _TEXT):
            union = 0
            for rank in range(len(self.members)):
                union |= self._words[self._record(rank) + word]
            used += union.bit_count()
        return used >= len(self.members)


# A tag says what a rank does: 3 bits of call, 1 of phase, 12 of source, 16 of bucket, 32 of count.

PHASE_2: Final = 1 << 3
_CALLS: Final = ("barrier", "bucket", "reduce", "reduce", "gather", "broadcast", "exchange")
BARRIER, CREATE, SUM, MEAN, GATHER, BROADCAST, EXCHANGE = range(7)


def make_tag(call: int, bucket: int = 0, count: int = 0, source: int = 0) -> int:
    """The tag of one call: `count` numbers the calls on the bucket, or is a checksum."""
    return call | source << 4 | bucket << 16 | (count & 0xFFFFFFFF) << 32


def describe(tag: int, buckets: Sequence[str] | None = None) -> str:
    """A tag in words: `reduce`, or with the names of `buckets` everything that is in it."""
    call = tag & 7
    if buckets is None or call >= len(_CALLS):
        return _CALLS[call] if call < len(_CALLS) else f"call {call}"
    source, bucket, count = tag >> 4 & 0xFFF, tag >> 16 & 0xFFFF, tag >> 32
    text = {SUM: "reduce (sum)", MEAN: "reduce (mean)"}.get(call, _CALLS[call])
    if call == BROADCAST:
        text += f" (from rank {source})"
    if call in (SUM, MEAN, GATHER, BROADCAST):
        name = buckets[bucket] if bucket < len(buckets) else f"number {bucket}"
        return f"{text} of bucket {name}, call {count}"
    return f"{text}, call {count}"
