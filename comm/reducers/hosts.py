"""A group over several hosts: each host's own group, and the links of its leader above it.

A call is made inside each host first, as the host's own plan has it. Then its leader combines the
result with the leaders of the other hosts, in memory that all GMIs of its host read, while they
wait for it at a meeting. So all GMIs read the same bits.

Errors and generations are those of the host's own group. A leader whose links fail leaves that
group, and the others are told why. Where the hosts must meet again it opens the group's next
generation, as a process that replaces another one does: every GMI's call raises GroupReformed.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from gmi_drl.comm.errors import CommError, GroupFinished, GroupReformed
from gmi_drl.comm.group import tags as _tags
from gmi_drl.comm.group.group import Group, ReduceOp, Reducer
from gmi_drl.comm.group.tags import make_tag
from gmi_drl.comm.hosts import GroupOutcome, HostSpec, steps, write_outcome
from gmi_drl.comm.hosts.links import HostLinks, Interrupted
from gmi_drl.comm.links.host_links import keep
from gmi_drl.comm.links.links import LINK_KINDS, HostsWay, Link, fastest

from .bucket import SharedBucket
from .host_ways import measure
from .hosts_gloo import HostsGloo
from .shared_group import SharedGroup

_SLICE_S: Final = 0.5
# Share of the group's time-out: GMIs that wait for the leader must still wait when it gives up.
_SHARE: Final = 0.5


class HostsGroup(Group):
    """One GMI of several hosts. `local` is the group of its host; see Group for the rest."""

    def __init__(self, local: SharedGroup, spec: HostSpec, timeout: timedelta) -> None:
        self.local, self.spec = local, spec
        self.rank, self.joined = spec.first + local.rank, local.joined
        self.members = tuple(name for names in spec.members for name in names)
        self.size = len(self.members)
        self.count = len(spec.members)
        self.bounds = np.cumsum([0, *map(len, spec.members)]).tolist()  # of each host's ranks
        self.generation = 0
        self._formed = False
        self._calls = self._buckets = 0
        self._timeout_s = timeout.total_seconds() * _SHARE
        self.links: HostLinks | None = None  # of a leader, from its first call on
        self._gloo: HostsGloo | None = None  # of a leader, where the network is trusted
        self.by_gloo_from = steps.GLOO_BYTES  # on, where nothing is measured; less goes by links
        self.measured: dict[HostsWay, Link] = {}  # by a leader: what each way takes
        self._largest_bytes = 0  # of a bucket
        if local.rank == 0 and local.joined:  # the others are told before this GMI is set up
            with self._leading():
                self._begin(local.joined)

    @property
    def refused(self) -> int:
        return 0 if self.links is None else sum(self.links.refused.values())

    @property
    def note(self) -> str:
        nbytes, ways = self._largest_bytes, self.measured
        times = [f"{LINK_KINDS[way]} {1e3 * ways[way].seconds(nbytes):.3g} ms" for way in ways]
        if len(times) < 2:
            return ""
        text = (
            f"{self.count} hosts combine {nbytes / 1024:,.0f} KiB in {LINK_KINDS[self.way(nbytes)]}"
        )
        return f"{text}; measured: {', '.join(times)}"

    def bucket(
        self, name: str, numel: int, dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> Reducer:  # fmt: skip
        self._open()
        with self.telling():
            inner: Any = self.local.bucket(name, numel, dtype, device)
            self._buckets += 1
            self._largest_bytes = max(self._largest_bytes, inner.buffer.nbytes)
            return HostsReducer(self, inner, name, self._buckets)

    def barrier(self) -> None:
        self._exchange(_tags.BARRIER, 0)

    def exchange(self, value: int) -> list[int]:
        return self._exchange(_tags.EXCHANGE, value)

    def _exchange(self, call: int, value: int) -> list[int]:
        self._open()
        self._calls += 1
        tag = make_tag(call, count=self._calls)
        first = self.spec.first
        with self.telling():
            values = self.local.exchange(value)

            def gather(whole: np.ndarray[Any, Any]) -> None:
                numbers = whole.view(np.uint64)
                numbers[first : first + len(values)] = values
                self.run(numbers, steps.all_gather(self.spec.rank, self.bounds), tag)

            self._numbers.pass_on(gather)
            gathered: list[int] = self._numbers.results[0].view(np.uint64).tolist()
            return gathered

    def reform(self) -> bool:
        with self.telling():
            changed = self.local.reform()
            if changed or not self._formed:
                self._form()
        return changed

    def finish(self, outcome: str) -> None:
        write_outcome(self.spec.folder, GroupOutcome(self.rank, outcome))
        self.local.finish(outcome)
        self._close()

    def close(self) -> None:
        if self.links is not None:
            self.links.leave("the group was closed there")
        self.local.close()
        self._close()

    def _close(self) -> None:
        self._close_gloo()
        if self.links is not None:
            self.links.close()

    # Forming ---------------------------------------------------------------------------------

    def _open(self) -> None:
        """Makes sure that the hosts have met, before the first call."""
        if not self._formed and not self.local.generation:
            with self.telling():
                self._form()

    def _form(self) -> None:
        """Returns when all GMIs of all hosts are in one epoch."""
        local = self.local
        self._close_gloo()
        self._formed, self._calls, self._buckets = False, 0, 0
        epoch = 0
        if local.rank == 0:
            self._begin(local.generation)
        while not epoch:
            epoch = local.exchange(self._form_step())[0]
        preparing = self._prepare()
        while local.exchange(self._prepare_step(preparing))[0]:
            pass  # so that the other GMIs of this host wait for one step at a time
        self.generation = epoch - 1
        words: Any = local.bucket("words of all hosts", self.size, torch.float64)
        self._numbers: SharedBucket = words
        self._formed = True

    def _begin(self, generation: int) -> None:
        """Has this leader begin to form the group, in a generation of its host's group."""
        if self.links is None:
            self.links = HostLinks(self.spec, self._timeout_s, self.local.is_disturbed)
        self.links.begin(generation)

    def _form_step(self) -> int:
        if self.links is None:
            return 0
        with self._leading():
            return self.links.form(_SLICE_S)
        return 0

    def _prepare_step(self, preparing: Iterator[int]) -> int:
        with self._leading():
            return next(preparing, 0)
        return 0

    def _prepare(self) -> Iterator[int]:
        """Makes ready, as a leader, what hosts combine vectors by; yields 1 between its steps."""
        if self.links is None or self.count == 1:
            return
        if self.spec.trusted:
            self._gloo = HostsGloo(self.links, self.spec, self._timeout_s)
            yield 1
        if self.spec.measures:
            yield from self._measure(self.links)

    def _measure(self, links: HostLinks) -> Iterator[int]:
        """Measures what each way takes, if the leader of any host has not done so yet."""
        rank, count = self.spec.rank, self.count
        # Each call has its own tag, so that no host is blamed for what it waited for before.
        tags = (make_tag(_tags.REFORM, count=call) for call in itertools.count(1))

        def largest(value: float) -> float:
            values = np.zeros(count)
            values[rank] = value
            links.run(values, steps.all_gather(rank, range(count + 1)), next(tags))
            return float(values.max())

        if largest(not self.measured):
            self.measured = {}  # if this is interrupted here, all leaders measure once more
            ways: list[HostsWay] = [*steps.ways(count)]
            if self._gloo is not None:
                ways.append("gloo")
            self.measured = yield from measure(
                ways, lambda way, vector: self._reduce_by(way, vector, next(tags)), largest
            )
            keep(links.addresses, self.measured, self.local.wire)

    # For the reducers ------------------------------------------------------------------------

    def run(self, vector: np.ndarray[Any, Any], todo: list[steps.Transfer], tag: int) -> None:
        """Does steps between hosts; on their leaders alone. The next meeting raises if it fails."""
        assert self.links is not None
        with self._leading():
            self.links.run(vector, todo, tag)

    def all_reduce(self, vector: np.ndarray[Any, Any], tag: int) -> None:
        """Turns `vector` into the sum over all hosts; as `run`, for their leaders alone."""
        with self._leading():
            self._reduce_by(self.way(vector.nbytes), vector, tag)

    def way(self, nbytes: int) -> HostsWay:
        """Returns how leaders combine a vector of so many bytes."""
        if self.measured:
            return fastest(self.measured, nbytes)
        if self._gloo is not None and nbytes >= self.by_gloo_from:
            return "gloo"
        return steps.usual_way(self.count, nbytes)

    def _reduce_by(self, way: HostsWay, vector: np.ndarray[Any, Any], tag: int) -> None:
        if way == "gloo":
            assert self._gloo is not None
            self._gloo.all_reduce(vector, tag)
            return
        assert self.links is not None
        todo = steps.all_reduce(way, self.spec.rank, self.count, vector.size)
        self.links.run(vector, todo, tag, self.local.wire if vector.dtype == np.float32 else "fp32")

    def _close_gloo(self) -> None:
        if self._gloo is not None:
            self._gloo.close()
            self._gloo = None

    @contextlib.contextmanager
    def _leading(self) -> Iterator[None]:
        """Tells the GMIs of a leader's host how its links have failed."""
        try:
            yield
        except Interrupted:
            if not self.local.is_disturbed():  # else the next meeting names the GMI
                self.local.renew()
        except GroupFinished as finished:
            self.local.finish(finished.outcome)
            raise
        except CommError as error:
            self.local.leave(error)
            raise
        except BaseException as error:
            self.local.give_up(error)
            raise

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Tells the other hosts when this one will not go on, or forms the group anew."""
        try:
            yield
        except GroupReformed as reformed:
            if self.links is not None:  # now, as what was replaced may take long to be set up
                self._begin(reformed.generation)
            raise
        except GroupFinished:
            raise
        except BaseException as error:
            if self.links is not None:
                self.links.leave(str(error))
            raise


class HostsReducer:
    """A bucket of all hosts, over `inner`, the bucket of this host."""

    def __init__(self, group: HostsGroup, inner: Any, name: str, index: int) -> None:
        self.rank, self.size, self.numel = group.rank, group.size, inner.numel
        self.buffer: Tensor = inner.buffer
        self.result: Tensor = inner.result
        self._group, self._inner, self._name, self._index = group, inner, name, index
        self._calls = 0
        self._generation = group.generation
        self._all: Any = None  # the rows of all GMIs, once they are gathered
        self._on_device: Tensor | None = None

    def reduce(self, op: ReduceOp = "mean") -> Tensor:
        group = self._group
        tag = self._tag(_tags.MEAN if op == "mean" else _tags.SUM)
        with group.telling():
            self._inner.reduce("sum" if op == "mean" else op)  # which knows all that it may be

            def add(whole: np.ndarray[Any, Any]) -> None:
                group.all_reduce(whole, tag)
                if op == "mean":
                    np.multiply(whole, whole.dtype.type(1 / self.size), whole)

            self._inner.pass_on(add)
        return self.result

    def gather(self) -> Tensor:
        group, numel = self._group, self.numel
        tag = self._tag(_tags.GATHER)
        with group.telling():
            rows: Tensor = self._inner.gather()
            if self._all is None:
                name, kind = f"{self._name} of all hosts", self.buffer.dtype
                self._all = group.local.bucket(name, numel * self.size, kind)
            first = group.spec.first * numel

            def gather(whole: np.ndarray[Any, Any]) -> None:
                torch.from_numpy(whole)[first : first + rows.numel()].view(rows.shape).copy_(rows)
                bounds = [bound * numel for bound in group.bounds]
                group.run(whole, steps.all_gather(group.spec.rank, bounds), tag)

            self._all.pass_on(gather)
        gathered = torch.from_numpy(self._all.results[0]).view(self.size, numel)
        if self.buffer.device.type == "cpu":
            return gathered
        if self._on_device is None:
            self._on_device = torch.empty_like(gathered, device=self.buffer.device)
        return self._on_device.copy_(gathered)

    def broadcast(self, src: int = 0) -> Tensor:
        group = self._group
        if not 0 <= src < self.size:
            raise ValueError(f"src {src}: this group has ranks 0 to {self.size - 1}.")
        tag = self._tag(_tags.BROADCAST, src)
        source = next(host for host in range(group.count) if src < group.bounds[host + 1])
        with group.telling():
            if source == group.spec.rank:
                self._inner.broadcast(src - group.spec.first)
            else:
                self._inner.barrier()  # all have read what is overwritten now

            def spread(whole: np.ndarray[Any, Any]) -> None:
                todo = steps.broadcast(group.spec.rank, group.count, source, whole.size)
                group.run(whole, todo, tag)

            self._inner.pass_on(spread)
        return self.result

    def barrier(self) -> None:
        self._tag(_tags.BARRIER)
        self._group.barrier()

    def _tag(self, call: int, source: int = 0) -> int:
        if self._generation != self._group.generation:
            bucket = f"a bucket of generation {self._generation}"
            raise GroupReformed(bucket, self._group.generation)
        self._calls += 1
        return make_tag(call, self._index, self._calls, source)
