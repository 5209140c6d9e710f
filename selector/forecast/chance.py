"""Simulates what has no formula: the slowest of many, asynchronous training, losses of hosts."""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np

_NUMBERS: Final = 200_000  # random numbers of one estimate, about
_SIMULATED: Final = 8  # hosts of asynchronous training: the slowest, and as many of the others
_DAY_S: Final = 86_400.0


def sync_iteration_s(
    rollout_s: float, step_s: float, steps: int, *, devices: int, gmis: int,
    spread: float, jitter: float, rng: np.random.Generator,
) -> float:  # fmt: skip
    """Returns the mean seconds of an iteration in which the slowest of all GMIs is waited for.

    Every gradient step meets all GMIs. A device is `spread` from the mean for good, and each of
    its GMIs' times `jitter` from that, lognormal, anew for each roll-out and step.
    """
    ranks = devices * gmis
    speeds = np.repeat(np.maximum(0.1, 1 + spread * rng.standard_normal(devices)), gmis)
    repeats = max(1, min(16, _NUMBERS // (ranks * (steps + 1))))
    total_s = 0.0
    for _ in range(repeats):
        rollouts_s = rollout_s * speeds * _lognormal(rng, jitter, ranks)
        if not steps:
            total_s += float(rollouts_s.max())
            continue
        for step in range(steps):
            steps_s = step_s * speeds * _lognormal(rng, jitter, ranks)
            total_s += float((rollouts_s + steps_s if step == 0 else steps_s).max())
    return total_s / repeats


def _lognormal(rng: np.random.Generator, deviation: float, count: int) -> np.ndarray:
    """Draws lognormal numbers of mean 1."""
    sigma = math.sqrt(math.log1p(deviation**2))
    return np.exp(sigma * rng.standard_normal(count) - sigma * sigma / 2)


@dataclass(frozen=True)
class AsyncResult:
    """Holds the speed and the lags of asynchronous training."""

    segments_per_s: float  # that were trained on, of all agents
    lags: np.ndarray  # updates between the policy that collected a segment and the one it trained


def simulate_async(
    *, agents: int, trainers: int, groups: int, rollout_s: float, send_s: float, update_s: float,
    capacity: int, batch: int, spread: float, jitter: float, rng: np.random.Generator,
    updates: int = 200,
) -> AsyncResult:  # fmt: skip
    """Simulates `groups` hosts of agents that send segments in turn to their host's trainers.

    An update takes `batch` segments of each trainer, and all trainers reduce together: it begins
    when the last of them has its batch. An agent begins a segment with the policy that is newest
    then, and waits where `capacity` segments of a link are not yet taken. Of many hosts those with
    the slowest agents set the pace. The queues of the others are full, and their segments lag more:
    a sample of these hosts is simulated too, each weighted by the number that it stands for.
    """
    hosts = np.maximum(0.1, 1 + spread * rng.standard_normal((groups, agents)))
    by_speed = np.argsort((1 / hosts).sum(axis=1))
    slowest, others = by_speed[:_SIMULATED], by_speed[_SIMULATED:]
    picked = np.linspace(0, len(others) - 1, min(_SIMULATED, len(others))).round().astype(int)
    sampled = others[picked]
    hosts = hosts[[*slowest, *sampled]]
    trainer_speeds = np.maximum(0.1, 1 + spread * rng.standard_normal(trainers * groups))
    agent_count, learners, speeds = hosts.size, trainers * len(hosts), hosts.ravel()
    queues: list[deque[tuple[int, int]]] = [deque() for _ in range(learners)]  # agent, version
    waiting: list[tuple[int, int] | None] = [None] * agent_count  # the segment that has no room
    under_way = np.zeros((agent_count, trainers), dtype=int)
    turn = np.zeros(agent_count, dtype=int)  # the trainer of its host that an agent sends to next
    events: list[tuple[float, int, str, int, int]] = []
    order = 0
    version, busy, now = 0, False, 0.0
    lags: list[int] = []
    lags_of_sampled: list[int] = []
    first_s, skipped = 0.0, updates // 2  # while queues are being filled nothing counts

    def push(time_s: float, kind: str, sender: int, payload: int = 0) -> None:
        nonlocal order
        order += 1
        heapq.heappush(events, (time_s, order, kind, sender, payload))

    def collect(agent: int) -> None:
        noise = float(_lognormal(rng, jitter, 1)[0])
        push(now + rollout_s * float(speeds[agent]) * noise, "collected", agent, version)

    def send(agent: int, segment_version: int) -> bool:
        target = int(turn[agent])
        if under_way[agent, target] >= capacity:
            waiting[agent] = (target, segment_version)
            return False
        under_way[agent, target] += 1
        turn[agent] = (target + 1) % trainers
        push(now + send_s, "arrived", agent, segment_version * trainers + target)
        return True

    for agent in range(agent_count):  # none of them begins where another does
        push(rollout_s * float(speeds[agent] * rng.random()), "collected", agent)
    while version < updates:
        now, _, kind, sender, payload = heapq.heappop(events)
        if kind == "collected":
            if send(sender, payload):
                collect(sender)
        elif kind == "arrived":
            segment_version, target = divmod(payload, trainers)
            queues[sender // agents * trainers + target].append((sender, segment_version))
        else:
            version, busy = version + 1, False
            if version == skipped:
                first_s = now
        if busy or any(len(queue) < batch for queue in queues):
            continue
        busy = True
        noises = trainer_speeds * _lognormal(rng, jitter, trainers * groups)
        push(now + update_s * float(noises.max()), "updated", 0)
        for learner, queue in enumerate(queues):
            is_slowest = learner < trainers * len(slowest)
            for _ in range(batch):
                agent, segment_version = queue.popleft()
                under_way[agent, learner % trainers] -= 1
                if version >= skipped:
                    (lags if is_slowest else lags_of_sampled).append(version - segment_version)
                segment = waiting[agent]
                if segment is not None and segment[0] == learner % trainers:
                    waiting[agent] = None
                    send(agent, segment[1])
                    collect(agent)
    counted = (updates - skipped) * batch * trainers * groups
    weight = round(len(others) / max(1, len(sampled)))
    all_lags = np.concatenate([lags, np.repeat(lags_of_sampled, weight)])
    return AsyncResult(counted / (now - first_s), all_lags)


def share_that_counts(
    *, failures_per_day: float, recovery_s: float, checkpoint_s: float, rng: np.random.Generator
) -> float:
    """Simulates a day, and returns the share of it whose training is kept.

    A loss takes back what was trained since the last checkpoint, and `recovery_s`; one that comes
    during a recovery begins it anew. `checkpoint_s`: seconds of training between checkpoints.
    """
    if failures_per_day <= 0:
        return 1.0
    mean_s = _DAY_S / failures_per_day
    now = kept_s = since_s = 0.0
    while now < _DAY_S:
        gap_s = min(float(rng.exponential(mean_s)), _DAY_S - now)
        now += gap_s
        since_s += gap_s
        saved_s = since_s // checkpoint_s * checkpoint_s if checkpoint_s else 0.0
        if now >= _DAY_S:
            return (kept_s + since_s) / _DAY_S
        kept_s, since_s = kept_s + saved_s, 0.0
        until_s = now + recovery_s
        while now < _DAY_S and (again_s := now + float(rng.exponential(mean_s))) < until_s:
            now = again_s
            until_s = now + recovery_s
        now = until_s
    return kept_s / _DAY_S
