"""The errors between GMIs are exceptions that survive the way between processes.

RuntimeError
  CommError
    ReduceTimeout     (also TimeoutError) a rank did not arrive at a collective call in time
    GroupMismatch     the ranks of a group did not make the same call
    RingBroken        numbers could not be moved between ranks that all are there
    PeerLeft          a rank will not arrive: it has given up or closed its group
    GroupReformed     a rank's process was replaced: `reform` the group, then go on
    GroupFinished     a rank will not arrive: its work is done
    GroupClosed       this rank has left its group itself
    ParametersDiffer  the ranks hold different parameters
    MailboxError      a mailbox cannot be opened
      MailboxTimeout  (also TimeoutError) a message was not received, or none came, in time
      MailboxClosed   this mailbox has been closed
      PeerClosed      the other GMI has closed its mailbox
      PeerRestarted   the other GMI was restarted, and messages between the two are lost
      MessageError    a message cannot be pickled, or not be rebuilt
    LinkError         a link of experience cannot be opened, or does not work
      LinkTimeout     (also TimeoutError) the other end did not come, or took nothing, in time
      LinkClosed      this end has been closed
      LinkEnded       the other end has closed: nothing more comes, or nothing gets there
      SchemaDiffers   a replaced sender does not send what the one before it did
      CorruptPacket   a packet is damaged or a stranger's; it was refused
    ExperienceError   experience cannot be sent or received this way
      SchemaError     agents of one batcher do not send the same, or it is not understood
      WaitStopped     a wait for room was given up because it was told to stop
    BoardError        a policy board cannot be used this way
      BoardTimeout    (also TimeoutError) no policy was published in time
"""

from __future__ import annotations

from collections.abc import Sequence

from gmi_drl.errors import GmiDrlError


class CommError(GmiDrlError, RuntimeError):
    """Base of what `gmi_drl.comm` raises."""


class ReduceTimeout(CommError, TimeoutError):
    """A collective call was not complete by its deadline. `late` holds (rank, member) of each."""

    def __init__(self, what: str, timeout_s: float, late: Sequence[tuple[int, str]]) -> None:
        super().__init__(what, timeout_s, late)
        self.what = what
        self.timeout_s = timeout_s
        self.late = tuple(late)

    def __str__(self) -> str:
        late = [f"rank {rank} ({member})" for rank, member in self.late]
        has = "has" if len(late) == 1 else "have"
        return f"{self.what} timed out after {self.timeout_s:g} s: {listed(late)} {has} not arrived"


class GroupMismatch(CommError):
    """The ranks of a group did not make the same call. `calls` says what each did, by rank."""

    def __init__(self, calls: Sequence[str], members: Sequence[str]) -> None:
        super().__init__(calls, members)
        self.calls = tuple(calls)
        self.members = tuple(members)

    def __str__(self) -> str:
        lines = [
            f"  rank {rank} ({member}): {call}"
            for rank, (call, member) in enumerate(zip(self.calls, self.members, strict=True))
        ]
        rule = "every rank must make the same calls in the same order with the same sizes."
        return "\n".join([f"the ranks of a reducer group do different things; {rule}", *lines])


class _RankError(CommError):
    """An error about one rank of a group: what it was doing, and the `reason`."""

    def __init__(self, what: str, rank: int, member: str, reason: str) -> None:
        super().__init__(what, rank, member, reason)
        self.what = what
        self.rank = rank
        self.member = member
        self.reason = reason


class RingBroken(_RankError):
    """A ring could not move its numbers, though every rank is there; `reason` is the first cause.

    `rank` is the one that found it.
    """

    def __str__(self) -> str:
        return (
            f"{self.what}: a ring of rank {self.rank} ({self.member}) broke while every rank was "
            f"there: {self.reason}. Look for what closes connections on 127.0.0.1, or use "
            "comm.reduction: mpr, which needs none."
        )


class PeerLeft(_RankError):
    """A rank of the group will not arrive: it gave up, or closed its group; `reason` says why."""

    caused_by_peer = True

    def __str__(self) -> str:
        return f"{self.what}: rank {self.rank} ({self.member}) has left the group: {self.reason}"


class GroupReformed(CommError):
    """A rank's process was replaced by a new one, which opened `generation` of the group.

    The call that was going on is void, on every rank. The group goes on after `reform`.
    """

    def __init__(self, what: str, generation: int) -> None:
        super().__init__(what, generation)
        self.what = what
        self.generation = generation

    def __str__(self) -> str:
        return (
            f"{self.what}: a GMI of the group was restarted (generation {self.generation}), and "
            "what it held is gone. Call group.reform(), make the buckets anew and agree on where "
            "to go on; a role that does not do so keeps `recoverable = False`."
        )


class GroupFinished(CommError):
    """A rank that is waited for has left with its work done; `outcome` is what came of it."""

    def __init__(self, rank: int, member: str, outcome: str) -> None:
        super().__init__(rank, member, outcome)
        self.rank = rank
        self.member = member
        self.outcome = outcome

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.member}) has finished and left the group: {self.outcome}"


class GroupClosed(CommError):
    """This rank has left its group; the text says why. Join a new group to go on."""


class ParametersDiffer(CommError):
    """The ranks do not hold the same parameters any more.

    `ranks` are those that differ from the others (from rank 0 when there is no majority),
    `parameter` is the first parameter, in the order of the flat vector, that is not the same.
    """

    def __init__(
        self, iteration: int, ranks: Sequence[int], members: Sequence[str], parameter: str
    ) -> None:
        super().__init__(iteration, ranks, members, parameter)
        self.iteration = iteration
        self.ranks = tuple(ranks)
        self.members = tuple(members)
        self.parameter = parameter

    def __str__(self) -> str:
        names = listed([f"rank {r} ({m})" for r, m in zip(self.ranks, self.members, strict=True)])
        return (
            f"iteration {self.iteration}: the parameters of {names} differ from the others', first "
            f"in {self.parameter!r}. GMIs must start from the same parameters and change them by "
            "reduced gradients only; look for a step that uses a GMI's own random numbers or "
            "data, then resume from the last checkpoint."
        )


class MailboxError(CommError):
    """A mailbox cannot be opened: value, rule, remedy. Base of all that mailboxes raise."""


class _PeerError(MailboxError):
    """An error about the other GMI, `gmi_id`."""

    def __init__(self, message: str, gmi_id: int) -> None:
        super().__init__(message, gmi_id)
        self.gmi_id = gmi_id

    def __str__(self) -> str:
        return str(self.args[0])


class MailboxTimeout(_PeerError, TimeoutError):
    """A message could not be sent, or did not come, by the deadline. `gmi_id`: the late one."""


class MailboxClosed(MailboxError):
    """This mailbox has been closed here; it neither sends nor receives any more."""


class PeerClosed(_PeerError):
    """The other GMI has closed its mailbox: nothing more comes from it, or nothing gets there."""

    caused_by_peer = True


class PeerRestarted(_PeerError):
    """The other GMI was restarted; `gmi_id` says which. Raised once: the next call reaches it.

    Messages under way to it, and those of before that were not received, are lost.
    """


class MessageError(MailboxError):
    """A message cannot be pickled here, or cannot be rebuilt here; the text says why."""


class LinkError(CommError):
    """A link cannot be opened, or does not work: value, rule, remedy. Base of all links raise."""


class LinkTimeout(LinkError, TimeoutError):
    """The other end of a link did not come, or took nothing, by the deadline. `late` names it."""

    def __init__(self, message: str, late: str) -> None:
        super().__init__(message, late)
        self.late = late

    def __str__(self) -> str:
        return str(self.args[0])


class LinkClosed(LinkError):
    """This end of the link has been closed; it neither sends nor receives any more."""


class LinkEnded(LinkError):
    """The other end has closed the link: all it sent was received, or it takes nothing more."""

    caused_by_peer = True


class SchemaDiffers(LinkError):
    """A sender that replaces another gave another schema, or other streams, than it."""


class CorruptPacket(LinkError):
    """A packet whose header is not what this link's are. It was dropped, and nothing of it used.

    `where` names the link, `field` the first part of the header that is wrong.
    """

    def __init__(self, where: str, field: str, value: str, expected: str) -> None:
        super().__init__(where, field, value, expected)
        self.where = where
        self.field = field
        self.value = value
        self.expected = expected

    def __str__(self) -> str:
        return (
            f"{self.where}: a packet was refused, its header's {self.field} is {self.value} "
            f"instead of {self.expected}. It is damaged, or not of this link; look for another "
            "process that writes there, or for two versions of gmi-drl in one run."
        )


class ExperienceError(CommError):
    """Experience cannot be sent or received this way: value, rule, remedy."""


class SchemaError(ExperienceError):
    """The agents of one batcher do not send the same, or a schema is not understood here."""


class WaitStopped(ExperienceError):
    """A wait for room in a link was given up because `stop` said so: what was put is not sent."""


class BoardError(CommError):
    """A policy board cannot be used this way: value, rule, remedy."""


class BoardTimeout(BoardError, TimeoutError):
    """No policy was published by the deadline; the text names who publishes."""


def listed(items: Sequence[str]) -> str:
    """Joins items to `a`, `a and b`, or `a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
