"""GMI_manager: what a role sees of its surroundings (GMI-DRL, listing 1).

A launched GMI is given a `GmiContext` before its role is built; `GMI_manager.add_GMI` then returns
that GMI's manager. Outside a launch (a debugger, a notebook) a role gets a group of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property, partial
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from gmi_drl import runtime
from gmi_drl.placement import Config, GmiSpec, Layout
from gmi_drl.roles.envs import VecEnv, choose_adapter, make_env
from gmi_drl.roles.envs.batch_wrappers import unwrapped
from gmi_drl.roles.envs.compiling import AT_RESET, COMPILES, compiling
from gmi_drl.roles.errors import ContextError
from gmi_drl.roles.seeds import EVALUATION, seed_of
from gmi_drl.runtime.process.progress import SET_UP, beat

from . import readiness
from .closing import Closing
from .job import HEIR, Pause, Wires

if TYPE_CHECKING:
    from gmi_drl.comm import Group, Mailbox, Reducer
    from gmi_drl.comm.shm.heartbeat import Heartbeat
    from gmi_drl.comm.shm.tally import Tally
    from gmi_drl.gmi.usage.memory import DeviceMemory
    from gmi_drl.roles.telemetry.phases import Trace


def _solo_group() -> Group:
    from gmi_drl.comm import solo_group  # GMIs that only act do without

    return solo_group()


@dataclass
class GmiContext:
    """Everything a GMI process knows: its place, its peers, its job and its folders."""

    gmi_id: int
    layout: Layout
    config: Config
    of_group: Group | None = None  # that it trains with; None: it is alone
    mailbox: Mailbox | None = None
    folder: Path | None = None  # the run's folder
    resume: Path | None = None  # a checkpoint to continue from
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    session: str = ""  # names this launch among those of the folder
    wires: Wires = field(default_factory=Wires)
    tally: Tally | None = None  # what GMIs have done, kept over their deaths
    lives: int = 0  # processes that were this GMI before this one, where no group counts them
    process: int = 0  # processes that were this GMI before this one, in this launch
    trace: Trace | None = None  # of a profiled run, where this GMI records one
    memory: DeviceMemory | None = None  # of a launched run
    private: Path | None = None  # the folder of the run's sockets, the same for all GMIs
    closing: Closing = field(default_factory=Closing)
    heartbeat: Heartbeat | None = None  # of a launched run
    pause: Pause | None = None  # where training ends before run.total_steps
    resumed: int = 0  # the iteration of the checkpoint that all began with
    epoch: int = 0  # of the gang, where it is on several hosts

    @property
    def spec(self) -> GmiSpec:
        return self.layout.gmi(self.gmi_id)

    @cached_property
    def group(self) -> Group:
        """Returns the group that it reduces with, of itself alone where it was given none."""
        return self.of_group or _solo_group()

    @property
    def copy(self) -> int:
        """Returns 0, or a number where it goes on from the checkpoint of another training."""
        return 0 if self.pause is None else self.pause.copy

    @property
    def replaced(self) -> int:
        """Returns 0, or another number in each process that takes a dead one's place."""
        return max(0 if self.of_group is None else self.of_group.joined, self.lives)

    def note_memory(self) -> None:
        """Puts the most memory that this GMI has held where all GMIs and the launcher see it."""
        if self.memory is not None and self.tally is not None:
            earlier = self.tally[self.gmi_id, "mem_peak_bytes"]  # of a process before this one, too
            self.tally[self.gmi_id, "mem_peak_bytes"] = max(earlier, self.memory.look())

    def add(self, counter: str, more: int) -> None:
        """Counts what all GMIs and the launcher are to see under `counter` of the tally."""
        if self.tally is not None:
            self.tally[self.gmi_id, counter] += more

    def of_mine(self, counter: str) -> int:
        """Returns what is noted of this GMI under `counter` of the tally."""
        return 0 if self.tally is None else self.tally[self.gmi_id, counter]

    def of_all(self, counter: str) -> list[int]:
        """Returns what every GMI has noted under `counter` of the tally, by gmi_id."""
        if self.tally is None:
            return []
        return [self.tally[gmi.gmi_id, counter] for gmi in self.layout.gmis]


class GMI_manager:
    """The registry of this process's GMI, its groups and its links to other GMIs."""

    _contexts: ClassVar[dict[int, GmiContext]] = {}  # by the thread that was given it

    def __init__(self, gmi_id: int, context: GmiContext | None) -> None:
        self.GMI_id = gmi_id
        self._context = context
        self._own_group: Group | None = None
        self._buckets: dict[tuple[Group, int, int, torch.dtype], Reducer] = {}

    @classmethod
    def bind(cls, context: GmiContext | None) -> None:
        """Gives this thread's GMI its context, or takes it; the launcher's side of `add_GMI`."""
        if context is None:
            cls._contexts.pop(threading.get_ident(), None)
        else:
            cls._contexts[threading.get_ident()] = context

    @classmethod
    def add_GMI(cls, GMI_id: int) -> GMI_manager:
        """Returns the manager of GMI `GMI_id`, which this process or thread must be.

        A thread that a GMI has started itself may ask for any GMI of its process.
        """
        context = cls._contexts.get(threading.get_ident())
        if context is None and cls._contexts:
            bound = {context.gmi_id: context for context in list(cls._contexts.values())}
            context = bound.get(GMI_id, next(iter(bound.values())))
        if context is not None and context.gmi_id != GMI_id:
            raise ContextError(
                f"add_GMI({GMI_id}): this is GMI {context.gmi_id}, and a role is one GMI. "
                "Pass on the GMI_id that the role was constructed with."
            )
        return cls(GMI_id, context)

    def set_GPU(self, GMI_id: int, gpu_id: int) -> None:
        """Attaches a GMI to a device; in a launched run the Layout has done so, and must agree."""
        if self._context is None:
            return
        current = self._context.layout.gmi(GMI_id).gpu_id
        if current != gpu_id:
            raise ContextError(
                f"set_GPU(GMI {GMI_id}, GPU {gpu_id}): the layout puts it on GPU {current}. "
                "Change the layout; a role does not move its GMI."
            )

    def get_group(self, GMI_id: int, peer: int | None = None) -> Group:
        """Returns the reduction group of a GMI, which must hold `peer` too when one is given."""
        if self._context is None:
            self._own_group = self._own_group or _solo_group()
            return self._own_group
        for gmi_id in (GMI_id, GMI_id if peer is None else peer):
            self._context.layout.gmi(gmi_id)  # an unknown one is named
        return self._context.group

    def allreduce(
        self, data: Any, group: Group | None = None, op: Literal["mean", "sum"] = "mean"
    ) -> Any:
        """Combines `data` with every other GMI of the group; collective, in place, and returned.

        `data` is a tensor, a numpy array, a number, or a dict, list or tuple of them. Integer
        tensors are combined in float64 and rounded; a number comes back as a float. ReduceTimeout
        names who has not arrived. GroupReformed: a GMI was restarted; a role that is `recoverable`
        then calls `group.reform()` and agrees on where to go on.
        """
        group = group or self.get_group(self.GMI_id)
        if isinstance(data, dict):
            return {key: self.allreduce(data[key], group, op) for key in sorted(data)}
        if isinstance(data, (list, tuple)):
            items = [self.allreduce(item, group, op) for item in data]
            return type(data)(*items) if hasattr(data, "_fields") else type(data)(items)
        if isinstance(data, np.ndarray):
            self.allreduce(torch.from_numpy(data), group, op)
            return data
        if not isinstance(data, (Tensor, Real)) or (
            isinstance(data, Tensor) and (data.is_complex() or data.layout != torch.strided)
        ):
            raise TypeError(
                f"allreduce takes numbers, arrays, dense real tensors, and dicts, lists and tuples "
                f"of them, not {type(data).__name__}. Convert it first."
            )
        if not isinstance(data, Tensor):
            number = torch.tensor([float(data)], dtype=torch.float64)
            return float(self.allreduce(number, group, op))
        dtype = torch.float32 if data.dtype == torch.float32 else torch.float64
        key = (group, group.generation, data.numel(), dtype)
        if key not in self._buckets:
            # Those of the groups' present generations.
            self._buckets = {k: b for k, b in self._buckets.items() if k[0].generation == k[1]}
            name = f"allreduce/{dtype}/{data.numel()}"
            self._buckets[key] = group.bucket(name, data.numel(), dtype)
        bucket = self._buckets[key]
        bucket.buffer.copy_(data.detach().reshape(-1))
        result = bucket.reduce(op).view(data.shape)
        with torch.no_grad():
            data.copy_(result if data.is_floating_point() else result.round())
        return data

    def send(self, data: Any, dst_GMI_id: int) -> None:
        """Sends to another GMI; waits for it only when its mailbox is full."""
        beat()
        self._mailbox("send", dst_GMI_id).send(dst_GMI_id, data)

    def recv(self, src_GMI_id: int, timeout: timedelta | None = None) -> Any:
        """Returns the next message of GMI `src_GMI_id`, in the order it sent them; waits for it."""
        beat()
        return self._mailbox("recv", src_GMI_id).recv(src_GMI_id, timeout)

    def _mailbox(self, verb: str, other: int) -> Mailbox:
        if self._context is None or self._context.mailbox is None:
            raise ContextError(
                f"{verb}: GMI {self.GMI_id} has no peers here. Start the role by gmi_drl.launch."
            )
        layout = self._context.layout
        if layout.hosts > 1 and layout.host_of(other) != layout.host_of(self.GMI_id):
            raise ContextError(
                f"{verb}: GMI {other} is on host {layout.host_of(other)}, and GMI {self.GMI_id} on "
                f"host {layout.host_of(self.GMI_id)}; messages stay on a host. Use allreduce, or a "
                "GMI of this host."
            )
        return self._context.mailbox

    @property
    def context(self) -> GmiContext:
        """Returns this GMI's context; ContextError outside a launched run."""
        if self._context is None:
            raise ContextError(
                f"GMI {self.GMI_id} was not launched, so it has no config or layout. "
                "Start the role by gmi_drl.launch, or bind a GmiContext first."
            )
        return self._context

    @property
    def config(self) -> Config:
        return self.context.config

    @property
    def layout(self) -> Layout:
        return self.context.layout

    def make_env(self, num_env: int | None = None, seed: int = 0) -> VecEnv:
        """Returns the configured environments, with this GMI's threads, device and seed.

        `seed` is added to the run's, so that a role can have several; GMIs always differ. Where
        kernels are compiled this (adapter mjx: the first `reset`) waits for the GMI that does so
        first, ten minutes at most.
        """
        context, env = self.context, self.config.env
        number = context.spec.num_env if num_env is None else num_env
        if num_env is None and not number:
            raise ContextError(
                f"make_env: GMI {self.GMI_id} has no environments, as its role is "
                f"{'+'.join(context.spec.roles)}. Give num_env, or derive its class from one that "
                "needs none, such as gmi_drl.roles.Trainer."
            )
        adapter, on_gpu = choose_adapter(env.id, env.adapter), context.device.type == "cuda"
        shared = context.private if adapter in COMPILES else None
        message = (
            f"gmi {self.GMI_id} compiles the kernels of adapter {adapter} for a batch of {number}, "
            "but for those that are kept from before"
        )
        announce = partial(self.report, {"kind": "note", "message": message})
        guard = partial(compiling, shared, f"{adapter}-{env.id}-{number}", on_gpu, announce)
        with nullcontext() if adapter in AT_RESET else guard():
            vec_env = make_env(
                env.id, number, adapter=env.adapter, options=env.options,
                max_episode_steps=env.max_episode_steps, device=context.device,
                seed=self.seed(seed), threads=max(1, len(context.spec.cores)),
                wrappers=env.wrappers, multi_agent=self.config.multi_agent,
                of_team=self.config.algorithm.of_team,
            )  # fmt: skip
        if adapter in AT_RESET:
            unwrapped(vec_env).compiling = guard  # type: ignore[attr-defined]
        return vec_env

    def await_set_up(self) -> None:
        """Says that this GMI is set up, and waits until all GMIs of the run are.

        To be called when the environments are made and were reset, and before another GMI is waited
        for by `timeout`; again after GroupReformed, so that the new process gets the time it needs.
        SetUpTimeout names a GMI that takes a quarter of an hour. Returns at once outside a run, and
        when peers are lost for good: `is_bereft`.
        """
        context = self.context
        if context.tally is not None:
            readiness.say(context.tally, self.GMI_id)
            gmi_ids = [gmi.gmi_id for gmi in context.layout.gmis]
            readiness.wait_for_all(context.tally, gmi_ids, stop=lambda: self.is_bereft)
            beat("")  # what comes next says so itself

    def begin_set_up(self) -> None:
        """Takes back that this GMI is set up: it makes environments again, as for an evaluation.

        The others wait for it where they `await_set_up`, if they know: meet them after this call.
        """
        if self.context.tally is not None:
            beat(SET_UP)
            readiness.take_back(self.context.tally, self.GMI_id)

    @property
    def is_bereft(self) -> bool:
        """Tells whether peers are lost for good, and the run is to go on in another layout."""
        return bool(self.context.of_mine("bereft"))

    @property
    def is_heir(self) -> bool:
        """Tells whether it is this GMI that is to save the state for that layout."""
        return self.context.of_mine("bereft") == HEIR

    @property
    def is_resizing(self) -> bool:
        """Tells whether GMIs are asked to stop so that training goes on in another layout."""
        return bool(self.context.of_mine("resizing"))

    def seed(self, stream: int = 0, number: int | None = None) -> int:
        """Returns a seed of this GMI alone: the run's seed, its id and a stream number, mixed.

        With `number` in place of the id, GMIs that have the same number get the same seed. A GMI
        that was restarted has other seeds than before, so that it does not see the same again. So
        has every GMI of a run that was resumed or resized, except for its evaluation.
        """
        identity = self.GMI_id if number is None else number
        context = self.context
        resumed, copy = (0, 0) if stream == EVALUATION else (context.resumed, context.copy)
        return seed_of(self.config.run.seed, identity, stream, context.replaced, resumed, copy)

    @property
    def timeout(self) -> timedelta:
        """Returns the time that this GMI waits for another before the run fails."""
        return timedelta(seconds=self.config.comm.timeout_s)

    @property
    def tally(self) -> Tally:
        """Returns the counts of what GMIs have done; this one writes its own row."""
        if self.context.tally is None:
            raise ContextError(f"GMI {self.GMI_id} has no tally. Start it by gmi_drl.launch.")
        return self.context.tally

    def begin_iteration(self) -> None:
        """Says, in the thread that runs `GMI_run`, that an iteration begins.

        A profiled run counts what it records by these; one may write a file (docs/profiling.md).
        From the first call on the launcher watches for this GMI's progress (`run.hang_timeout_s`).
        """
        if self._context is None:
            return
        beat("iteration")
        self._context.note_memory()
        if self._context.trace is not None:
            self._context.trace.begin_iteration()

    def progress(self) -> None:
        """Says that this GMI makes progress; for a role of your own, from any of its threads.

        From the first call on a GMI that says nothing for `run.hang_timeout_s`, and waits for no
        other, hangs. Costs about a microsecond: call it in each step of what may take long.
        """
        if self._context is not None and self._context.heartbeat is not None:
            self._context.heartbeat.progress()

    def close_later(self, close: Callable[[], object]) -> None:
        """Has `close` called when GMI_run has returned and its result is safe.

        One that raises, or never returns, does not fail a run that is done: see closing.py.
        """
        self.context.closing.later(close)

    @contextmanager
    def closed_after(self, env: VecEnv) -> Iterator[VecEnv]:
        """Gives `env`, and closes it at the end of the block; an error of its `close` is told."""
        try:
            yield env
        finally:
            self.context.closing.now(env.close)

    def report(self, record: Any) -> None:
        """Sends a record up to the launcher; never waits."""
        beat()
        runtime.emit(record)

    def warn(self, message: str) -> None:
        """Has the launcher tell `message`."""
        self.report({"kind": "warning", "message": message})

    def stop_requested(self) -> bool:
        """Tells whether the launcher has asked this run to end."""
        return runtime.stop_requested()
