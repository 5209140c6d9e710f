"""Starts actors on Ray, finds them by their names, and ends them."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import ray

from gmi_drl.runtime.api.options import ActorOptions, demand
from gmi_drl.runtime.api.refs import Slot
from gmi_drl.runtime.api.signatures import has_async
from gmi_drl.runtime.driver.task import TaskSpec
from gmi_drl.runtime.errors import ActorDiedError, NameTakenError
from gmi_drl.runtime.wire import packing
from gmi_drl.runtime.wire.protocol import THREAD_VARIABLES, SpawnRequest

from . import nodes
from .actors import Fate, RayActor, Target
from .calls import ActorBuild, Call, remote_of
from .keeper import KeeperClient
from .objects import RayObjects
from .shells import AsyncShell, Shell

_POLL_S: Final = 0.01  # between two checks whether actors have ended
_DESCRIBED_POLL_S: Final = 0.05  # between two questions for what a named actor is
_DESCRIBED_S: Final = 30.0  # for the starter of a named actor to describe it
_DEATH_S: Final = 30.0  # for killed actors to be gone


class RayActorTable:
    """Knows the actors that this process has started or asked about.

    `fates` is where it puts the fate of each, by the slot of its death.
    """

    def __init__(
        self, namespace: str, is_driver: bool, keeper: KeeperClient, objects: RayObjects,
        fates: weakref.WeakKeyDictionary[Slot, Fate],
    ) -> None:  # fmt: skip
        self._namespace, self._is_driver = namespace, is_driver
        self._keeper, self._objects, self._fates = keeper, objects, fates
        self._actors: weakref.WeakValueDictionary[bytes, RayActor] = weakref.WeakValueDictionary()

    def start(
        self, creation: TaskSpec, *, name: str, class_name: str, methods: Mapping[str, Any],
        options: ActorOptions, cls: bytes, setup: bytes, request: SpawnRequest,
    ) -> RayActor:  # fmt: skip
        """Starts an actor, counted as one handle; returns at once."""
        things = self._objects.take_inputs(creation)
        id, slot = creation.id, Slot(creation.id, name)
        if cause := nodes.infeasible(f"actor {name}", demand(options), options.host):
            error = ActorDiedError(name, cause=cause)
            self._objects.keep([slot], [error])
            return self._register(RayActor(self._keeper, id, name, error, class_name, options))
        is_async = has_async(packing.unpack(cls, f"the class {class_name}"))
        concurrency, groups = options.max_concurrency or 1, dict(options.concurrency_groups)
        build = ActorBuild(
            id=id, name=name, cls=cls, setup=setup, cores=request.cores,
            num_threads=request.num_threads, log=request.log,
            is_concurrent=is_async or concurrency > 1 or bool(groups),
            is_restarted=options.max_restarts != 0, checkpoint_every=options.checkpoint_every,
            max_task_retries=options.max_task_retries, concurrency_groups=groups,
        )  # fmt: skip
        call = Call.of(creation, self._namespace, self._objects.mentions(creation.refs))
        shell = AsyncShell if is_async else Shell
        remote = ray.remote(concurrency_groups=groups)(shell) if groups else remote_of(shell)
        try:
            placed = remote.options(**_ray_options(options, request, build))
            handle = placed.remote(build, call, *things)
        except ValueError as error:
            if not options.name or "name" not in str(error):
                raise
            raise NameTakenError(
                f"name={options.name!r}: an actor that lives has this name in the namespace "
                f"{options.namespace!r}. Take another name, or get_if_exists=True."
            ) from None
        target = Target(
            handle, is_journaled=build.is_restarted and not build.is_concurrent,
            groups={key: method.concurrency_group for key, method in methods.items()},
            known_groups=tuple(groups),
        )  # fmt: skip
        if options.name:
            # Without Ray's handle, which would keep it alive.
            fields = id, name, class_name, methods, replace(target, handle=None)
            self._keeper.ask("describe", target.id, fields)
        self._objects.keep([slot], [target], target.id)
        return self._register(RayActor(self._keeper, id, name, target, class_name, options))

    def _register(self, actor: RayActor) -> RayActor:
        self._actors[actor.key] = actor
        self._fates[actor.death_slot] = actor.fate
        return actor

    def actor(self, id: bytes) -> RayActor | None:
        """Returns what the driver can do with an actor; None in other processes."""
        if not self._is_driver:
            return None
        if (actor := self._actors.get(id)) is not None:
            return actor
        entry = self._objects.entries[id]
        return self._register(RayActor(self._keeper, id, entry.slot.call, entry.thing))

    def all_actors(self) -> list[RayActor]:
        """Lists the actors that this process has handles of."""
        return list(self._actors.values())

    def find(self, namespace: str, name: str) -> tuple[Any, ...]:
        """Returns the fields of a handle to a named actor; for the driver it is counted."""
        try:
            handle = ray.get_actor(f"{namespace}/{name}")
        except ValueError:
            names = [known for space, known in self.names() if space == namespace]
            raise ValueError(
                f"no actor is named {name!r} in namespace {namespace!r}. There are: "
                f"{', '.join(names) or 'none'}."
            ) from None
        deadline_s = time.monotonic() + _DESCRIBED_S
        hex = handle._actor_id.hex()
        while not (fields := self._keeper.ask("described", hex)):  # its starter describes it soon
            if time.monotonic() > deadline_s:
                raise ValueError(f"actor {name!r} is not of this runtime. Take another name.")
            time.sleep(_DESCRIBED_POLL_S)
        id, call, class_name, methods, target = fields
        self._objects.hold(id, call, replace(target, handle=handle), hex, int(self._is_driver))
        return id, call, class_name, methods

    def names(self) -> list[tuple[str, str]]:
        """Lists the namespaces and names of living actors."""
        names = [entry["name"] for entry in ray.util.list_named_actors(all_namespaces=True)
                 if entry["namespace"] == ray.get_runtime_context().namespace]  # fmt: skip
        return sorted(tuple(name.split("/", 1)) for name in names if "/" in name)

    # How actors end.

    def ask(self, actor: RayActor, kind: Any, reason: str = "") -> None:
        """Asks an actor to come to an end; returns at once."""
        if actor.id:
            self._keeper.handle.ask_stop.remote(actor.id, reason)

    def stop(
        self, actors: Sequence[RayActor], grace: timedelta, reason: str,
        before_signals: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        """Asks actors to end, waits up to `grace` for earlier calls, then kills."""
        alive = [actor for actor in actors if not actor.dead]
        for actor in alive:
            self.ask(actor, None, reason)
            actor.end()
        deadline_s = time.monotonic() + grace.total_seconds()
        while time.monotonic() < deadline_s and not all(actor.dead for actor in alive):
            time.sleep(_POLL_S)
        if before_signals is not None and not all(actor.dead for actor in alive):
            before_signals()
        self.signal(alive, 9, reason)

    def signal(self, actors: Sequence[RayActor], number: int, reason: str) -> None:
        """Kills living actors, without restart, and waits for their end."""
        alive = [actor for actor in actors if not actor.dead]
        for actor in alive:
            self.kill(actor.key, True, reason)
        deadline_s = time.monotonic() + _DEATH_S
        while not all(actor.is_gone for actor in alive) and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)

    def kill(self, id: bytes, no_restart: bool, reason: str) -> None:
        """Kills an actor; returns at once."""
        thing = self._objects.entries[id].thing
        if not isinstance(thing, BaseException):
            if no_restart:
                self._keeper.ask("ending", thing.id, reason)
            ray.kill(thing.handle, no_restart=no_restart)

    def drop_dead(self, actor: RayActor) -> None:
        """Does nothing, as the keeper drops dead actors by itself."""


def _ray_options(options: ActorOptions, request: SpawnRequest, build: ActorBuild) -> dict[str, Any]:
    """Returns what Ray is told of an actor."""
    # One thread is what Ray sets by itself; any other environment takes a new process.
    environment = dict(options.env)
    if request.num_threads > 1:
        threads = {name: request.environment[name] for name in THREAD_VARIABLES}
        environment = threads | environment
    chosen: dict[str, Any] = {}
    if options.name:
        chosen["name"] = f"{options.namespace}/{options.name}"
    if build.is_concurrent:
        chosen["max_concurrency"] = options.max_concurrency or 1
    return dict(
        num_cpus=options.num_cpus, num_gpus=options.num_gpus, resources=dict(options.resources),
        max_restarts=options.max_restarts,
        max_task_retries=-1 if build.is_restarted else 0,  # the actor counts those of each call
        runtime_env={"env_vars": environment} if environment else None,
        scheduling_strategy=nodes.strategy(options.host), **chosen,
    )  # fmt: skip
