"""Runs all GMIs of a run as one gang: started together, watched, called, stopped together."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from gmi_drl import runtime
from gmi_drl.errors import GmiDrlError
from gmi_drl.runtime import ActorDiedError, ActorHandle, ObjectRef, TaskError

from .backends.backend import backend_of
from .errors import GmiDied, GmiTimeout
from .faults import FaultWaves, LostDevices
from .process import Arguments, GmiProcess, LayoutSlices, grouped, start_process

if TYPE_CHECKING:
    from gmi_drl.placement.layout import Layout

# What every GMI imports; a launcher adds what its roles need.
PRELOAD: Final = ("numpy", "torch", "gmi_drl.gmi", "gmi_drl.placement")
_SETTLE: Final = timedelta(milliseconds=100)  # waited for more deaths, to name the first of them
# A peer may notice a death, and raise, before the dead process is reaped: a death that is seen at
# most this much later still counts as the first.
_REAP_S: Final = 0.2
_FAILED_GRACE: Final = timedelta(milliseconds=300)  # peers of a dead GMI cannot finish anyway
_MAX_REASON: Final = 200  # characters of an error in the reason why others are stopped
# How long GMIs may finish their iteration where a kill can harm others.
_FINISH: Final = timedelta(seconds=2.5)


class Gang:
    """Makes the slices of `layout`, and starts an actor of class `body` for each GMI in its own.

    Of a layout of several hosts it starts the GMIs of `host`, which is this machine.

    `arguments(spec)` gives the constructor's arguments (default: the spec), `logs` is the folder
    for `gmi<id>.log`, `env` are variables for all; gangs that live at once have a `name` each,
    instead of "gmi". A runtime that is not running is started, with
    `preload`, and ended in `stop`. Where GMIs are threads, those of a device share an actor.

    A GMI whose process dies is started again in its slice, with the call it was in, up to
    `max_restarts` times, and with it those that a fault of its GPU spreads to. As soon as one dies
    for good, or raises, `wait`, `call` and `check` stop the others and raise GmiDied. With
    `shrinks` the end of one whose device is lost is no failure: `lost_devices` tells of it, and the
    caller is to `give_up` the GMIs there. As a context manager it stops everything at the end; on
    Ctrl-C it asks all to stop and waits for `grace`, and a second Ctrl-C kills at once.
    """

    def __init__(
        self, layout: Layout, body: type, arguments: Arguments | None = None, *,
        logs: Path | None = None, env: Mapping[str, str] | None = None,
        grace: timedelta = timedelta(seconds=5), preload: Sequence[str] = PRELOAD,
        max_restarts: int = 0, name: str = "gmi", host: int = 0, shrinks: bool = False,
    ) -> None:  # fmt: skip
        self.layout, self.grace, self._logs, self._name = layout, grace, logs, name
        self._failure: GmiDied | None = None
        self._cause: BaseException | None = None
        self._stopped = ""
        self.asked_to_stop = False  # by `request_stop`
        self._pending: dict[int, ObjectRef] = {}
        self._processes: list[GmiProcess] = []
        self._process_of: dict[int, GmiProcess] = {}
        self._handles: dict[int, ActorHandle] = {}  # by gmi_id; GMIs that are threads share one
        self._num_reported: dict[int, int] = {}  # restarts of GMIs that `restarts` has returned
        specs = layout.on_host(host)
        self._waves = FaultWaves(specs, self._handles, self._is_dead, self._fence)
        self._lost = LostDevices(specs if shrinks else (), layout.topology, self._deaths)
        self._given_up: set[int] = set()
        self._specs = {spec.gmi_id: spec for spec in specs}
        self._slices: LayoutSlices | None = None
        self._owns_runtime = not runtime.is_initialized()
        if logs is not None:
            logs.mkdir(parents=True, exist_ok=True)
        try:
            if self._owns_runtime:
                runtime.init(preload)
            self._slices = LayoutSlices(layout, specs)
            for specs in grouped(layout, self._specs):
                process = start_process(
                    specs, layout, self._slices, body,
                    arguments or (lambda spec: (spec,)),
                    name=name, logs=logs, env=env, max_restarts=max_restarts,
                )  # fmt: skip
                self._processes.append(process)
                self._process_of |= dict.fromkeys(process.gmi_ids, process)
                self._handles |= dict.fromkeys(process.gmi_ids, process.handle)
        except BaseException:
            self.kill()
            raise

    def start(self, method: str, *args: Any, **kwargs: Any) -> None:
        """Calls `method` on every GMI and returns at once; `wait` waits for the answers."""
        gmi_ids = [gmi_id for gmi_id in self._specs if gmi_id not in self._given_up]
        self.start_each(method, dict.fromkeys(gmi_ids, args), **kwargs)

    def start_each(self, method: str, args: Mapping[int, Sequence[Any]], **kwargs: Any) -> None:
        """Calls `method` on the GMIs that are keys of `args`, each with its own arguments."""
        self.check()
        if self._pending:
            raise RuntimeError("the gang is busy: wait() for the call before it.")
        for gmi_id, arguments in args.items():
            self._pending[gmi_id] = self._process_of[gmi_id].call(gmi_id, method, arguments, kwargs)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits until every GMI has answered; False when `timeout` passes before that."""
        deadline_s = None if timeout is None else time.monotonic() + timeout.total_seconds()
        while True:
            self.check()
            if all(ref.slot.done for ref in self._pending.values()):
                return True
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return False
            runtime.wait(self.to_come(), 1, self._waves.look_s(left_s))

    def to_come(self) -> list[ObjectRef]:
        """Returns references to what `wait` waits for: GMIs' answers, and ends of processes."""
        answers = [ref for ref in self._pending.values() if not ref.slot.done]
        return [*answers, *self._pending_deaths()]

    def results(self) -> dict[int, Any]:
        """Returns each GMI's answer by gmi_id, in the layout's order, after `wait` was True."""
        pending, self._pending = self._pending, {}
        return {gmi_id: runtime.get(ref) for gmi_id, ref in pending.items()}

    def call(self, method: str, *args: Any, timeout: timedelta | None = None, **kwargs: Any) -> Any:
        """Returns every GMI's answer in the layout's order; late ones are dropped (GmiTimeout)."""
        self.start(method, *args, **kwargs)
        if self.wait(timeout):
            return list(self.results().values())
        late = [gmi_id for gmi_id, ref in self._pending.items() if not ref.slot.done]
        self._pending = {}
        names = ", ".join(f"gmi {gmi_id} (GPU {self._specs[gmi_id].gpu_id})" for gmi_id in late)
        limit_s = timeout.total_seconds() if timeout else 0.0
        raise GmiTimeout(f"{method} timed out after {limit_s:g} s: {names} did not answer")

    def check(self) -> None:
        """Raises GmiDied if a GMI has died or raised; returns at once."""
        if self._failure is not None:
            raise self._failure from self._cause
        if self._stopped:
            raise RuntimeError("the gang is stopped. Make a new one.")
        self._waves.spread()
        if self._failures():
            self._fail()

    def records(self) -> list[tuple[int, Any]]:
        """Returns the (gmi_id, record) that GMIs have emitted since the last call, in order."""
        return [record for process in self._processes for record in process.records()]

    def restarts(self) -> list[tuple[int, ActorDiedError]]:
        """Returns the deaths since the last call after which a GMI was started again."""
        restarts = []
        for gmi_id in self._specs:
            deaths = runtime.deaths(self._handles[gmi_id])
            restarts += [(gmi_id, death) for death in deaths[self._num_reported.get(gmi_id, 0) :]]
            self._num_reported[gmi_id] = len(deaths)
        return restarts

    def at_work(self) -> dict[int, int | None]:
        """Returns the GMIs that have not answered `start`, with the pid of their process."""
        return {
            gmi_id: runtime.process_id(self._handles[gmi_id])
            for gmi_id, ref in self._pending.items()
            if not ref.slot.done
        }

    def end(self, gmi_id: int, why: str) -> None:
        """Kills the process of a GMI, which is restarted if it has restarts left."""
        self._fence(self._process_of[gmi_id].gmi_ids)
        runtime.kill(self._handles[gmi_id], why, no_restart=False)

    def lost_devices(self) -> Mapping[int, str]:
        """Returns the lost devices, if the gang `shrinks`, by index, each with how it was lost."""
        return self._lost.look()

    def give_up(self, gmi_ids: Iterable[int], why: str) -> None:
        """Kills these GMIs for good, which counts as no failure; nobody waits for them."""
        given_up = set(gmi_ids) - self._given_up
        self._given_up |= given_up
        self._fence(given_up)
        runtime.kill([self._handles[gmi_id] for gmi_id in sorted(given_up)], why)
        for gmi_id in given_up:
            self._pending.pop(gmi_id, None)

    def write_stacks(self, gmi_id: int) -> bool:
        """Has a GMI's process write its Python stacks to its log; False if it does not soon."""
        return runtime.write_stacks(self._handles[gmi_id])

    def pids(self) -> dict[int, int]:
        """Returns the pid of each GMI that runs, by gmi_id; threads of a process have the same."""
        running = [gmi_id for gmi_id in self._specs if not self._is_dead(gmi_id)]
        pids = {gmi_id: runtime.process_id(self._handles[gmi_id]) for gmi_id in running}
        return {gmi_id: pid for gmi_id, pid in pids.items() if pid is not None}

    @property
    def is_stopped(self) -> bool:
        """Tells whether the gang was stopped or killed, or is being stopped."""
        return bool(self._stopped)

    def request_stop(self) -> None:
        """Asks every GMI to end (`runtime.stop_requested()`); the next Ctrl-C kills."""
        self.asked_to_stop = True
        for process in self._processes:
            runtime.request_stop(process.handle)

    def stop(self, grace: timedelta | None = None, reason: str = "it was stopped") -> None:
        """Asks all to stop, and ends those that have not after `grace`; nothing is left.

        KeyboardInterrupt while waiting kills them at once. Calling it again is fine.
        """
        self._stopped = self._stopped or reason
        try:
            given = self.grace if grace is None else grace
            runtime.stop(self._actors(), given, reason, self._fence)
        except BaseException:
            self.kill()
            raise
        self._release()

    def kill(self) -> None:
        """Ends all of them with SIGKILL, at once.

        Where a kill can leave a server stuck (MPS) they are asked to end before.
        """
        was_asked = self.asked_to_stop or bool(self._stopped)
        self._stopped = self._stopped or "it was killed"
        with contextlib.ExitStack() as stack:  # also on Ctrl-C
            stack.callback(self._release)  # after all are gone
            stack.callback(runtime.kill, self._actors())
            stack.callback(self._fence)
            if not was_asked and any(
                backend_of(spec.backend).kill_can_wedge for spec in self._specs.values()
            ):
                runtime.stop(self._actors(), _FINISH, self._stopped, self._fence)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        if kind is KeyboardInterrupt and self.asked_to_stop:
            self.kill()
        else:
            self.stop(reason=f"it was {'interrupted' if kind is KeyboardInterrupt else 'stopped'}")

    def _release(self) -> None:
        """Releases the slices after all processes, and ends the runtime if the gang started it."""
        try:
            if self._slices is not None:
                self._slices.release()
        finally:
            if self._owns_runtime:
                self._owns_runtime = False
                runtime.shutdown()

    def _fence(self, gmi_ids: Iterable[int] | None = None) -> None:
        """Detaches living GMIs (of all, or of `gmi_ids`) from what they share, before a kill."""
        alive = []
        for gmi_id in self._handles if gmi_ids is None else gmi_ids:
            pid = runtime.process_id(self._handles[gmi_id])
            if pid is not None and not self._is_dead(gmi_id):
                alive.append((self._specs[gmi_id], pid))
        if self._slices is not None:
            self._slices.fence_all(alive)

    def _is_dead(self, gmi_id: int) -> bool:
        process = self._process_of.get(gmi_id)
        return process is not None and process.death.slot.done

    def _deaths(self, gmi_id: int) -> list[ActorDiedError]:
        """Returns how a GMI's processes have ended, also the last one if the GMI is dead."""
        if gmi_id not in self._handles:
            return []
        last_death = [runtime.get(self._process_of[gmi_id].death)] if self._is_dead(gmi_id) else []
        return [*runtime.deaths(self._handles[gmi_id]), *last_death]

    def _actors(self) -> list[ActorHandle]:
        return [process.handle for process in self._processes]

    def _pending_deaths(self) -> list[ObjectRef]:
        return [process.death for process in self._processes if not process.death.slot.done]

    def _failures(self) -> dict[int, tuple[float, TaskError | ActorDiedError]]:
        """Returns the failed GMIs by gmi_id, each with its monotonic time and its error."""
        failures: dict[int, tuple[float, TaskError | ActorDiedError]] = {}
        for gmi_id, process in self._process_of.items():
            if process.death.slot.done:
                death: ActorDiedError = runtime.get(process.death)
                cause, failed_s = death.cause, death.died_s - _REAP_S
                if isinstance(cause, TaskError):
                    failed_s = cause.raised_s
                failures[gmi_id] = (failed_s, death)
        for gmi_id, ref in self._pending.items():
            if ref.slot.done:
                error = ref.slot.error()
                if isinstance(error, TaskError):
                    failures[gmi_id] = (error.raised_s, error)
                elif isinstance(error, ActorDiedError) and gmi_id not in failures:
                    failures[gmi_id] = (error.died_s - _REAP_S, error)
        lost = self.lost_devices()  # asked after the deaths above, so that it knows of each
        expected = {spec.gmi_id for spec in self._specs.values() if spec.gpu_id in lost}
        expected |= self._given_up
        return {gmi_id: failure for gmi_id, failure in failures.items() if gmi_id not in expected}

    def _fail(self) -> None:
        """Finds the GMI that failed first, stops the others, and raises.

        It returns where deaths that come to light meanwhile show that its device is lost.
        """
        if alive := self._pending_deaths():
            runtime.wait(alive, len(alive), _SETTLE)
        if not (failures := self._failures()):
            return

        def order(gmi_id: int) -> tuple[bool, float]:
            failed_s, error = failures[gmi_id]
            origin = origin_of(error if isinstance(error, TaskError) else error.cause)
            return isinstance(origin, GmiDrlError) and origin.caused_by_peer, failed_s

        first, *others = sorted(failures, key=order)
        error = failures[first][1]
        task_error = error if isinstance(error, TaskError) else error.cause
        healthy = tuple(gmi_id for gmi_id in self._specs if gmi_id not in (first, *others))
        self._stopped = f"stopped because of gmi {first}"
        if isinstance(task_error, TaskError):
            self._stopped += f": it raised {_first_line(task_error)}"
        if isinstance(error.cause, TimeoutError):  # a healthy GMI may hang: its stacks tell where
            for gmi_id in healthy:
                runtime.write_stacks(self._handles[gmi_id], timedelta(0))
        with contextlib.suppress(Exception):
            runtime.stop(self._actors(), _FAILED_GRACE, self._stopped, self._fence)
        handle = self._handles[first]
        self._cause = task_error or error
        death = error if isinstance(error, ActorDiedError) and task_error is None else None
        text, tail = "", runtime.log_tail(handle)
        if isinstance(task_error, TaskError):
            text = task_error.remote_traceback
            if getattr(task_error.cause, "told_alone", False):  # its traceback is in the log
                text, tail = f"{type(task_error.cause).__name__}: {task_error.cause}", ""
        self._failure = GmiDied(
            first, "+".join(self._specs[first].roles), exit_code=death.exit_code if death else None,
            signal=death.signal if death else None, log_tail=tail, error=text, others=tuple(others),
            stopped=healthy, deaths=tuple(death.how() for death in runtime.deaths(handle)),
            reason=death.reason if death else "",
            log="" if self._logs is None else str(self._logs / f"{self._name}{first}.log"),
        )  # fmt: skip
        raise self._failure from self._cause


def origin_of(error: BaseException | None) -> BaseException | None:
    """Returns the exception at the origin of nested TaskErrors; None if it was not sent."""
    while isinstance(error, TaskError):
        error = error.cause
    return error


def _first_line(error: TaskError) -> str:
    """Returns the class and text of an exception on one line: ValueError: on purpose."""
    origin = origin_of(error)
    if origin is None:  # it could not be sent
        return (error.remote_traceback.strip().splitlines() or ["an error"])[-1][:_MAX_REASON]
    text = ""
    with contextlib.suppress(Exception):  # a class of the user's may have any __str__
        text = str(origin).strip()
    line = (text.splitlines() or [""])[0]
    return f"{type(origin).__name__}: {line}".removesuffix(": ")[:_MAX_REASON]
