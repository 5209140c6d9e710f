"""Steps the physics of N environments on several threads.

Why not `mujoco.rollout`, MuJoCo's own batch: it gives back neither the warm start of the solver
nor what Gymnasium reads beside the state (cfrc_ext after mj_rnePostConstraint; xpos, xipos and
cinert as they lie after the last Runge-Kutta stage), so its environments drift from Gymnasium's
within a few steps. One MjData per environment has all of it, and costs no speed: mj_step drops the
GIL, so plain threads run truly side by side.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import mujoco  # type: ignore[import-untyped]

_Todo = Iterator[mujoco.MjData]
_Inbox = queue.SimpleQueue[_Todo | None]
_Done = queue.SimpleQueue[BaseException | None]


class PhysicsPool:
    """Steps every MjData of a batch. `threads` counts the caller's own; with one there is no pool.

    Environments are handed out one by one from a shared iterator, because their cost differs
    (contacts) and a fixed split would wait for the unluckier half. The threads end with `close`,
    or when the pool is forgotten.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        datas: Sequence[mujoco.MjData],
        nstep: int,
        rne_post: bool,
        threads: int,
    ) -> None:
        self._datas = datas
        self._work = partial(_advance, model, nstep, rne_post)
        self._inboxes: list[_Inbox] = []
        self._done: _Done = queue.SimpleQueue()
        self._running = 0  # threads that have not reported the end of their share yet
        started: list[threading.Thread] = []
        for i in range(1, min(threads, len(datas))):
            inbox: _Inbox = queue.SimpleQueue()
            thread = threading.Thread(
                target=_serve, args=(inbox, self._done, self._work), name=f"physics{i}", daemon=True
            )
            thread.start()
            self._inboxes.append(inbox)
            started.append(thread)
        self.close = weakref.finalize(self, _stop, self._inboxes, started)

    def step(self) -> None:
        """Advances every environment by `nstep` time steps; returns when all have."""
        self._settle()  # after a Ctrl-C in the middle of the last step
        todo = iter(self._datas)
        for inbox in self._inboxes:
            inbox.put(todo)
            self._running += 1
        failure: BaseException | None = None
        try:
            self._work(todo)
        except BaseException as error:  # first let the others finish
            failure = error
        failure = self._settle() or failure
        if failure is not None:
            raise failure

    def _settle(self) -> BaseException | None:
        failure = None
        while self._running:
            failure = self._done.get() or failure
            self._running -= 1
        return failure


def _advance(model: mujoco.MjModel, nstep: int, rne_post: bool, todo: _Todo) -> None:
    step, rne = mujoco.mj_step, mujoco.mj_rnePostConstraint
    if rne_post:
        for data in todo:
            step(model, data, nstep)
            rne(model, data)
    else:
        for data in todo:
            step(model, data, nstep)


def _serve(inbox: _Inbox, done: _Done, work: Callable[[_Todo], None]) -> None:
    while (todo := inbox.get()) is not None:
        try:
            work(todo)
        except BaseException as error:
            done.put(error)
        else:
            done.put(None)


def _stop(inboxes: list[_Inbox], threads: list[threading.Thread]) -> None:
    for inbox in inboxes:
        inbox.put(None)
    for thread in threads:
        thread.join()
