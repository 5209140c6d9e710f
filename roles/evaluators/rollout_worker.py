"""The agent's side of template tdg_ex: follows the orders of its trainers, and answers them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from gmi_drl.comm.errors import LinkClosed
from gmi_drl.comm.transports import LinkSpec, Packet, StreamSpec, wait_any
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.optimizers.trained_steps import TrainedSteps
from gmi_drl.roles.policies.flat_parameters import FlatParameters, PublishedPolicy
from gmi_drl.roles.role.readiness import (
    HeartbeatDeadline,
    Heartbeats,
    heartbeats_in,
    send_heartbeat,
)
from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.samples.codec import BatchCodec, sent_columns
from gmi_drl.roles.state import checkpoint, saving
from gmi_drl.roles.telemetry.phases import phase
from gmi_drl.roles.telemetry.progress import WORKER_STATS
from gmi_drl.runtime.process.progress import beat

from .evaluator import restore
from .orders import FAILED, LOOK_S, Codec, Order, age_of, late_one, order_of

if TYPE_CHECKING:
    from gmi_drl.roles.role.acting import ActingRole

_ANSWERS: Final = 2  # one that nobody waits for any more, and the one that somebody does
_MAX_WORDS: Final = 500  # bytes of a word that an agent answers with
_CPU: Final = torch.device("cpu")


class RolloutWorker:
    """Takes the orders of GMI `trainer`, and answers them.

    Waits for nobody when it is made. LinkClosed if the process before this one has left. `device`
    is that of this GMI's tensors.
    """

    def __init__(
        self,
        orders: LinkSpec,
        answers: LinkSpec,
        codec: Codec,
        timeout: timedelta,
        trainer: int,
        heartbeats: Heartbeats,
        device: torch.device = _CPU,
    ) -> None:
        self.trainer, self._timeout, self._heartbeats = trainer, timeout, heartbeats
        room = max(codec.nbytes, _MAX_WORDS)
        streams = [StreamSpec(room, _ANSWERS)]
        self._answers = answers.sender(codec.schema, streams, timeout)
        self._orders = orders.receiver(timeout)
        self._answers.pin(device)
        self._orders.pin(device)
        self._kept: Packet | None = None

    def poll(self) -> Packet | None:
        """Returns the newest order, or None without a new one; after one to leave no other counts.

        `order_of` says what it is, `policy_version` of its header the iteration.
        """
        newest: Packet | None = None
        while (packet := self._orders.poll()) is not None:
            if self._kept is not None:
                self._orders.release(self._kept)
            self._kept = newest = packet
            if order_of(packet) == Order.LEAVE:
                break  # orders of a new trainer behind it are void, as all is done
        return newest

    def bring(self, write: Callable[[Tensor], None], nbytes: int) -> None:
        """Answers the last order with what `write` puts into memory [>= nbytes] uint8."""
        self._answer(0, write, nbytes)

    def tell(self, failure: str) -> None:
        """Answers the last order by why it failed; an empty text says that it is done."""
        text = failure.encode()[:_MAX_WORDS]

        def write(memory: Tensor) -> None:
            if text:
                memory[: len(text)].copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))

        self._answer(FAILED if failure else 0, write, len(text))

    def _answer(self, step: int, write: Callable[[Tensor], None], nbytes: int) -> None:
        assert self._kept is not None
        number, trainer = self._kept.header.sequence, self._kept.header.incarnation
        slot = self._answers.reserve(0)
        write(slot.memory)
        self._answers.send(slot, nbytes, sequence=number, step=step, policy_version=trainer)

    def leave(self) -> None:
        """Closes both links, as training is done; not called when something went wrong."""
        self._answers.close()
        self._orders.close()


def first_order(
    workers: Sequence[RolloutWorker], missing: Sequence[RolloutWorker]
) -> tuple[RolloutWorker, Packet]:
    """Waits for an order of any trainer; returns whose it is, and the newest order of that one.

    Waits twice the timeout from each heartbeat of those `missing`: a trainer may itself wait for
    another agent, and is to be the first that names it. LinkTimeout if none comes by then.
    """
    worker_0 = workers[0]
    timeout, by_trainer = 2 * worker_0._timeout, {worker.trainer: worker for worker in missing}
    deadline = HeartbeatDeadline(timeout, worker_0._heartbeats)
    while True:
        for worker in workers:
            if (order := worker.poll()) is not None:
                return worker, order
        trainer, left_s = deadline.first(by_trainer)
        if left_s <= 0:
            raise late_one(by_trainer[trainer]._orders, timeout, "has given no order")
        links = [worker._orders for worker in workers]
        wait_any(links, timedelta(seconds=min(LOOK_S, left_s)))


class RolloutLoop:
    """Follows the orders of trainers until one of them says that all is done.

    Where there are several, each has a piece of the parameters, and gets one of the gradient. An
    order to collect is followed when every trainer has given one; but a trainer whose order of that
    age was answered may wait for another trainer, and is not waited for.
    """

    def __init__(self, role: ActingRole, env: VecEnv) -> None:
        self._role, self._mgr = role, role.mgr
        self._collector = role.collector(env, role.batch(env.num_env))
        self._parameters = FlatParameters(role.policy.network)
        self._make_codec(env.num_env)
        self._send_s = 0.0
        self._trained_steps = TrainedSteps(self._mgr)
        context = self._mgr.context
        if not context.replaced and not context.copy:  # else it has other episodes
            self._resume()

    def _make_codec(self, num_env: int) -> None:
        """Makes what reads orders and writes answers, for each trainer."""
        self._published = [PublishedPolicy(self._parameters, self._role.normalizers)]
        self._codecs: list[Codec] = [codec_of(self._role, num_env)]

    def run(self) -> dict[str, Any]:
        """Follows orders to the end, and returns the steps of this GMI in all its lives.

        Waits for nobody before the first order.
        """
        with suppress(LinkClosed):  # by the process before this one, whose work was done
            self._follow()
        self._collector.close()
        return {"steps": self._mgr.tally[self._mgr.GMI_id, "steps"]}

    def _resume(self) -> None:
        """Goes on in the environments of the checkpoint that the run is resumed from."""
        if (path := self._mgr.context.resume) is None:
            return
        gmi_id = self._mgr.GMI_id
        saved = checkpoint.find(path, [f"gmi{gmi_id}"])
        if saved.policy_only or gmi_id in saving.begun_anew(saved, self._mgr.layout):
            return  # its trainer says so
        restore(self._collector, saved.load(f"gmi{gmi_id}"), self._mgr)

    def _follow(self) -> None:
        mgr, gmi_id = self._mgr, self._mgr.GMI_id
        wires, heartbeats = mgr.context.wires, heartbeats_in(mgr.tally)
        orders, answers = wires.into(gmi_id), wires.out_of(gmi_id)
        workers = [
            RolloutWorker(
                orders[trainer], answers[trainer], codec, mgr.timeout, trainer, heartbeats,
                mgr.context.device,
            )
            for trainer, codec in zip(sorted(answers), self._codecs, strict=True)
        ]  # fmt: skip
        pending: dict[RolloutWorker, Packet] = {}
        answered_age: dict[RolloutWorker, int] = {}  # the age of the order that was answered last
        start = perf_counter()
        while True:
            with phase("wait"):
                missing = [worker for worker in workers if worker not in pending]
                worker, order = first_order(workers, missing)
            send_heartbeat(mgr.tally, gmi_id)
            kind = order_of(order)
            if kind == Order.LEAVE:
                for worker in workers:
                    worker.leave()
                return
            if kind == Order.SAVE:
                pending.pop(worker, None)
                worker.tell(self._save(order.header.policy_version))
                start = perf_counter()
                continue
            pending[worker] = order
            self._published[workers.index(worker)].load(order.memory.view(torch.float32))
            oldest = min(map(age_of, pending.values()))
            if all(other in pending or answered_age.get(other, -1) >= oldest for other in workers):
                due = {
                    place: other
                    for place, other in enumerate(workers)
                    if other in pending and age_of(pending[other]) == oldest
                }
                self._collect(order, due, perf_counter() - start)
                for other in due.values():
                    del pending[other]
                    answered_age[other] = oldest
                start = perf_counter()

    def _collect(self, order: Packet, asking: Mapping[int, RolloutWorker], waited_s: float) -> None:
        self._mgr.begin_iteration()
        iteration = order.header.policy_version
        self._role.algorithm.before_sampling(self._trained_steps.at(iteration))
        with phase("infer"):
            self._collector.collect(iteration)
            (simulate_s, infer_s), episodes = self._collector.read()
        start = perf_counter()
        batch = self._collector.batch
        # The seconds of the last sending: this one is not over when its answer is packed.
        process = self._mgr.context.process
        stats = (*episodes, simulate_s, infer_s, self._send_s, waited_s, process)
        self._mgr.tally[self._mgr.GMI_id, "steps"] += batch["reward"].numel()

        with phase("send"):
            self._prepare(batch)
            for place, worker in asking.items():
                worker.bring(partial(self._pack, place, batch, stats), self._codecs[place].nbytes)
        self._send_s = perf_counter() - start

    def _prepare(self, batch: Batch) -> None:
        """Makes what is brought of a batch: here the batch itself."""

    def _pack(self, place: int, batch: Batch, stats: Sequence[float], memory: Tensor) -> None:
        """Writes the answer to the trainer at `place` into memory [>= its codec's nbytes] uint8."""
        codec = self._codecs[place]
        assert isinstance(codec, BatchCodec)
        codec.pack(memory, batch, stats)

    def _save(self, iteration: int) -> str:
        """Writes this GMI's part of a checkpoint; returns why the disk did not take it, or ""."""
        beat("checkpoint")
        folder = self._mgr.context.folder
        assert folder is not None
        part, state = f"gmi{self._mgr.GMI_id}", self._collector.state_dict()
        try:
            checkpoint.write_part(saving.folder_of(folder), iteration, part, state)
        except OSError as error:
            return f"{type(error).__name__}: {error}"
        return ""


def codec_of(role: ActingRole, num_env: int) -> BatchCodec:
    """Returns the codec of what one worker of `num_env` environments brings."""
    columns = sent_columns(role.policy, role.algorithm.recorded)
    return BatchCodec(role.batch(1), num_env, columns, stats=WORKER_STATS)
