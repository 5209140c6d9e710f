"""Represents an actor on Ray: to its callers, and to the driver, which can do more with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from gmi_drl.runtime.api.options import ActorOptions, demand
from gmi_drl.runtime.api.refs import Slot
from gmi_drl.runtime.driver.task import STREAMING
from gmi_drl.runtime.errors import ActorDiedError, NotOnThisEngine, task_error
from gmi_drl.runtime.process.logs import log_tail
from gmi_drl.runtime.wire import packing

from . import nodes
from .calls import Call
from .keeper import KeeperClient


@dataclasses.dataclass(frozen=True)
class Target:
    """Says where calls of an actor go; it travels with the actor's handle."""

    handle: Any  # Ray's
    is_journaled: bool  # the calls it has run are run again when its process is replaced
    groups: Mapping[str, str]  # the concurrency group of each method
    known_groups: tuple[str, ...]

    @property
    def id(self) -> str:
        """Returns Ray's id of the actor, in hexadecimal."""
        return str(self.handle._actor_id.hex())

    def submit(self, call: Call, chosen: Mapping[str, Any] | None, inputs: Sequence[Any]) -> Any:
        """Sends a call; returns Ray's reference, or references, or generator."""
        chosen = chosen or {}
        changes: dict[str, Any] = {"chosen": chosen}
        if self.is_journaled:
            changes["inputs"] = tuple(inputs)
        options: dict[str, Any] = {}
        group = chosen.get("concurrency_group") or self.groups.get(str(call.function), "")
        if group in self.known_groups:
            options["concurrency_group"] = group
        if call.returns > 1:
            options["num_returns"] = call.returns
        method = self.handle.stream if call.returns == STREAMING else self.handle.call
        return method.options(**options).remote(dataclasses.replace(call, **changes), *inputs)


class Fate:
    """Tells whether an actor has ended, and how. It keeps no actor alive."""

    def __init__(
        self, keeper: KeeperClient, name: str, id: str, error: BaseException | None = None
    ) -> None:
        self._keeper, self._name, self._id, self._error = keeper, name, id, error
        self._death: ActorDiedError | None = None

    @property
    def row(self) -> Mapping[str, Any]:
        """Returns what Ray's control store has of it; nothing of one that was never started."""
        return nodes.actor_row(self._id) if self._id else {}

    @property
    def dead(self) -> bool:
        if self._error is not None or self._death is not None:
            return True
        return self.row.get("State") == "DEAD"

    def death(self, text: str = "") -> ActorDiedError:
        """Returns how it ended; `text` is Ray's reason, used if nobody has ended it on purpose."""
        if isinstance(self._error, ActorDiedError):
            return dataclasses.replace(self._error)
        reason, failure, processes = self._keeper.ask("end_of", self._id)
        row = self.row
        cause = None
        if failure:
            packed = packing.unpack(failure)
            error = packing.unpack_exception(packed.cause)
            cause = task_error(error, packed.traceback, f"{self._name}.__init__", packed.raised_s)
        pid = row.get("Pid") or (processes[-1][0] if processes else None)
        reason = reason or nodes.death_text(row, text)
        return ActorDiedError(self._name, pid, reason=reason, cause=cause)


class RayActor:
    """One actor, as the driver can ask about it and end it."""

    def __init__(
        self, keeper: KeeperClient, key: bytes, name: str, target: Target | BaseException,
        class_name: str = "", options: ActorOptions | None = None,
    ) -> None:  # fmt: skip
        self.key, self.name = key, name
        self._keeper, self._class_name, self._options = keeper, class_name, options
        self._target = target if isinstance(target, Target) else None
        self.id = "" if self._target is None else self._target.id
        error = target if isinstance(target, BaseException) else None
        self.fate = Fate(keeper, name, self.id, error)
        self.death_slot = Slot(b"", f"{name}: its death")
        self.death_seen = False

    @property
    def dead(self) -> bool:
        return self.fate.dead

    @property
    def is_gone(self) -> bool:
        """Tells whether its process has ended too, as far as this host can see."""
        row = self.fate.row
        if row.get("State", "DEAD") != "DEAD":
            return False
        is_here = row and row["Address"]["IPAddress"] == nodes.address()
        return not (is_here and nodes.is_running(row["Pid"]))

    @property
    def pid(self) -> int | None:
        return self.fate.row.get("Pid") or None

    def death(self) -> ActorDiedError:
        return self.fate.death()

    @property
    def deaths(self) -> list[ActorDiedError]:
        """Lists the deaths after which it was restarted; Ray does not tell their causes."""
        if not self.id:
            return []
        _, _, processes = self._keeper.ask("end_of", self.id)
        return [
            ActorDiedError(self.name, pid, reason=f"its process on {host} has been replaced")
            for pid, host in processes[:-1]
        ]

    @property
    def dropped(self) -> int:
        return int(self._keeper.ask("dropped", self.id))

    def take_records(self) -> Iterator[bytes]:
        """Yields the records that nobody has fetched, and forgets them."""
        yield from self._keeper.ask("take_records", self.id) if self.id else ()

    def end(self) -> None:
        """Has it end after the calls it was sent before; returns at once."""
        if self._target is not None:
            self._target.handle.end.options(max_task_retries=0).remote()

    def log_tail(self) -> str:
        """Returns the end of its log, if it has one that is kept on this host."""
        log = "" if self._options is None else self._options.log
        if not log or not Path(log).exists():
            raise NotOnThisEngine(
                f"log_tail of {self.name}: engine ray reads the log of an actor that was given "
                "one, log=..., on this host. `ray logs` shows the others."
            )
        return log_tail(log)

    def write_stacks(self, timeout: timedelta) -> bool:
        raise NotOnThisEngine(
            f"write_stacks of {self.name}: engine ray does not. Call `ray stack` on its host."
        )

    def state_fields(self) -> tuple[Any, ...]:
        """Returns the fields of an ActorState, as a listing shows it."""
        row, options = self.fate.row, self._options or ActorOptions()
        return (
            self.key.hex(), self._class_name, row.get("State", "DEAD"), options.name,
            options.namespace, row.get("Pid") or None, row.get("NumRestarts", 0),
            dict(demand(options)), str(self.death()) if self.dead else "",
        )  # fmt: skip
