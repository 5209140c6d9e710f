"""Represents a call as it arrived in the process that runs it."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from gmi_drl.runtime import ids
from gmi_drl.runtime.api import call_context
from gmi_drl.runtime.api.options import METHOD_RETRIES, no_group, of_method
from gmi_drl.runtime.errors import TaskCancelledError
from gmi_drl.runtime.wire import framing, packing

if TYPE_CHECKING:
    from .worker import Worker

_ONE_CPU: Final = ({"CPU": 1.0}, ())  # and no GPU


class ArrivedCall:
    """A call as it arrived, with what its process has to know to run it."""

    __slots__ = ("_about", "_arguments", "_attempt", "_failures", "_function", "_inputs",
                 "_message", "_replayed", "_retries", "_worker", "name", "number", "returns",
                 "sequence", "task", "yielded")  # fmt: skip

    def __init__(self, worker: Worker, message: framing.Message) -> None:
        self._worker = worker
        self._message = message
        self._retries = 0
        self.yielded: list[Any] = []  # by a generator that is to give several results
        self.number = message.id
        (
            self.task, self.name, self._function, self.returns, self._arguments, self._inputs,
            self.sequence, self._attempt, self._failures, self._replayed, self._about,
        ) = pickle.loads(message.body)  # fmt: skip

    def target(self) -> Callable[..., Any]:
        """Returns what is called."""
        function = self._function
        if isinstance(function, str):
            method = self._worker.method(function)
            group = self.option("concurrency_group")
            if group and group not in self._worker.build.concurrency_groups:
                raise ValueError(no_group(self.name, group, self._worker.build))
            return method
        functions = self._worker.connection.functions
        if isinstance(body := functions[function], bytes):
            functions[function] = packing.unpack(body, f"the function {self.name}")
        unpacked: Callable[..., Any] = functions[function]
        return unpacked

    def option(self, name: str) -> Any:
        """Returns how a method is run: as this call was given, or as the class says."""
        if self._about and name in self._about:
            return self._about[name]
        return getattr(of_method(getattr(type(self._worker.instance), self._function, None)), name)

    def should_retry(self, error: Exception) -> bool:
        """Returns whether a method that raised this is to be called again, as its next attempt.

        Its calls are counted on, so they are made anew. When the actor is rebuilt all of this
        happens again, so that the state is what it was.
        """
        if not isinstance(self._function, str) or isinstance(error, TaskCancelledError):
            return False
        limit = self.option("max_task_retries")
        if limit is None:
            limit = self._worker.build.max_task_retries
            if limit < 0:  # as often as it crashes, which cannot be meant for what it raises
                limit = METHOD_RETRIES
        wanted = self.option("retry_exceptions")
        if isinstance(wanted, bytes):
            wanted = packing.unpack(wanted, f"the retry_exceptions of {self.name}")
        wanted = (Exception,) if wanted is True else wanted or ()
        if not isinstance(error, wanted) or 0 <= limit <= self._retries:
            return False
        self._retries += 1
        here = call_context.context()
        call_context.enter(dataclasses.replace(here, attempt=here.attempt + 1))
        return True

    def arguments(self) -> tuple[Sequence[Any], dict[str, Any]]:
        """Returns its arguments, with values in place of references."""
        if not self._arguments and not self._inputs:
            return (), {}
        connection, what = self._worker.connection, self._what_argument
        # All of them at once, and each once: the view unpins its place in the end.
        views = {id: connection.view(id, place) for id, place in dict(self._inputs).items()}
        body = connection.view(ids.arguments(self.task), self._arguments)
        inputs = [packing.unpack(views[id], what) for id, _ in self._inputs]
        args, kwargs = packing.unpack(body, what, self._message.fds or (), inputs)
        self._arguments, self._inputs = b"", ()
        return args, kwargs

    def enter(self, task: bytes = b"") -> None:
        """Makes this the context of the code that runs now; `task`: another id for it."""
        build = self._worker.build
        resources, gpu_ids = build.resources, build.gpu_ids
        if not build.actor:
            resources, gpu_ids = self._about or _ONE_CPU
        call_context.enter(
            call_context.Context(
                task_id=task or self.task,
                name=self.name,
                attempt=self._attempt,
                actor_id=build.actor,
                actor_name=build.name,
                restarts=build.restarts,
                device=build.device,
                replayed=self._replayed,
                resources=resources,
                gpu_ids=gpu_ids,
                # Other ids than those before it raised.
                calls=itertools.count(self._failures << 32),
            )
        )

    def _what_argument(self) -> str:
        return f"an argument of {self.name}"

    def what_result(self) -> str:
        """Names its result when that cannot be pickled."""
        return f"the result of {self.name}"
