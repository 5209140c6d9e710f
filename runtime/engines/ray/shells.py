"""Runs calls of actors in the worker processes of Ray."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import ray

from gmi_drl.runtime.driver.task import STREAMING
from gmi_drl.runtime.process import worker

from . import calling
from .actor_instance import ActorInstance
from .calls import ActorBuild, Call, Raised
from .keeper import Value

worker.hide_frames_of(__file__)


class Shell:
    """Is, to Ray, an actor without async methods. Each method of it runs a call of one."""

    def __init__(self, build: ActorBuild, call: Call, *inputs: Value) -> None:
        self._actor = actor = ActorInstance(build, call.namespace)
        with actor.reporting_failure():
            for journaled in actor.start(call, inputs):
                answer = self._answer(journaled.call, ray.get(list(journaled.inputs)), True)
                actor.keep_answer(journaled.call, answer)

    def call(self, call: Call, *inputs: Value) -> Any:
        """Runs one call of a method."""
        actor = self._actor
        if not actor.is_journaled:
            answer = self._note_start(call) or self._answer(call, inputs)
            actor.note_end(call)
            if (state := actor.counted_checkpoint()) is not None:
                actor.keeper.ask("note", actor.id, state, None)
            return _value_or_raise(answer)
        answer = actor.known_answer(call) or self._note_start(call)
        if answer is None:
            state = actor.checkpoint_if_due()
            answer = self._answer(call, inputs)
            actor.note_call(call, state)
        return _value_or_raise(answer)

    def stream(self, call: Call, *inputs: Value) -> Iterator[Value]:
        """Runs one call of a generator, and gives what it yields on the way."""
        actor = self._actor
        if (given_up := self._note_start(call)) is not None:
            raise given_up
        try:
            function = actor.bind(call, inputs)
            for item in calling.items_of(function, functools.partial(actor.should_retry, call)):
                yield calling.to_value(call, item)
        except (SystemExit, GeneratorExit):
            raise
        except BaseException as error:
            raise calling.raised(error) from None
        finally:
            actor.release()
            self._wait_for_records()
            if actor.is_journaled:
                actor.note_call(call)
            else:
                actor.note_end(call)

    def end(self) -> None:
        """Ends the actor after its earlier calls."""
        ray.actor.exit_actor()

    def _note_start(self, call: Call) -> Raised | None:
        """Notes that a call starts, if crashes of it count; returns what it gives if given up."""
        actor = self._actor
        if not actor.counts_crashes(call):
            return None
        return actor.given_up(call, actor.keeper.ask("begins", actor.id, call.id))

    def _answer(self, call: Call, inputs: Sequence[Value], replayed: bool = False) -> Any:
        """Runs a call: returns its packed result, or what it raised."""
        actor = self._actor
        try:
            function = actor.bind(call, inputs, replayed)
            value = calling.evaluate(call, function, functools.partial(actor.should_retry, call))
            return None if call.returns == STREAMING else calling.to_values(call, value)
        except SystemExit:
            raise
        except BaseException as error:
            return calling.raised(error)
        finally:
            actor.release()
            self._wait_for_records()

    def _wait_for_records(self) -> None:
        if (sent := self._actor.process.send_records()) is not None:
            ray.get(sent)


class AsyncShell:
    """Is, to Ray, an actor with async methods, whose calls run concurrently."""

    def __init__(self, build: ActorBuild, call: Call, *inputs: Value) -> None:
        self._actor = ActorInstance(build, call.namespace)
        with self._actor.reporting_failure():
            self._actor.start(call, inputs)

    async def call(self, call: Call, *inputs: Value) -> Any:
        """Runs one call of a method."""
        actor = self._actor
        answer = await self._note_start(call) or await self._answer(call, inputs)
        actor.note_end(call)
        if (state := actor.counted_checkpoint()) is not None:
            await actor.keeper.handle.note.remote(actor.id, state, None)
        return _value_or_raise(answer)

    async def stream(self, call: Call, *inputs: Value) -> AsyncIterator[Value]:
        """Runs one call of a generator, and gives what it yields on the way."""
        if (given_up := await self._note_start(call)) is not None:
            raise given_up
        try:
            items = self._actor.bind(call, inputs)()
            if inspect.isasyncgen(items):
                async for item in items:
                    yield calling.to_value(call, item)
            else:
                for item in items:
                    yield calling.to_value(call, item)
        except (SystemExit, GeneratorExit):
            raise
        except BaseException as error:
            raise calling.raised(error) from None
        finally:
            self._actor.note_end(call)
            await self._wait_for_records()

    def end(self) -> None:
        """Ends the actor after its earlier calls."""
        ray.actor.exit_actor()

    async def _note_start(self, call: Call) -> Raised | None:
        """Notes that a call starts, if crashes of it count; returns what it gives if given up."""
        actor = self._actor
        if not actor.counts_crashes(call):
            return None
        return actor.given_up(call, await actor.keeper.handle.begins.remote(actor.id, call.id))

    async def _answer(self, call: Call, inputs: Sequence[Value]) -> Any:
        """Runs a call: returns its packed result, or what it raised."""
        try:
            function = self._actor.bind(call, inputs)
            should_retry = functools.partial(self._actor.should_retry, call)
            value = await calling.evaluate_async(call, function, should_retry)
            return calling.to_values(call, value)
        except SystemExit:
            ray.actor.exit_actor()
            raise
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            return calling.raised(error)
        finally:
            await self._wait_for_records()

    async def _wait_for_records(self) -> None:
        if (sent := self._actor.process.send_records()) is not None:
            await sent


def _value_or_raise(answer: Any) -> Any:
    """Returns an answer, or raises it."""
    if isinstance(answer, Raised):
        raise answer
    return answer
