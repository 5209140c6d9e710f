"""Physics of N environments stepped on several threads.

Why not `mujoco.rollout`, MuJoCo's own batch: it gives back neither the warm start of the solver
nor what Gymnasium reads beside the state (cfrc_ext after mj_rnePostConstraint; xpos, xipos and
cinert as they lie after the last Runge-Kutta stage), so its environments drift from Gymnasium's
within a few steps. One MjData per environment has all of it, and costs no speed: mj_step drops the
GIL, so plain threads run truly side by side.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence

import mujoco  # type: ignore[import-untyped]


class PhysicsPool:
    """Steps every MjData of a batch. `threads` counts the caller's own; with one there is no pool.

    Environments are handed out one by one from a shared iterator, because their cost differs
    (contacts) and a fixed split would wait for the unluckier half.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        datas: Sequence[mujoco.MjData],
        nstep: int,
        rne_post: bool,
        threads: int,
    ) -> None:
        self._model, self._datas, self._nstep, self._rne_post = model, datas, nstep, rne_post
        self._inboxes: list[queue.SimpleQueue[Iterator[mujoco.MjData] | None]] = []
        self._done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        for i in range(1, min(threads, len(datas))):
            inbox: queue.SimpleQueue[Iterator[mujoco.MjData] | None] = queue.SimpleQueue()
            thread = threading.Thread(
                target=_serve, args=(inbox, self._done, self._work), name=f"physics{i}", daemon=True
            )
            thread.start()
            self._inboxes.append(inbox)
            self._threads.append(thread)

    def step(self) -> None:
        """Advance every environment by `nstep` time steps; returns when all have."""
        todo = iter(self._datas)
        for inbox in self._inboxes:
            inbox.put(todo)
        failure: BaseException | None = None
        try:
            self._work(todo)
        except BaseException as error:  # Ctrl-C as well: first let the others finish
            failure = error
        for _ in self._inboxes:
            failure = self._done.get() or failure
        if failure is not None:
            raise failure

    def _work(self, todo: Iterator[mujoco.MjData]) -> None:
        model, nstep, step = self._model, self._nstep, mujoco.mj_step
        if self._rne_post:
            rne = mujoco.mj_rnePostConstraint
            for data in todo:
                step(model, data, nstep)
                rne(model, data)
        else:
            for data in todo:
                step(model, data, nstep)

    def close(self) -> None:
        for inbox in self._inboxes:
            inbox.put(None)
        for thread in self._threads:
            thread.join()
        self._inboxes.clear()
        self._threads.clear()


def _serve(
    inbox: queue.SimpleQueue[Iterator[mujoco.MjData] | None],
    done: queue.SimpleQueue[BaseException | None],
    work: object,
) -> None:
    assert callable(work)
    while (todo := inbox.get()) is not None:
        try:
            work(todo)
        except BaseException as error:
            done.put(error)
        else:
            done.put(None)
