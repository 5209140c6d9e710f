"""An agent of template tdg_ex: samples for the trainer of its device, in turn with it.

It collects one horizon with the policy that the trainer sends, hands it over, and waits for the
next policy. So what is learned is what co-located GMIs would learn.
"""

from __future__ import annotations

from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gmi_drl.comm.errors import LinkClosed
from gmi_drl.comm.shm.heartbeat import beat
from gmi_drl.comm.transports import Packet
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.optimizers import round_steps
from gmi_drl.roles.policies.flat_parameters import FlatParameters, PublishedPolicy
from gmi_drl.roles.role.readiness import heartbeats_in, send_heartbeat
from gmi_drl.roles.samples.codec import BatchCodec, sent_columns
from gmi_drl.roles.state import checkpoint, saving
from gmi_drl.roles.telemetry.phases import phase
from gmi_drl.roles.telemetry.progress import WORKER_STATS

from .evaluator import restore
from .rollout_workers import Order, RolloutWorker

if TYPE_CHECKING:
    from gmi_drl.roles.role.acting import ActingRole


def codec_of(role: ActingRole, num_env: int) -> BatchCodec:
    """The codec of what one worker of `num_env` environments brings."""
    sent = sent_columns(role.policy, role.algorithm.recorded)
    return BatchCodec(role.batch(1), num_env, sent, role.of_bytes, stats=WORKER_STATS)


class RolloutLoop:
    """Follows the trainer's orders until it says that all is done."""

    def __init__(self, role: ActingRole, env: VecEnv) -> None:
        self._role, self._mgr = role, role.mgr
        self._collector = role.collector(env, role.batch(env.num_env))
        self._published = PublishedPolicy(FlatParameters(role.policy.network), role.normalizers)
        self._codec = codec_of(role, env.num_env)
        self._send_s = 0.0
        self._round_steps = round_steps(self._mgr.config, self._mgr.layout)
        if not self._mgr.context.replaced:  # else its episodes have gone with its process
            self._resume()

    def run(self) -> dict[str, Any]:
        """Follows orders to the end, and returns the steps of this GMI in all its lives.

        Waits for nobody before the first order.
        """
        with suppress(LinkClosed):  # by the process before this one, whose work was done
            self._follow()
        self._collector.close()
        return {"steps": self._mgr.tally[self._mgr.GMI_id, "steps"]}

    def _resume(self) -> None:
        """Go on in the environments of the checkpoint that the run is resumed from."""
        if (path := self._mgr.context.resume) is None:
            return
        found = saving.read(path, self._mgr.layout)
        if found.policy_only:
            return  # its trainer says so
        restore(self._collector, found.load(f"gmi{self._mgr.GMI_id}"), self._mgr)

    def _follow(self) -> None:
        mgr, gmi_id = self._mgr, self._mgr.GMI_id
        ((trainer, answers),) = mgr.context.wires.out_of(gmi_id).items()
        worker = RolloutWorker(
            mgr.context.wires.into(gmi_id)[trainer],
            answers,
            self._codec,
            mgr.timeout,
            trainer,
            heartbeats=heartbeats_in(mgr.tally),
            device=mgr.context.device,
        )
        while True:
            start = perf_counter()
            with phase("wait"):
                order = worker.next()
            send_heartbeat(mgr.tally, gmi_id)
            waited_s = perf_counter() - start
            if order.header.step == Order.LEAVE:
                worker.leave()
                return
            if order.header.step == Order.SAVE:
                worker.tell(self._save(order.header.policy_version))
            else:
                self._collect(order, worker, waited_s)

    def _collect(self, order: Packet, worker: RolloutWorker, waited_s: float) -> None:
        self._mgr.begin_iteration()
        self._published.load(order.memory.view(torch.float32))
        iteration = order.header.policy_version
        self._role.algorithm.before_sampling(iteration * self._round_steps)
        with phase("infer"):
            self._collector.collect(iteration)
            (simulate_s, infer_s), seen = self._collector.read()
        start = perf_counter()
        batch = self._collector.batch
        # Sending is not over when it says how long it takes: the last one's seconds are told.
        stats = (*seen, simulate_s, infer_s, self._send_s, waited_s)
        self._mgr.tally[self._mgr.GMI_id, "steps"] += batch["reward"].numel()

        def write(memory: Tensor) -> None:
            self._codec.pack(memory, batch, stats)

        with phase("send"):
            worker.bring(write, self._codec.nbytes)
        self._send_s = perf_counter() - start

    def _save(self, iteration: int) -> str:
        """Write this GMI's part of a checkpoint; why not, if the disk does not take it."""
        beat("checkpoint")
        folder = self._mgr.context.folder
        assert folder is not None
        part = f"gmi{self._mgr.GMI_id}"
        try:
            checkpoint.write_part(
                saving.folder_of(folder), iteration, part, self._collector.state_dict()
            )
        except OSError as error:
            return f"{type(error).__name__}: {error}"
        return ""
