"""Is the runtime of a process on a Ray cluster: of the driver, of tasks, and of actors alike.

It takes the place of `driver.Driver` and `process.Connection` on one machine. References and
handles keep their ids; beside each id this process keeps Ray's own reference or handle. These
travel beside every packed value, so that Ray counts them on all hosts.
"""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import ray

from gmi_drl.runtime import ids
from gmi_drl.runtime.api.options import ActorOptions, TaskOptions, demand
from gmi_drl.runtime.api.refs import HERE, Gate, Slot
from gmi_drl.runtime.api.signatures import has_async
from gmi_drl.runtime.driver.task import STREAMING, TaskSpec
from gmi_drl.runtime.errors import (
    ActorDiedError,
    GetTimeoutError,
    NameTakenError,
    NotOnThisEngine,
    OutOfResources,
)
from gmi_drl.runtime.wire import packing
from gmi_drl.runtime.wire.closures import Code
from gmi_drl.runtime.wire.protocol import THREAD_VARIABLES, SpawnRequest

from . import failures, nodes
from .actors import Fate, RayActor, Target
from .calls import ActorBuild, Call, Raised, part_of, to_value
from .functions import Functions
from .keeper import Value
from .streams import GeneratorStream

KEEPER: Final = "gmi-drl keeper"
_POLL_S: Final = 0.05  # between two checks whether an actor has ended
_LISTEN_S: Final = 1.0  # between two checks whether a thread still has to wait
_FETCH_S: Final = 30.0  # beyond the deadline, for a value that is there, on another host


@functools.cache
def _remote(function_or_class: Any) -> Any:
    """Returns what Ray calls it by; Ray sends it to the cluster once for each of these."""
    return ray.remote(function_or_class)


class Entry:
    """Holds what this process has of one object or actor."""

    __slots__ = ("actor", "count", "slot", "thing")

    def __init__(self, slot: Slot, thing: Any, actor: str = "") -> None:
        self.slot = slot
        self.thing = thing  # Ray's reference or handle; an exception in place of one
        self.actor = actor  # Ray's id of the actor whose method gives it
        self.count = 1


class RayEngine:
    """Is the runtime of one process; its methods may be called from any thread."""

    reads = True  # `notify` fills slots without a thread that waits

    def __init__(self, namespace: str, keeper: Any = None) -> None:
        self.is_driver = keeper is not None
        self.namespace = namespace
        self._keeper = keeper
        self._lock = threading.RLock()  # a collected reference may be released while it is held
        self._entries: dict[bytes, Entry] = {}
        self._streams: dict[bytes, GeneratorStream] = {}  # by the id of the generator's call
        self.functions = Functions()  # Ray's references of what was packed here
        self._actors: weakref.WeakValueDictionary[bytes, RayActor] = weakref.WeakValueDictionary()
        self._deaths: weakref.WeakKeyDictionary[Slot, Fate] = weakref.WeakKeyDictionary()
        self._feasible: set[tuple[Any, ...]] = set()
        self._local = threading.local()

    @property
    def keeper(self) -> Any:
        """Returns the handle of the session's keeper."""
        if self._keeper is None:
            self._keeper = ray.get_actor(KEEPER)
        return self._keeper

    def ask_keeper(self, method: str, *args: Any) -> Any:
        """Calls a method of the keeper, and returns its answer."""
        return ray.get(getattr(self.keeper, method).remote(*args))

    # What references need.

    def note(self, id: bytes, change: int, soon: bool = True) -> None:
        with self._lock:
            entry = self._entries.get(id)
            if entry is None:
                return
            entry.count += change
            if entry.count <= 0:
                del self._entries[id]
                stream = self._streams.get(ids.producer(id))
                if stream is not None and id == stream.end:
                    del self._streams[stream.task]
                    for item in stream.items():  # drop those without references
                        if item in self._entries and not self._entries[item].count:
                            del self._entries[item]

    def slot(self, id: bytes, call: str) -> Slot:
        with self._lock:
            entry = self._entries.get(id)
            if entry is None:  # the next of a generator's results
                entry = self._entries[id] = Entry(Slot(id, call), None)
                entry.count = 0
            return entry.slot

    def adopt(self, mentions: Mapping[bytes, Any]) -> None:
        """Adopts the references in a value, until this thread adopts those of the next one.

        By then the value was unpacked, and references hold what is still needed.
        """
        previous = getattr(self._local, "adopted", ())
        with self._lock:
            for id, (thing, call, actor) in mentions.items():
                entry = self._entries.get(id)
                if entry is not None:
                    entry.count += 1
                    continue
                entry = self._entries[id] = Entry(Slot(id, call), thing, actor)
                if isinstance(thing, BaseException):
                    entry.slot.fail(thing)
        self._local.adopted = list(mentions)
        for id in previous:
            self.note(id, -1)

    def mentions(self, mentioned: Iterable[bytes]) -> dict[bytes, Any]:
        """Returns what has to travel beside a value that holds these references."""
        with self._lock:
            entries = {id: self._entries[id] for id in mentioned}
        for entry in entries.values():
            if isinstance(entry.thing, ray.ObjectRefGenerator):
                raise NotOnThisEngine(
                    f"the generator of {entry.slot.call} can be read by its caller only, on engine "
                    "ray. Send what it yields."
                )
        return {id: (entry.thing, entry.slot.call, entry.actor) for id, entry in entries.items()}

    def want(self, slots: Sequence[Slot], values: bool) -> None:
        waited = self._wanted()
        for slot in slots:
            if not slot.done:
                waited[id(slot)] = slot

    def unwant(self) -> None:
        self._wanted().clear()

    def _wanted(self) -> dict[int, Slot]:
        """Returns the slots that this thread waits for."""
        slots: dict[int, Slot] = self._local.__dict__.setdefault("wanted", {})
        return slots

    def notify(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            entry = self._entries.get(slot.id)
            if entry is not None and isinstance(entry.thing, ray.ObjectRef):
                entry.thing.future().add_done_callback(functools.partial(self._settled, slot))
            elif not slot.done:
                threading.Thread(target=self._block_on, args=(slot,), daemon=True).start()

    def _block_on(self, slot: Slot) -> None:
        """Waits for a slot in a thread, until it is filled or nobody can fill it any more."""
        gate = Gate(1)
        if not slot.watch(gate.arrived):
            return
        while not gate.open and (slot in self._deaths or self._source(slot)[0] is not None):
            self.want([slot], False)
            self.block(gate, _LISTEN_S)

    def block(self, gate: Gate, timeout_s: float | None) -> bool:
        """Waits in Ray, which lends a waiting task's CPU to others."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        slots = self._wanted()
        while True:
            pending: dict[Any, Callable[[], None]] = {}
            must_look = False
            for slot in list(slots.values()):
                if slot.done:
                    del slots[id(slot)]
                elif not slot.is_watched:  # `get` waits for one after the other
                    continue
                elif slot in self._deaths:
                    must_look = not self._check_death(slot) or must_look
                else:
                    thing, arrived = self._source(slot)
                    if thing is not None:
                        pending[thing] = arrived
            if gate.open:
                return True
            left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            if left_s == 0.0 and timeout_s and not pending:
                break
            if must_look or not pending:  # other slots are filled by another thread
                left_s = _POLL_S if left_s is None else min(left_s, _POLL_S)
            if pending:
                ready, unready = ray.wait(list(pending), num_returns=1, timeout=left_s)
                if ready and unready:
                    ready += ray.wait(unready, num_returns=len(unready), timeout=0)[0]
                for thing in ready:
                    pending[thing]()
            elif gate.wait(left_s):
                return True
            if deadline_s is not None and time.monotonic() >= deadline_s and not gate.open:
                break
        slots.clear()
        return gate.open

    def _source(self, slot: Slot) -> tuple[Any, Callable[[], None]]:
        """Returns Ray's reference that is ready when a slot can be filled, and what fills it."""
        stream = self._streams.get(ids.producer(slot.id))
        if stream is not None and not stream.ended:
            return stream.generator, functools.partial(self._advance, stream)
        entry = self._entries.get(slot.id)
        return (None if entry is None else entry.thing), functools.partial(self._settle, slot)

    def _settled(self, slot: Slot, _: Any) -> None:
        self._settle(slot)

    @staticmethod
    def _settle(slot: Slot) -> None:
        slot.stored = True
        slot.arrived()

    def _advance(self, stream: GeneratorStream) -> None:
        """Takes the next result of a generator that is ready, or its end."""
        with stream.lock:
            thing = stream.next()
            if thing is None:
                end = self._entries.get(stream.end)
                if end is not None:
                    end.slot.resolve(stream.taken)
                return
            id = ids.result(stream.task, stream.taken)
            with self._lock:
                entry = self._entries.get(id)
                if entry is None:
                    entry = self._entries[id] = Entry(Slot(id, stream.call), None)
                    entry.count = 0
                entry.thing, entry.actor = thing, stream.actor
            self._settle(entry.slot)

    def _check_death(self, slot: Slot) -> bool:
        fate = self._deaths[slot]
        if not fate.dead:
            return False
        slot.resolve(fate.death())
        return True

    def stored(self, slot: Slot, deadline_s: float | None) -> packing.Part:
        """Fetches a value; raises its call's exception, or how it was lost."""
        limit_s = None
        if deadline_s is not None:
            limit_s = max(0.0, deadline_s - time.monotonic()) + _FETCH_S
        with self._lock:
            entry = self._entries[slot.id]
        try:
            value = ray.get(entry.thing, timeout=limit_s)
            if isinstance(value[0], Raised):
                raise value[0]
        except ray.exceptions.GetTimeoutError:
            raise GetTimeoutError(
                f"get timed out: {slot.call} has answered, but {_FETCH_S:g} s after the deadline "
                "its value has not come. Give it more time."
            ) from None
        except Exception as error:
            raise failures.error_of_get(self, error, slot, entry.actor) from None
        self.adopt(value[1])
        return part_of(value)

    # What users call.

    def check(self, chosen: TaskOptions | ActorOptions) -> None:
        """Raises NotOnThisEngine for what Ray does not have."""
        if chosen.device is not None:
            raise NotOnThisEngine(
                f"device={chosen.device}: engine ray has no devices. Use resources, or host."
            )

    def submit(self, task: TaskSpec, code: Code | None = None) -> list[Slot]:
        """Submits a call, of a function with its code.

        Returns the slots of its results, each counted as one reference.
        """
        if task.keep:
            raise NotOnThisEngine(
                f"an argument of {task.name} is a Memfd, which travels within one host only. Send "
                "the array itself."
            )
        slots = [Slot(id, task.name) for id in task.result_ids()]
        actor = self._entries.get(task.actor) if task.actor else None
        inputs = ([task.body_id] if task.body_id else []) + list(task.inputs)
        with self._lock:
            input_things = [self._entries[id].thing for id in inputs]
        error = next((thing for thing in input_things if isinstance(thing, BaseException)), None)
        if actor is not None and isinstance(actor.thing, BaseException):
            error = actor.thing
        if actor is None and error is None:
            error = self._infeasible(task.name, task.demand, task.options.host)
        if error is not None:
            for slot in slots:
                slot.fail(error)
            self._keep(slots, [error] * len(slots), "")
            self.note(task.body_id, -1)
            return slots
        call = Call(
            id=task.id, name=task.name, namespace=self.namespace, function=task.function,
            arguments=task.arguments, arguments_stored=bool(task.body_id),
            mentions=self.mentions(task.refs), returns=task.returns, inputs=(),
        )  # fmt: skip
        if actor is not None:
            results = actor.thing.submit(call, task.options, input_things)
        else:
            assert code is not None
            results = self._submit_task(call, task, input_things, code)
        name = "" if actor is None else actor.thing.id
        if task.returns == STREAMING:
            self._streams[task.id] = GeneratorStream(task.id, task.name, name, results)
            self._keep(slots, [results], name)
        else:
            self._keep(slots, results if task.returns > 1 else [results], name)
        if task.body_id:
            self.note(task.body_id, -1)  # Ray's call holds it now
        return slots

    def _submit_task(self, call: Call, task: TaskSpec, things: Sequence[Any], code: Code) -> Any:
        from .process import run_task, run_task_streaming

        chosen: TaskOptions = task.options
        function = _remote(run_task_streaming if task.returns == STREAMING else run_task)
        returns = {"num_returns": task.returns} if task.returns > 1 else {}
        remote = function.options(
            name=task.name, num_cpus=chosen.num_cpus, num_gpus=chosen.num_gpus,
            resources=dict(chosen.resources), max_retries=chosen.max_retries,
            scheduling_strategy=nodes.strategy(chosen.host), **returns,
        )  # fmt: skip
        retries = packing.pack_plain(chosen.retry_exceptions), chosen.max_retries
        reference = self.functions.get(code.id)
        if reference is None:
            reference = ray.put(code.body)
            self.functions.keep(code.id, reference, len(code.body))
        # In a list, so that Ray does not send its value; it lives until no attempt can need it.
        return remote.remote(call, retries, [reference], *things)

    def _keep(self, slots: Sequence[Slot], things: Sequence[Any], actor: str) -> None:
        with self._lock:
            for slot, thing in zip(slots, things, strict=True):
                self._entries[slot.id] = Entry(slot, thing, actor)

    def _infeasible(
        self, name: str, demand: Mapping[str, float], host: str
    ) -> OutOfResources | None:
        """Returns the error of a call that no host could ever run; Ray would let it wait."""
        key = (*sorted(demand.items()), host)
        if key in self._feasible:
            return None
        error = nodes.infeasible(name, demand, host)
        if error is None:
            self._feasible.add(key)
        return error

    def to_value(self, packed: packing.Packed) -> Value:
        """Returns a packed value with what it mentions, as it travels."""
        if packed.memfds:
            raise NotOnThisEngine(
                f"{packed.memfds[0]!r} travels within one host only. Send the array itself."
            )
        return to_value(packed, self.mentions(packed.refs))

    def put(self, id: bytes, packed: packing.Packed, what: str) -> Slot:
        """Stores a value; returns its slot, counted as one reference."""
        slot = Slot(id, what)
        try:
            self._keep([slot], [ray.put(self.to_value(packed))], "")
        except ray.exceptions.RayError as error:
            raise failures.error_of_get(self, error, slot, "") from None
        self._settle(slot)
        return slot

    def start_actor(
        self, creation: TaskSpec, *, name: str, class_name: str, methods: Mapping[str, Any],
        options: ActorOptions, cls: bytes, setup: bytes, request: SpawnRequest,
    ) -> RayActor:  # fmt: skip
        """Starts an actor, counted as one handle; returns at once."""
        from .process import AsyncShell, Shell

        slot = Slot(creation.id, name)
        cause = self._infeasible(f"actor {name}", demand(options), options.host)
        if cause is not None:
            self.note(creation.body_id, -1)
            error = ActorDiedError(name, cause=cause)
            self._keep([slot], [error], "")
            return self._register(RayActor(self, creation.id, name, error, class_name, options))
        is_async = has_async(packing.unpack(cls, f"the class {class_name}"))
        concurrency = options.max_concurrency or 1
        is_concurrent = is_async or concurrency > 1 or bool(options.concurrency_groups)
        restarts = options.max_restarts
        build = ActorBuild(
            id=creation.id, name=name, cls=cls, setup=setup, cores=request.cores,
            num_threads=request.num_threads, log=request.log,
            is_concurrent=is_concurrent,
            is_restarted=restarts != 0, checkpoint_every=options.checkpoint_every,
            max_task_retries=options.max_task_retries,
            concurrency_groups=dict(options.concurrency_groups),
        )  # fmt: skip
        inputs = ([creation.body_id] if creation.body_id else []) + list(creation.inputs)
        with self._lock:
            things = [self._entries[id].thing for id in inputs]
        call = Call(
            id=creation.id, name=creation.name, namespace=self.namespace, function="__init__",
            arguments=creation.arguments, arguments_stored=bool(creation.body_id),
            mentions=self.mentions(creation.refs), returns=1,
        )  # fmt: skip
        shell = AsyncShell if is_async else Shell
        groups = {"concurrency_groups": dict(options.concurrency_groups)}
        remote = ray.remote(**groups)(shell) if options.concurrency_groups else _remote(shell)
        # One thread is what Ray sets by itself; any other environment takes a new process.
        environment = dict(options.env)
        if request.num_threads > 1:
            threads = {name: request.environment[name] for name in THREAD_VARIABLES}
            environment = threads | environment
        naming = {"name": f"{options.namespace}/{options.name}"} if options.name else {}
        if is_concurrent or options.concurrency_groups:
            naming["max_concurrency"] = concurrency  # type: ignore[assignment]
        try:
            handle = remote.options(
                num_cpus=options.num_cpus, num_gpus=options.num_gpus,
                resources=dict(options.resources), max_restarts=restarts,
                max_task_retries=-1 if restarts else 0,  # the actor counts those of each call
                runtime_env={"env_vars": environment} if environment else None,
                scheduling_strategy=nodes.strategy(options.host), **naming,
            ).remote(build, call, *things)  # fmt: skip
        except ValueError as error:
            self.note(creation.body_id, -1)
            if not options.name or "name" not in str(error):
                raise
            raise NameTakenError(
                f"name={options.name!r}: an actor that lives has this name in the namespace "
                f"{options.namespace!r}. Take another name, or get_if_exists=True."
            ) from None
        if creation.body_id:
            self.note(creation.body_id, -1)
        target = Target(
            handle, is_journaled=restarts != 0 and not build.is_concurrent,
            groups={key: method.concurrency_group for key, method in methods.items()},
            known_groups=tuple(options.concurrency_groups),
        )  # fmt: skip
        if options.name:
            # Without Ray's handle, which would keep it alive.
            fields = creation.id, name, class_name, methods, replace(target, handle=None)
            self.ask_keeper("describe", target.id, fields)
        self._keep([slot], [target], target.id)
        return self._register(RayActor(self, creation.id, name, target, class_name, options))

    def _register(self, actor: RayActor) -> RayActor:
        self._actors[actor.key] = actor
        self._deaths[actor.death_slot] = actor.fate
        return actor

    def actor(self, id: bytes) -> RayActor | None:
        """Returns what the driver can do with an actor; None in other processes."""
        if not self.is_driver:
            return None
        actor = self._actors.get(id)
        if actor is None:
            entry = self._entries[id]
            actor = self._register(RayActor(self, id, entry.slot.call, entry.thing))
        return actor

    def request(self, method: str, *args: Any) -> Any:
        """Makes one of the requests that have no method of their own."""
        return getattr(self, f"_request_{method}")(*args)

    def _request_actor(self, namespace: str, name: str) -> tuple[Any, ...]:
        try:
            handle = ray.get_actor(f"{namespace}/{name}")
        except ValueError:
            names = [known for space, known in self._request_names() if space == namespace]
            raise ValueError(
                f"no actor is named {name!r} in namespace {namespace!r}. There are: "
                f"{', '.join(names) or 'none'}."
            ) from None
        deadline_s = time.monotonic() + _FETCH_S
        hex = handle._actor_id.hex()
        while not (fields := self.ask_keeper("described", hex)):  # its starter describes it soon
            if time.monotonic() > deadline_s:
                raise ValueError(f"actor {name!r} is not of this runtime. Take another name.")
            time.sleep(_POLL_S)
        id = fields[0]
        with self._lock:
            entry = self._entries.get(id)
            if entry is None:
                target = replace(fields[4], handle=handle)
                entry = self._entries[id] = Entry(Slot(id, fields[1]), target, hex)
                entry.count = 0
            if self.is_driver:
                entry.count += 1
        return tuple(fields[:4])

    def _request_names(self) -> list[tuple[str, str]]:
        names = [entry["name"] for entry in ray.util.list_named_actors(all_namespaces=True)
                 if entry["namespace"] == ray.get_runtime_context().namespace]  # fmt: skip
        return sorted(tuple(name.split("/", 1)) for name in names if "/" in name)

    def _request_resources(self) -> tuple[dict[str, float], dict[str, float]]:
        return nodes.countable(ray.cluster_resources()), nodes.countable(ray.available_resources())

    def _request_actors(self) -> list[tuple[Any, ...]]:
        return [actor.state_fields() for actor in self.all_actors()]

    def _request_cancel(self, id: bytes, force: bool) -> None:
        entry = self._entries[id]
        if not isinstance(entry.thing, BaseException):
            ray.cancel(entry.thing, force=force and not entry.actor, recursive=True)

    def _request_kill(self, id: bytes, no_restart: bool, reason: str) -> None:
        thing = self._entries[id].thing
        if not isinstance(thing, BaseException):
            if no_restart:
                self.ask_keeper("ending", thing.id, reason)
            ray.kill(thing.handle, no_restart=no_restart)

    # What the driver does with actors.

    def ask_actor(self, actor: RayActor, kind: Any, reason: str = "") -> None:
        """Asks an actor to come to an end; returns at once."""
        if actor.id:
            self.keeper.ask_stop.remote(actor.id, reason)

    def stop_actors(
        self, actors: Sequence[RayActor], grace: timedelta, reason: str,
        before_signals: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        """Asks actors to end, waits up to `grace` for earlier calls, then kills."""
        alive = [actor for actor in actors if not actor.dead]
        for actor in alive:
            self.ask_actor(actor, None, reason)
            actor.end()
        deadline_s = time.monotonic() + grace.total_seconds()
        while time.monotonic() < deadline_s and not all(actor.dead for actor in alive):
            time.sleep(_POLL_S / 5)
        if before_signals is not None and not all(actor.dead for actor in alive):
            before_signals()
        self.signal_actors(alive, 9, reason)

    def signal_actors(self, actors: Sequence[RayActor], number: int, reason: str) -> None:
        """Kills living actors, without restart, and waits for their end."""
        alive = [actor for actor in actors if not actor.dead]
        for actor in alive:
            self._request_kill(actor.key, True, reason)
        deadline_s = time.monotonic() + _FETCH_S
        while not all(actor.is_gone for actor in alive) and time.monotonic() < deadline_s:
            time.sleep(_POLL_S / 5)

    def all_actors(self) -> list[RayActor]:
        """Lists the actors that this process has handles of."""
        return list(self._actors.values())

    def drop_dead(self, actor: RayActor) -> None:
        """Does nothing, as the keeper drops dead actors by itself."""

    @property
    def ready(self) -> Slot:
        """Returns a filled slot, as no module is imported before it is needed."""
        slot = Slot(b"", "the start")
        slot.arrived()
        return slot

    def close(self) -> None:
        """Leaves the cluster, or ends it if it was started for this runtime alone."""
        nodes.leave()
        for entry in list(self._entries.values()):
            if entry.slot.state != HERE:
                entry.slot.fail(failures.ended(entry.slot.call))
        self._entries.clear()
