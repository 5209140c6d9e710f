"""Records of tunes that were never measured, for what reads records."""

from pathlib import Path

from gmi_drl.selector.record.record import TuneRecord
from gmi_drl.selector.tune.candidate import (
    Ask,
    Candidate,
    Chosen,
    DeviceSplit,
    Failed,
    Measured,
    Skipped,
)

GIB = 2**30


def candidate(gmis, num_env, backend="cpu", horizon=16, **row):
    """A candidate on one device."""
    return Candidate(DeviceSplit(gmis, backend, **row), num_env, horizon, gmis * num_env * horizon)


def measured(rate, gib=1.0, device_gib=None, limit=20.0, error=0.01, seconds=4.0, phases=None):
    """What was measured; `limit` in GiB of the fullest memory."""
    phases = phases or {"simulate": 0.6, "infer": 0.1, "train": 0.25, "reduce": 0.05}
    device = None if device_gib is None else int(device_gib * GIB)
    full = (gib if device_gib is None else device_gib) / limit
    active = None if device is None else 0.5
    return Measured(rate, error, 5, seconds, phases, int(gib * GIB), device, full, 1.5, active)


def recorded(answers, winner=None, runner_up=None, skipped=(), complete=True, **more):
    """A record of `answers`, pairs of a candidate and what it answered."""
    chosen = None
    if winner is not None:
        left = tuple(Skipped(one, "it would be slower") for one in skipped)
        chosen = Chosen(winner, runner_up, left, complete, "smaller batches learn better")
    header = {"env": "Ant-v5", "mode": "sync", "space_size": 40} | more.pop("header", {})
    profiles = tuple((Ask(one, 4.0), answer) for one, answer in answers)
    return TuneRecord(
        Path("record.jsonl"), header, profiles, (5.0,) * len(profiles), chosen=chosen, **more
    )


def on_cores(**more):
    """Two rows, saturated; 2 GMIs with num_env 32 won."""
    rates = {1: {16: 3000, 32: 4200, 64: 5000, 96: 5100}, 2: {16: 6000, 32: 8410, 64: 8420}}
    answers = [
        (candidate(g, n), measured(rate, gib=0.3 * g + 0.005 * n))
        for g, its in rates.items()
        for n, rate in its.items()
    ]
    left = [candidate(2, 96), candidate(2, 128)]
    return recorded(answers, candidate(2, 32), candidate(2, 64), left, **more)


def on_gpus(**more):
    """Six rows of 18 points, with failures of every kind but one."""
    ladder = [128 * n for k in range(9) for n in (2**k, 3 * 2 ** (k - 1)) if n >= 1]
    ladder = sorted({int(n) for n in ladder})
    rows = [(1, "direct", {}), (2, "mps", {}), (3, "mps", {}), (4, "mps", {})]
    rows += [(4, "mps", {"sm_overcommit": 2.0}), (8, "mps", {})]
    answers, left = [], []
    for gmis, backend, row in rows:
        ended = False
        for num_env in ladder:
            one = candidate(gmis, num_env, backend, **row)
            used = 2.0 * gmis + 0.0019 * gmis * num_env
            if ended:
                left.append(one)
            elif used > 130:
                answers.append((one, Failed("memory", "CUDA out of memory [2.3 GiB]")))
                ended = True
            elif gmis == 8 and num_env == 2048:
                answers.append((one, Failed("hang", "nothing came for 60 s")))
                ended = True
            else:
                total = num_env * gmis
                rate = 400_000 * total / (total + 5000) * (1 - 0.05 * abs(gmis - 4))
                answers.append((one, measured(rate, 3.0 * gmis, used, 130.0)))
    ran = [(a.steps_per_s, c) for c, a in answers if isinstance(a, type(measured(1.0)))]
    (_, second), (_, first) = sorted(ran, key=lambda pair: pair[0])[-2:]
    return recorded(answers, first, second, left, complete=False, **more)
