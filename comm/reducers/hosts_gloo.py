"""All-reduces among the leaders of hosts by gloo over tcp, which encrypts nothing.

For a network where only the hosts of the run are. gloo has a port of its own on each leader; they
tell each other of these by their links, which are authenticated, through a store that opens none.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import numpy as np
import torch

from gmi_drl.comm.errors import CommError
from gmi_drl.comm.group.tags import REFORM, make_tag
from gmi_drl.comm.hosts import HostSpec
from gmi_drl.comm.hosts.links import HostLinks
from gmi_drl.runtime.process.progress import waiting

from .torch_backend import LOOK_S, connected, dist, drop, gloo, wait


class LinkStore(dist.Store):  # type: ignore[misc]
    """Keeps what leaders tell each other while a backend is connected in a thread of its own.

    The thread of the links, which no other may use, passes on what was set here and puts in what
    has come from others.
    """

    def __init__(self, timeout_s: float) -> None:
        super().__init__()
        self._timeout_s = timeout_s
        self._values: dict[str, bytes] = {}
        self._unsent: list[bytes] = []
        self._changed = threading.Condition()

    def set(self, key: str, value: bytes | str) -> None:
        """Sets a value, for all leaders."""
        value = value.encode() if isinstance(value, str) else bytes(value)
        with self._changed:
            self._values[key] = value
            self._unsent.append(key.encode() + b"\0" + value)
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        """Returns a value; waits until somebody has set it."""
        self.wait([key])
        return self._values[key]

    def check(self, keys: list[str]) -> bool:
        """Tells whether all of these are set."""
        with self._changed:
            return all(key in self._values for key in keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Returns when all of these are set; RuntimeError if they are not in time."""
        limit_s = self._timeout_s if timeout is None else timeout.total_seconds()
        with self._changed:
            if not self._changed.wait_for(lambda: self._values.keys() >= {*keys}, limit_s):
                raise RuntimeError(f"no leader has told {', '.join(keys)} within {limit_s:g} s")

    def unsent(self) -> list[bytes]:
        """Returns what was set here since the last call, as words for the others."""
        with self._changed:
            words, self._unsent = self._unsent, []
        return words

    def put(self, words: Iterable[bytes]) -> None:
        """Takes in words of others."""
        with self._changed:
            for word in words:
                key, _, value = word.partition(b"\0")
                self._values[key.decode()] = value
            self._changed.notify_all()


class HostsGloo:
    """A gloo backend among the leaders of all hosts, in one epoch of their links."""

    def __init__(self, links: HostLinks, spec: HostSpec, timeout_s: float) -> None:
        """Returns when it is connected. ReduceTimeout, PeerLeft or Interrupted if it cannot be."""
        self._links = links
        # A call that is given up goes on in gloo until its end, when the memory of its vector may
        # be that of a bucket of the next epoch.
        self._copy = torch.empty(0)
        store, tag = LinkStore(timeout_s), make_tag(REFORM)
        device = {"interface": spec.interface} if spec.interface else {"hostname": spec.address}
        timeout = timedelta(seconds=timeout_s)

        def pass_on() -> None:
            for word in store.unsent():
                links.tell(word)
            store.put(links.told())

        def look() -> None:
            pass_on()
            links.look(tag)

        links.begin_call()
        try:
            self._backend: Any = connected(
                lambda: gloo(store, spec.rank, len(spec.members), timeout, **device), look
            )
        except CommError:
            raise
        except RuntimeError as error:
            raise CommError(
                f"host {spec.rank}: gloo cannot be connected to the other hosts at "
                f"{spec.interface or spec.address} ({error}). See that they reach each other "
                "there, or set cluster.network: private."
            ) from error
        pass_on()  # what the others may still wait for

    def all_reduce(self, vector: np.ndarray[Any, Any], tag: int) -> None:
        """Turns `vector` into the sum over all hosts, the same bits on each.

        Every host makes the same call. ReduceTimeout, PeerLeft and GroupMismatch as of the links.
        """
        links = self._links
        links.agree(vector.size, tag)
        tensor = torch.from_numpy(vector)
        if self._copy.shape != tensor.shape or self._copy.dtype != tensor.dtype:
            self._copy = torch.empty_like(tensor)
        try:
            work = self._backend.allreduce([self._copy.copy_(tensor)])
            with waiting:
                wait(work, lambda: links.look(tag))
        except CommError:
            raise
        except RuntimeError as error:
            self._raise_cause(tag, error)
        tensor.copy_(self._copy)

    def close(self) -> None:
        """Closes its connections, which frees those who still wait in it."""
        backends, self._backend = [self._backend], None
        drop(backends)

    def _raise_cause(self, tag: int, error: RuntimeError) -> None:
        """Waits until the links know which host has ended a connection of gloo, and raises that."""
        self.close()  # so that the others find out as well
        pause = threading.Event()
        try:
            with waiting:
                while True:
                    self._links.look(tag)
                    pause.wait(LOOK_S)
        except CommError as cause:
            raise cause from error
