"""Names the socket files of mailboxes: `gmi3`, then `gmi3.1` after GMI 3 was restarted.

A restarted GMI listens at a path of its own, so that nothing written for its dead predecessor can
reach it, and everybody who looks sees that it is another one.
"""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import Final

from gmi_drl.comm.errors import MailboxError

_LONGEST_PATH: Final = 107  # sun_path of a Unix socket, without its final zero


def socket_path(directory: Path, gmi_id: int, number: int = 0) -> Path:
    """Returns where mailbox `number` of a GMI listens."""
    return directory / (f"gmi{gmi_id}.{number}" if number else f"gmi{gmi_id}")


def numbers_of(directory: Path, gmi_id: int) -> list[int]:
    """Lists the mailboxes of a GMI that have a file, ascending; the last is the present one."""
    numbers = []
    for name in os.listdir(directory):
        stem, _, number = name.partition(".")
        if stem == f"gmi{gmi_id}" and (number.isdigit() or not number):
            numbers.append(int(number or 0))
    return sorted(numbers)


def next_number(directory: Path, gmi_id: int) -> int:
    """Returns the number for a new mailbox.

    MailboxError if there is one whose owner lives, or if paths of sockets there are too long.
    """
    longest = len(os.fsencode(socket_path(directory, 9999, 999)))
    if longest > _LONGEST_PATH:
        raise MailboxError(
            f"{directory}: a socket there would have a path of {longest} bytes; Unix sockets have "
            f"at most {_LONGEST_PATH}. Use a shorter folder, such as one in /tmp."
        )
    numbers = numbers_of(directory, gmi_id)
    for number in numbers:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(socket_path(directory, gmi_id, number)))
            except OSError:  # nobody listens
                continue
        raise MailboxError(
            f"gmi {gmi_id} has a mailbox open in {directory} already; one GMI has one."
        )
    return numbers[-1] + 1 if numbers else 0


def remove_before(directory: Path, gmi_id: int, number: int) -> None:
    """Removes the files of a GMI's dead mailboxes, now that `number` is open."""
    for dead in numbers_of(directory, gmi_id):
        if dead < number:
            socket_path(directory, gmi_id, dead).unlink(missing_ok=True)


def check_private(directory: Path) -> None:
    """Raises MailboxError unless the folder is this user's alone."""
    try:
        status = directory.lstat()
    except OSError as error:
        raise MailboxError(f"{directory}: {error.strerror}. Make it with mode 0700.") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise MailboxError(f"{directory} is not a folder of this user; messages are trusted there.")
    if mode := stat.S_IMODE(status.st_mode) & 0o077:
        raise MailboxError(
            f"{directory} has mode {stat.S_IMODE(status.st_mode):04o}: others may use it "
            f"({mode:03o}), and messages from there are trusted. chmod 0700 it."
        )
