"""The barrier of a reducer group says who has arrived, at which call, in one page of memory.

The memory has a record of 64-bit words for each rank, written by that rank alone, so that nothing
needs an atomic read-modify-write. Meetings are numbered within a generation of the group:
seq = (g, n), compared as one number. A generation lasts until a rank's process is replaced.

Why meetings are right. Rank r writes tag and value of meeting n, then seq = (g, n). A rank leaves
the meeting when it has seen seq >= (g, n) of all, and then none of a later generation. So whatever
any rank wrote before it arrived is visible to all who leave. A rank reads the tags of n after it
has left n and before it arrives at n + 1; rank r overwrites that bank at n + 2, after it has left
n + 1, after all have arrived at n + 1: two banks are enough, and every rank sees the same tags, so
that all of them or none find a mismatch.

Sleeping: a sleeper writes `sleep`, fences, and only then looks for a rank that is late, on whose
seq it sleeps if the kernel finds it unchanged. Everyone who arrives writes seq, fences, and looks
who is late; if nobody is, it is the last and wakes whoever has `sleep` set. So either the sleeper
saw the last one's seq, or the last one sees `sleep`: each sleeper is woken once a meeting. Should a
wake-up be lost even so, a sleep ends after 20 ms: late, never a hang.

Why a process may die anywhere and be replaced. The newcomer of rank r takes over the record of a
process that is gone, reads the newest generation G in all records, and writes seq = (G + 1, 0).
That is its first write that anybody waits for, and its last one before everybody is in that
generation: tags, values and buckets are touched only after (G + 1, 0) is left.
- Seq of each rank only grows, over all its processes: nothing is passed twice.
- What a dead process had written is either behind its seq, and then whole and still there, since
  the newcomer does not touch it; or it was not announced, and nobody reads it.
- A survivor may be in a meeting that the dead one had reached. It leaves it with the dead one's
  tag, as all the others do, or it sees the newcomer's seq and raises GroupReformed. Where the dead
  one had not arrived nobody can leave: the newcomer never writes that number. So survivors part by
  less than one meeting, and all of them raise GroupReformed at this meeting or the next.
- `reform` announces (G, 0) of the newest G and waits for all, as at any meeting; a still newer one
  makes it start over. Who leaves it knows that every process that lives has arrived there, so that
  nobody uses memory of an older generation any more.
- Two newcomers at once write the same G + 1, or one sees the other's and writes G + 2, which the
  other then follows. A newcomer that dies after its seq leaves a generation that nobody completes,
  or one that is left and not met in again: the next newcomer opens a later one.
A newcomer wakes all sleepers; one that goes to sleep just then finds it 20 ms later.

A record has 1024 bytes; before them is one for the group:

    seq       which meeting this rank has arrived at: its generation (16 bits), its number (48)
    tag[2]    what it does there, of odd and of even meetings
    value[2]  a number it brings along
    sleep     rank + 1 of whose seq it sleeps on, 0 when awake
    left      LEFT or DONE once it will not arrive again; `text` then says why, or what came of it;
              TOLD if all ranks know why from what they found at the meeting they left together
    pid[2]    the process that joined as this rank, and when it began, in the kernel's ticks
    cores     bit set of the cores it may use
    text      length and UTF-8 bytes, read by others only after a mismatch or when it has left

A rank's writer is the process that has joined as it, one at a time: a restarted process takes its
record over only when the one before it is gone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Final, NoReturn

from gmi_drl.comm.errors import (
    CommError,
    GroupClosed,
    GroupFinished,
    GroupReformed,
    PeerLeft,
    ReduceTimeout,
)
from gmi_drl.comm.shm.futex import Fence, Futex
from gmi_drl.comm.shm.liveness import claim
from gmi_drl.runtime.process.progress import waiting

from .tags import REFORM, describe

MAX_SIZE: Final = 4096
RECORD_BYTES: Final = 1024
RECORD: Final = RECORD_BYTES // 8
SEQ, TAG, VALUE, SLEEP, LEAVING, PID, CORES, TEXT = 0, 1, 3, 16, 17, 18, 24, 56
TEXT_BYTES: Final = (RECORD - TEXT - 1) * 8
LEFT, DONE, TOLD = 1, 2, 3  # of LEAVING: gave up, finished, and gave up together with all
GENERATION: Final = 48  # the lowest bit of a seq's generation
_SPINS: Final = 1000  # some 50 us
YIELDS: Final = 3  # each may cost a time slice later on, so that a longer wait is spent asleep
_SLEEP_S: Final = 0.020


def header_bytes(size: int) -> int:
    """Returns the bytes of the header of a group of `size` ranks."""
    return RECORD_BYTES * (1 + size)


def record(rank: int) -> int:
    """Returns where a rank's record begins, in words."""
    return (1 + rank) * RECORD


def _join(words: memoryview, rank: int, member: str) -> bool:
    """Makes this process the writer of a record; returns whether another process was it before.

    Killed at any point in here, the next one to join finds a process that is gone, or a record
    that nobody has claimed.
    """
    base = record(rank)
    previous = words[base + PID]
    if process := claim(words, base + PID):
        raise GroupClosed(
            f"rank {rank} ({member}) of this group was joined already, by process {process}. "
            "Each rank joins once, and again when its process is gone; a new gang needs a new "
            "group."
        )
    words[base + SLEEP] = 0
    cores = [0] * (TEXT - CORES)
    for core in os.sched_getaffinity(0):
        if core < len(cores) * 64:
            cores[core // 64] |= 1 << core % 64
    for index, word in enumerate(cores):
        words[base + CORES + index] = word
    return bool(previous)


def give_up(header: memoryview, rank: int, why: str) -> None:
    """Says in the place of a process that is gone for good that `rank` will not arrive again.

    Who sleeps until it does looks here every 20 ms.
    """
    words, base, raw = header.cast("Q"), record(rank), why.encode()[:TEXT_BYTES]
    if words[base + LEAVING]:
        return  # it has said so itself
    start = (base + TEXT) * 8
    words[base + TEXT] = len(raw)
    header[start + 8 : start + 8 + len(raw)] = raw
    Fence()()
    words[base + LEAVING] = LEFT


def cores_suffice(words: memoryview, size: int) -> bool:
    """Tells whether every rank can have a core to itself, so that spinning takes it from nobody.

    Ranks that are threads of one process have not: Python runs one of them at a time.
    """
    if len({words[record(rank) + PID] for rank in range(size)}) < size:
        return False
    used = 0
    for word in range(CORES, TEXT):
        union = 0
        for rank in range(size):
            union |= words[record(rank) + word]
        used += union.bit_count()
    return used >= size


class Barrier:
    """One rank's end of the meeting point. Not for several threads at once.

    Raises ReduceTimeout, naming everyone who is late, PeerLeft as soon as somebody late is known
    not to come, GroupFinished if that one's work was done, and GroupClosed after this rank has
    left. These end this rank's membership. GroupReformed does not: `reform`, then go on.
    """

    def __init__(
        self, header: memoryview, rank: int, members: Sequence[str], timeout: timedelta
    ) -> None:
        size = len(members)
        self._words = words = header.cast("Q")
        self._text = header
        self.timeout_s = timeout.total_seconds()
        self.members = tuple(members)
        self.rank = rank
        self._base = record(rank)
        self._peers = [record(r) for r in range(size) if r != rank]
        self._futexes = {b: Futex(header, b * 8 + SEQ) for b in map(record, range(size))}
        self._fence = Fence()
        self._spins: int | None = None  # not known before the first meeting
        self._error: CommError | None = None  # why there is no meeting, for now or for good
        self._tag = REFORM
        self._step = 0  # the seq of this rank's last meeting
        self._limit = 1 << GENERATION  # the first seq of the next generation
        if _join(words, rank, members[rank]):
            self._replace()
        self.joined = self.generation

    def meet(self, tag: int, value: int = 0, yields: int = YIELDS) -> bool:
        """Waits until all ranks have arrived here; returns whether all brought the same tag.

        `yields`: how often to offer the core to others before going to sleep.
        """
        if self._error is not None:
            raise self._error
        words, base, fence = self._words, self._base, self._fence
        self._tag = tag
        self._step = step = self._step + 1
        bank = TAG + (step & 1)
        words[base + bank] = tag
        words[base + bank + 2] = value
        fence()
        self._arrive(step, yields)
        if self._spins is None:
            self._spins = _SPINS if cores_suffice(words, len(self.members)) else 0
        is_same, limit = True, self._limit
        for peer in self._peers:
            if words[peer] >= limit:
                self._raise_reformed()
            if words[peer + bank] != tag:
                is_same = False
        return is_same

    def reform(self) -> bool:
        """Waits, after GroupReformed, until all ranks are in the newest generation.

        Returns whether there was one to enter; at once when not. Meetings begin anew after it.
        """
        if self._error is None:
            return False
        while True:
            if self._error is not None and not isinstance(self._error, GroupReformed):
                raise self._error
            self._error, self._tag = None, REFORM
            self._enter(self._newest())
            try:
                self._arrive(self._step, 0)
                if any(self._words[peer] >= self._limit for peer in self._peers):
                    self._raise_reformed()
            except GroupReformed:
                continue
            return True

    def values(self) -> list[int]:
        """Returns what each rank brought to the last meeting, by rank; valid until the next one."""
        bank = VALUE + (self._step & 1)
        return [self._words[record(r) + bank] for r in range(len(self.members))]

    def tags(self) -> list[int]:
        """Returns the tag of every rank at the last meeting, by rank; valid until the next one."""
        bank = TAG + (self._step & 1)
        return [self._words[record(r) + bank] for r in range(len(self.members))]

    def is_disturbed(self) -> bool:
        """Tells whether a rank has left or is of a later generation: meetings will say who."""
        words, limit = self._words, self._limit
        return any(words[peer] >= limit or words[peer + LEAVING] for peer in self._peers)

    def check_none_gave_up(self) -> None:
        """Raises PeerLeft if a rank of the last meeting has given up waiting for others there."""
        for peer in self._peers:
            if self._words[peer + LEAVING] == LEFT:
                self._raise_peer_left(peer)

    def write_text(self, text: str) -> None:
        """Leaves a text that others can read once this rank has arrived at its next meeting."""
        raw = text.encode()[:TEXT_BYTES]
        start = (self._base + TEXT) * 8
        self._words[self._base + TEXT] = len(raw)
        self._text[start + 8 : start + 8 + len(raw)] = raw

    def read_text(self, rank: int) -> str:
        """Returns the text that `rank` has left."""
        start = (record(rank) + TEXT) * 8
        length = min(self._words[start // 8], TEXT_BYTES)
        return bytes(self._text[start + 8 : start + 8 + length]).decode(errors="replace")

    def leave(self, error: CommError, announce: bool = True) -> None:
        """Tells the others that this rank will not arrive again; every later call raises `error`.

        Without `announce`, this rank's text stays what it is: the others know already why.
        """
        self._leave(error, *((LEFT, str(error)) if announce else (TOLD, None)))

    def finish(self, outcome: str) -> None:
        """Leaves with the work done: who still waits for this rank is told the outcome."""
        if len(outcome.encode()) > TEXT_BYTES:
            raise ValueError(
                f"an outcome of {len(outcome.encode())} bytes: it has at most {TEXT_BYTES}. "
                "Write it to a file and leave its name."
            )
        self._leave(GroupClosed("this rank has finished"), DONE, outcome)

    def _leave(self, error: CommError, how: int, text: str | None) -> None:
        if self._error is not None and not isinstance(self._error, GroupReformed):
            return
        self._error = error
        if text is not None:
            self.write_text(text)
        self._fence()
        self._words[self._base + LEAVING] = how
        self._fence()
        self._wake_sleepers()

    def _arrive(self, step: int, yields: int) -> None:
        """Announces this rank's arrival and returns when all are there, or beyond."""
        words, fence = self._words, self._fence
        words[self._base] = step
        fence()
        for peer in self._peers:
            if words[peer] < step:
                self._await(step, yields)
                break
        else:
            self._wake_sleepers()  # we are the last
        fence()

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
            with waiting:
                self._sleep(late, step)
        except BaseException as error:  # also KeyboardInterrupt: this meeting cannot be repeated
            if self._error is None:
                self.leave(GroupClosed(f"the wait was given up: {type(error).__name__} {error}"))
            raise
        finally:
            words[self._base + SLEEP] = 0

    def _sleep(self, late: list[int], step: int) -> None:
        words, sleep, limit = self._words, self._base + SLEEP, self._limit
        deadline_s = time.monotonic() + self.timeout_s
        while True:
            words[sleep] = late[0] // RECORD  # its rank + 1
            self._fence()
            late = [peer for peer in late if words[peer] < step]
            if not late:
                return
            if words[sleep] != late[0] // RECORD:
                continue
            if any(words[peer] >= limit for peer in self._peers):
                self._raise_reformed()
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                self._raise_timeout(step)
            for peer in late:
                if words[peer + LEAVING]:
                    self._fence()
                    if words[peer] < step:  # it wrote seq before it left
                        self._raise_peer_left(peer)
            seq = words[late[0]]
            if seq < step:
                self._futexes[late[0]].wait(seq, min(_SLEEP_S, left_s))

    def _wake_sleepers(self) -> None:
        words = self._words
        for rank in {words[peer + SLEEP] for peer in self._peers} - {0}:
            self._futexes[rank * RECORD].wake()

    def _raise_timeout(self, step: int) -> NoReturn:
        late = [peer // RECORD - 1 for peer in self._peers if self._words[peer] < step]
        late_members = [(rank, self.members[rank]) for rank in late]
        error = ReduceTimeout(describe(self._tag), self.timeout_s, late_members)
        self.leave(error)
        raise error

    def _raise_peer_left(self, peer: int) -> NoReturn:
        rank = peer // RECORD - 1
        text = self.read_text(rank)
        if self._words[peer + LEAVING] == DONE:
            finished = self._error = GroupFinished(rank, self.members[rank], text)
            raise finished  # not announced: others find the same outcome themselves
        error = PeerLeft(describe(self._tag), rank, self.members[rank], text)
        self.leave(error)
        raise error

    # Generations ---------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """Returns how often processes of this group were replaced, as far as this rank has seen."""
        return self._step >> GENERATION

    def _enter(self, generation: int) -> None:
        self._step = generation << GENERATION
        self._limit = (generation + 1) << GENERATION

    def _newest(self) -> int:
        newest: int = max(self._words[record(r)] for r in range(len(self.members)))
        return newest >> GENERATION

    def _raise_reformed(self) -> NoReturn:
        self._error = GroupReformed(describe(self._tag), self._newest())
        raise self._error

    def renew(self) -> None:
        """Opens the next generation though no process was replaced, between two meetings.

        It writes what a process would that replaces this one now, and so is as right as that.
        """
        self._open_generation()
        self._error = GroupReformed(describe(self._tag), self.generation)

    def _open_generation(self) -> None:
        self._enter(self._newest() + 1)
        self._fence()
        self._words[self._base] = self._step
        self._fence()
        self._wake_sleepers()

    def _replace(self) -> None:
        """Opens the next generation, as the successor of a process that is gone."""
        text, leaving = self.read_text(self.rank), self._words[self._base + LEAVING]
        if leaving == DONE:
            self._error = GroupFinished(self.rank, self.members[self.rank], text)
        elif leaving:
            raise GroupClosed(
                f"rank {self.rank} ({self.members[self.rank]}) had left the group before its "
                f"process ended: {text}"
            )
        else:
            self._open_generation()
            self._error = GroupReformed("join", self.generation)
