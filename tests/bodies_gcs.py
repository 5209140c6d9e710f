"""Rows for tests of the control store, and a model of what a chain must keep."""

import contextlib
import os
import random
import signal

from gmi_drl.runtime.gcs import database
from gmi_drl.runtime.gcs.tables import ActorRow, EventRow, FunctionRow, ObjectRow, TaskRow


def task(number, state="finished", **fields):
    """A task whose id is made from a number, spread over all first bytes."""
    id = random.Random(number).randbytes(16)
    row = TaskRow(id, "task", f"work{number}", state=state, attempts=1, pid=7, spec=b"s" * 100)
    return row._replace(**fields)


def one_of_each():
    """A row of every table."""
    return [
        task(1),
        ActorRow(b"a" * 16, "learner", "Learner", "alive", 12, 0),
        ObjectRow(b"o" * 20, 4096),
        FunctionRow(b"f" * 16, "work", b"\x80\x05"),
        EventRow(10.0, "WorkerDied", b"a" * 16, "killed"),
    ]


def rows_in_file(store, row_class):
    """The rows of a table after everything was written."""
    store.flush()
    with contextlib.closing(database.open_to_read(store.path)) as file:
        return list(database.scan(file, row_class))


class Load:
    """Puts rows into chains, now new ones, now changes of earlier ones, and knows the last."""

    def __init__(self, chains, seed):
        self.chains = chains
        self.model = {}
        self.killed = set()
        self.random = random.Random(seed)

    def put(self, count):
        for _ in range(count):
            number = self.random.randrange(5_000)
            row = task(number, "running", device=self.random.randrange(1_000_000))
            self.model[row.id] = row
            self.chains.put(row)

    def kill_one(self):
        """Kills a member of some chain, or one that joins; none if there is none just now."""
        ready = (member for member in list(self.chains._members.values()) if member.ready)
        members = [member.process.pid for member in ready]
        if members:
            pid = self.random.choice(members)
            self.killed.add(pid)
            os.kill(pid, signal.SIGKILL)

    def lost(self):
        """What was acknowledged and is not in the chains as it was last put."""
        return [row for row in self.model.values() if self.chains.get(TaskRow, row.id) != row]
