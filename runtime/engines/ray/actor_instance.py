"""Builds the object of an actor in its process, checkpoints it, and says what its calls may."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import ray

from gmi_drl.runtime.api import signatures
from gmi_drl.runtime.api.options import METHOD_RETRIES, method_option, no_group
from gmi_drl.runtime.errors import ActorDiedError
from gmi_drl.runtime.process import child_setup, worker
from gmi_drl.runtime.wire import packing
from gmi_drl.runtime.wire.protocol import CallFailure

from . import calling, nodes
from .actor_process import ActorProcess
from .calls import ActorBuild, Call, Raised, part_of
from .keeper import JournaledCall, Value

_ANSWERS_KEPT: Final = 1000  # of replayed calls, whose callers may not have had them
worker.hide_frames_of(__file__)


class ActorInstance:
    """Holds an object of the user's class, with what the keeper has to know of it.

    If an actor runs one call at a time and may be restarted, the keeper notes each call before its
    answer is sent. A new process runs the noted calls again, as engine local does, so that no
    answered call is lost. A call that was noted, but not answered, Ray sends again, and finds its
    answer here. `save()` is called before the first call after each k-th, and its result is noted
    with that call, in one message.
    """

    def __init__(self, build: ActorBuild, namespace: str) -> None:
        self._build, self._restarts, self._since = build, 0, 0
        self._engine = calling.engine_here(namespace)
        self.keeper = self._engine.keeper
        self.id = str(ray.get_runtime_context().get_actor_id())
        self._counting = threading.Lock()
        self._answers: collections.OrderedDict[bytes, Any] = collections.OrderedDict()
        self.process = ActorProcess(self.keeper, self.id)
        worker.enter(self.process)

    @contextlib.contextmanager
    def reporting_failure(self) -> Iterator[None]:
        """Reports to the keeper, and raises, with what the building of the object has failed."""
        try:
            yield
        except SystemExit:
            raise
        except BaseException as error:
            failure = calling.raised(error)
            self.keeper.ask("failed", self.id, failure.failure)
            raise failure from None

    def start(self, call: Call, inputs: Sequence[Value]) -> Sequence[JournaledCall]:
        """Builds the object; returns the calls that have to be run again."""
        build, state, journal = self._build, None, []
        if build.is_restarted:
            self._restarts, state, journal = self.keeper.ask(
                "started", self.id, os.getpid(), nodes.address()
            )
        if build.log:
            child_setup.open_log(build.log)
        child_setup.use_cores(build.cores)
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(build.num_threads)
        if build.setup:
            packing.unpack(build.setup, f"the setup of actor {build.name}")()
        args, kwargs = calling.arguments(call, inputs)
        cls = packing.unpack(build.cls, f"the class of actor {build.name}")
        calling.enter(call, build, self._restarts)
        self._instance = cls(*args, **kwargs)
        if state is not None:
            self._engine.objects.adopt(state[1])
            saved = packing.unpack(part_of(state), f"the saved state of {build.name}")
            self._instance.restore(saved)
        self.release()
        return journal

    def bind(
        self, call: Call, inputs: Sequence[Value], replayed: bool = False
    ) -> Callable[[], Any]:
        """Begins a call; returns its method with its arguments."""
        args, kwargs = calling.arguments(call, inputs)
        calling.enter(call, self._build, self._restarts, replayed=replayed)
        group = self._option(call, "concurrency_group")
        if group and group not in self._build.concurrency_groups:
            raise ValueError(no_group(call.name, group, self._build))
        if group and threading.current_thread() is not threading.main_thread():
            threading.current_thread().name = f"{group} of {self._build.name}"
        assert isinstance(call.function, str)
        method = signatures.bound_method(self._instance, call.function)
        return functools.partial(method, *args, **kwargs)

    def release(self) -> None:
        """Releases the references that came with this thread's last call, unless they are held."""
        self._engine.objects.adopt({})

    # How often a call is made.

    def _option(self, call: Call, name: str) -> Any:
        return method_option(type(self._instance), str(call.function), call.chosen, name)

    def _limit(self, call: Call) -> int:
        """Returns how often a call is made again; unlimited if it is negative."""
        limit = self._option(call, "max_task_retries")
        return self._build.max_task_retries if limit is None else int(limit)

    def should_retry(self, call: Call, error: Exception) -> bool:
        """Tells whether a method that raised this is called again."""
        limit = self._limit(call)
        if limit < 0 and self._option(call, "max_task_retries") is None:
            limit = METHOD_RETRIES
        return calling.should_retry(call, self._option(call, "retry_exceptions"), limit, error)

    def counts_crashes(self, call: Call) -> bool:
        """Tells whether a call is not made again after some crashes while it runs."""
        return self._build.is_restarted and self._limit(call) >= 0

    def given_up(self, call: Call, crashes: int) -> Raised | None:
        """Returns what a call gives of which the actor has died too often."""
        limit = self._limit(call)
        if crashes <= limit:
            return None
        reason = ActorDiedError.given_up(call.name, limit)
        error = packing.pack_exception(ActorDiedError(self._build.name, reason=reason))
        return Raised(packing.pack(CallFailure(error, "", time.monotonic())).body)

    def note_end(self, call: Call) -> None:
        """Notes that a call is over whose start was noted."""
        if self.counts_crashes(call):
            self.keeper.handle.ended.remote(self.id, call.id)

    # Checkpoints and the journal.

    @property
    def is_journaled(self) -> bool:
        return self._build.is_restarted and not self._build.is_concurrent

    def keep_answer(self, call: Call, answer: Any) -> None:
        """Keeps the answer of a replayed call, as the first one may have been lost."""
        self._since += 1
        self._answers[call.id] = answer
        if len(self._answers) > _ANSWERS_KEPT:
            self._answers.popitem(last=False)

    def known_answer(self, call: Call) -> Any:
        """Returns the answer of a replayed call; None of another."""
        return self._answers.pop(call.id, None)

    def note_call(self, call: Call, state: Value | None = None) -> None:
        """Notes a call that was run, and the checkpoint from before it, if there is one."""
        self._since = 1 if state is not None else self._since + 1
        journaled = JournaledCall(dataclasses.replace(call, inputs=()), call.inputs)
        self.keeper.ask("note", self.id, state, journaled)

    def checkpoint_if_due(self) -> Value | None:
        """Returns a checkpoint if one is due; calls are counted as they are noted."""
        return self._checkpoint() if self._checkpoint_is_due else None

    def counted_checkpoint(self) -> Value | None:
        """Counts a call that is not noted; returns a checkpoint if one is due."""
        if not self._build.checkpoint_every or not self._build.is_restarted:
            return None
        with self._counting:
            self._since += 1
            is_due = self._checkpoint_is_due
            self._since = 0 if is_due else self._since
        return self._checkpoint() if is_due else None

    @property
    def _checkpoint_is_due(self) -> bool:
        return 0 < self._build.checkpoint_every <= self._since

    def _checkpoint(self) -> Value | None:
        """Returns a checkpoint; None if it fails, and the journal goes on."""
        try:
            name = self._build.name
            packed = packing.pack(self._instance.save(), f"what {name}.save gave")
            return self._engine.objects.to_value(packed)
        except Exception:
            traceback.print_exc()
            return None
