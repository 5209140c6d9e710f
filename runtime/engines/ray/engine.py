"""Is the runtime of a process on a Ray cluster: of the driver, of tasks, and of actors alike.

It takes the place of `driver.Driver` and `process.Connection` on one machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import ray

from gmi_drl.runtime.api.options import ActorOptions, TaskOptions
from gmi_drl.runtime.api.refs import Slot
from gmi_drl.runtime.driver.function_table import RecentFunctions
from gmi_drl.runtime.driver.task import STREAMING, TaskSpec
from gmi_drl.runtime.errors import NotOnThisEngine, OutOfResources
from gmi_drl.runtime.wire import packing
from gmi_drl.runtime.wire.closures import Code

from . import interrupts, nodes
from .actor_table import RayActorTable
from .calls import Call, remote_of
from .keeper import KeeperClient
from .objects import RayObjects
from .tasks import run_task, run_task_streaming
from .waiting import Waiter


class RayEngine:
    """Is the runtime of one process; its methods may be called from any thread.

    `keeper` is Ray's handle of the session's keeper, which the driver has started.
    """

    reads = True  # `notify` fills slots without a thread that waits

    def __init__(self, namespace: str, keeper: Any = None) -> None:
        self.is_driver = keeper is not None
        self.namespace = namespace
        self.keeper = KeeperClient(keeper)
        self.functions = RecentFunctions()  # Ray's references of what was packed here
        self._feasible: set[tuple[Any, ...]] = set()

        self.objects = objects = RayObjects(self.keeper)
        self.note, self.slot = objects.note, objects.slot
        self.put, self.stored = objects.put, objects.stored

        waiter = Waiter(objects)
        self.want, self.unwant = waiter.want, waiter.unwant
        self.notify, self.block = waiter.notify, waiter.block

        actors = RayActorTable(namespace, self.is_driver, self.keeper, objects, waiter.fates)
        self.start_actor, self.actor = actors.start, actors.actor
        self.all_actors, self.drop_dead = actors.all_actors, actors.drop_dead
        self.ask_actor, self.stop_actors = actors.ask, actors.stop
        self.signal_actors = actors.signal
        self._requests: Mapping[str, Callable[..., Any]] = {
            "actor": actors.find,
            "names": actors.names,
            "actors": lambda: [actor.state_fields() for actor in actors.all_actors()],
            "kill": actors.kill,
            "cancel": objects.cancel,
            "resources": _resources,
        }

    def taken(self, id: bytes, generator: bytes) -> None:
        """Does nothing, as Ray keeps no result that was read and dropped."""

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
        objects = self.objects
        slots = [Slot(id, task.name) for id in task.result_ids()]
        target = objects.entries[task.actor].thing if task.actor else None
        things = objects.take_inputs(task)
        errors = [thing for thing in (target, *things) if isinstance(thing, BaseException)]
        error = errors[0] if errors else self._infeasible(task) if target is None else None
        if error is not None:
            for slot in slots:
                slot.fail(error)
            objects.keep(slots, [error] * len(slots))
            return slots
        call = Call.of(task, self.namespace, objects.mentions(task.refs))
        if target is not None:
            name, submit = target.id, partial(target.submit, call, task.options, things)
        else:
            assert code is not None
            name, submit = "", partial(self._submit_task, call, task, code, things)
        results = interrupts.submitted(submit)
        if task.returns == STREAMING:
            objects.keep_stream(task, slots, results, name)
        else:
            objects.keep(slots, results if task.returns > 1 else [results], name)
        return slots

    def _submit_task(self, call: Call, task: TaskSpec, code: Code, things: list[Any]) -> Any:
        chosen: TaskOptions = task.options
        function = remote_of(run_task_streaming if task.returns == STREAMING else run_task)
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

    def _infeasible(self, task: TaskSpec) -> OutOfResources | None:
        """Returns the error of a call that no host could ever run; Ray would let it wait."""
        host = task.options.host
        key = (*sorted(task.demand.items()), host)
        if key not in self._feasible and (error := nodes.infeasible(task.name, task.demand, host)):
            return error
        self._feasible.add(key)
        return None

    def request(self, method: str, *args: Any) -> Any:
        """Makes one of the requests that have no method of their own."""
        return self._requests[method](*args)

    @property
    def ready(self) -> Slot:
        """Returns a filled slot, as no module is imported before it is needed."""
        slot = Slot(b"", "the start")
        slot.arrived()
        return slot

    def close(self) -> None:
        """Leaves the cluster, or ends it if it was started for this runtime alone."""
        nodes.leave()
        self.objects.close()


def _resources() -> tuple[dict[str, float], dict[str, float]]:
    """Returns the resources of the cluster, and what of them is free."""
    return nodes.countable(ray.cluster_resources()), nodes.countable(ray.available_resources())
