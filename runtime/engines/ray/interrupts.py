"""Interrupts a task that Ray cancels, also while it sleeps or waits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import ray

from gmi_drl.runtime.api import call_context
from gmi_drl.runtime.errors import TaskCancelledError

_TRIES: Final = 200  # for the task to notice; a signal that comes just before it waits is lost
_TRY_S: Final = 0.005


class CallInterrupted(TaskCancelledError, KeyboardInterrupt):
    """Is raised in a cancelled task; Ray's waits in it end for a KeyboardInterrupt only."""


class Interruptible:
    """Surrounds a task in the main thread; raises `CallInterrupted` there once if it is cancelled.

    Ray has Python call the handler of SIGINT at the task's next instruction (`interrupt_main`), for
    which a task that sleeps would have to wake up. Python tells its wakeup descriptor, too. There a
    thread listens, which interrupts what the main thread waits for by a signal of its own.
    """

    _running: Interruptible | None = None
    _wakeup = -1

    def __init__(self) -> None:
        self._is_noticed = False

    def __enter__(self) -> None:
        cls = Interruptible
        if cls._wakeup < 0:
            heard, cls._wakeup = os.pipe()
            os.set_blocking(cls._wakeup, False)
            threading.Thread(
                target=cls._listen, args=(heard,), name="gmi_drl-hear", daemon=True
            ).start()
            signal.signal(signal.SIGUSR1, lambda *_: None)
            signal.signal(signal.SIGINT, cls._interrupt)
        signal.set_wakeup_fd(cls._wakeup, warn_on_full_buffer=False)
        cls._running = self

    def __exit__(self, *_: object) -> None:
        Interruptible._running = None

    @classmethod
    def _interrupt(cls, number: int, frame: Any) -> None:
        task = cls._running
        if task is None:
            call_context.mark_cancelled()
            signal.default_int_handler(number, frame)
        else:
            task._is_noticed = True
            _notice(call_context.context().cancelled)

    @classmethod
    def _listen(cls, heard: int) -> None:
        main = threading.main_thread().ident or 0
        while signals := os.read(heard, 1024):
            task = cls._running if signal.SIGINT in signals else None
            for _ in range(_TRIES):
                if task is None or task._is_noticed or task is not cls._running:
                    break
                signal.pthread_kill(main, signal.SIGUSR1)
                time.sleep(_TRY_S)


@contextlib.contextmanager
def left_to_ray() -> Iterator[None]:
    """Surrounds what Ray does itself within a task; a KeyboardInterrupt alone ends that."""
    task, Interruptible._running = Interruptible._running, None
    try:
        yield
    finally:
        Interruptible._running = task


@contextlib.contextmanager
def wait() -> Iterator[None]:
    """Surrounds a wait in Ray, which Ray ends after a second in a call that is cancelled.

    Raises `CallInterrupted` once for each call. Later waits, in which it cleans up, end in silence.
    """
    knew = call_context.context().cancelled
    try:
        yield
    except KeyboardInterrupt:
        if ray.get_runtime_context().worker.mode != ray.WORKER_MODE:
            raise
        _notice(knew)


def get(reference: Any, timeout_s: float | None = None) -> Any:
    """Returns a value of Ray's, also in a call that is cancelled and cleans up."""
    while True:
        with wait():
            return ray.get(reference, timeout=timeout_s)


def submitted(submit: Callable[[], Any]) -> Any:
    """Returns what `submit` does, which makes a call.

    Ray cancels what a cancelled call has called a moment after it has interrupted it. What that
    calls to clean up it does not take for one of its calls, as it comes from another thread.
    """
    if not _is_cancelled():
        return submit()
    with ThreadPoolExecutor(1) as apart:
        return apart.submit(submit).result()


def _is_cancelled() -> bool:
    if call_context.context().cancelled:
        return True
    with contextlib.suppress(RuntimeError):  # there is no loop
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return False


def _notice(knew: bool) -> None:
    """Raises `CallInterrupted` in a call that is cancelled, unless it knew before."""
    if not knew:
        call_context.mark_cancelled()
        raise CallInterrupted(f"{call_context.context().name} was cancelled")


def is_end_of_cancelled(error: BaseException) -> bool:
    """Tells whether a call ends by this exception because it is cancelled."""
    return isinstance(error, CallInterrupted) or (
        isinstance(error, TaskCancelledError | KeyboardInterrupt)
        and call_context.context().cancelled
    )
