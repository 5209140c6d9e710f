"""The agent of TDG_EX: simulates and infers for the trainer of its device, and waits for it.

Strictly in turn: it collects one horizon with the policy that the trainer sends, hands it over, and
waits for the next policy. So what is learned is what co-located GMIs would learn.
"""

from __future__ import annotations

from contextlib import suppress
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gmi_drl.comm.errors import LinkClosed
from gmi_drl.comm.shm.heartbeat import beat
from gmi_drl.comm.transports import Packet
from gmi_drl.roles.envs.protocol import VecEnv
from gmi_drl.roles.policies.acting import ActingRole
from gmi_drl.roles.policies.policy import FlatParameters
from gmi_drl.roles.policies.published import PublishedPolicy
from gmi_drl.roles.role.heartbeat_deadline import show, signs_in
from gmi_drl.roles.samples.rollout_codec import Handover
from gmi_drl.roles.state import checkpoint, saving
from gmi_drl.roles.telemetry.phases import phase

from .rollout_workers import Follower, Order


class SyncAgent(ActingRole):
    """Simulator and agent of template tdg_ex. Override `make_env` or `make_policy` to change it."""

    recoverable = says_set_up = True

    def GMI_run(self, **params: Any) -> dict[str, Any]:
        """Follow the trainer's orders until it says that all is done."""
        self._check_no_params(params)
        env = self.make_env()
        self.mgr.close_later(env.close)
        self._setup(env)
        self.mgr.await_set_up()
        with suppress(LinkClosed):  # by the process before this one, whose work was done
            self._follow()
        self._collector.close()
        return {"steps": self.mgr.tally[self.GMI_id, "steps"]}

    def _setup(self, env: VecEnv) -> None:
        policy, normalizers = self._build_policy(env)
        self._collector = self._collector_of(env, policy, normalizers)
        self._published = PublishedPolicy(FlatParameters(policy), normalizers)
        self._handover = Handover(
            self.mgr.config.algorithm.horizon,
            env.num_env,
            self._collector.observation.shape[1],
            policy,
            env.observation_space.dtype == np.uint8,
        )
        if not self.mgr.context.replaced:  # else its episodes have gone with its process
            self._resume()

    def _resume(self) -> None:
        """Go on in the environments of the checkpoint that the run is resumed from."""
        if (path := self.mgr.context.resume) is None:
            return
        found = saving.read(path, saving.gmis_of(self.mgr.layout))
        if found.policy_only:
            return  # its trainer says so
        if not self._collector.load_state_dict(found.load(f"gmi{self.GMI_id}")):
            what = f"{self.mgr.config.env.id} cannot be saved; its episodes begin anew"
            self.mgr.report({"kind": "warning", "message": what})

    def _follow(self) -> None:
        wires, timeout = self.mgr.context.wires, self.mgr.timeout
        ((trainer, out),) = wires.out_of(self.GMI_id).items()
        back, signs = wires.into(self.GMI_id)[trainer], signs_in(self.mgr.tally)
        device = self.mgr.context.device
        follower = Follower(back, out, self._handover, timeout, trainer, signs, device)
        self._send_s = 0.0
        while True:
            start = perf_counter()
            with phase("wait"):
                order = follower.next()
            show(self.mgr.tally, self.GMI_id)
            waited_s = perf_counter() - start
            if order.header.step == Order.LEAVE:
                follower.leave()
                return
            if order.header.step == Order.SAVE:
                follower.tell(self._save(order.header.policy_version))
            else:
                self._collect(order, follower, waited_s)

    def _collect(self, order: Packet, follower: Follower, waited_s: float) -> None:
        self.mgr.begin_iteration()
        self._published.load(order.memory.view(torch.float32))
        with phase("infer"):
            self._collector.collect(order.header.policy_version)
            (simulate_s, infer_s), seen = self._collector.read()
        start = perf_counter()
        rollout = self._collector.rollout
        episodes = (seen.count, seen.return_sum, seen.length_sum)
        # Sending is not over when it says how long it takes: the last one's seconds are told.
        stats = (*episodes, simulate_s, infer_s, self._send_s, waited_s)
        tally, steps = self.mgr.tally, rollout.reward.numel()
        tally[self.GMI_id, "steps"] += steps

        def write(memory: Tensor) -> None:
            self._handover.pack(memory, rollout, stats)

        with phase("send"):
            follower.bring(write, self._handover.nbytes)
        self._send_s = perf_counter() - start

    def _save(self, iteration: int) -> str:
        """Write this GMI's part of a checkpoint; why not, if the disk does not take it."""
        beat("checkpoint")
        folder = self.mgr.context.folder
        assert folder is not None
        part = f"gmi{self.GMI_id}"
        try:
            checkpoint.write_part(
                saving.folder_of(folder), iteration, part, self._collector.state_dict()
            )
        except OSError as error:
            return f"{type(error).__name__}: {error}"
        return ""
