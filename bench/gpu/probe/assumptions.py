"""Lists what is assumed of a GPU: how each is checked, and what to do if it does not hold.

The assumptions are in the order of `probe.py`, and docs/gpu-backends.md shows the same table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Assumption:
    """One check of `probe.py`. `workaround`: what to do if it does not hold."""

    assumption: str
    method: str
    workaround: str
    deadline_s: int


ASSUMPTIONS: Final = {
    "node": Assumption(
        "the node has what is needed",
        "driver, CUDA, packages, where MPS's programs are, /dev/shm, limits, who holds the GPU",
        "Each row says its own: a package to install, `export PATH=...`, a process to end.",
        deadline_s=15,
    ),
    "fork": Assumption(
        "a process forked after the preload can start CUDA: a module of it may have called cuInit",
        "the launcher's fork server, with its PRELOAD and with warp, forks a GMI, which takes its "
        "slice, and torch computes there. If it cannot: modules are imported one by one until the "
        "driver is started, and the same is tried with nothing preloaded",
        "Take the module that is named out of PRELOAD (`src/gmi_drl/launcher/start/preload.py`). "
        "With an empty one each GMI imports for itself, in seconds.",
        deadline_s=75,
    ),
    "mps": Assumption(
        "MPS's programs run, as this user",
        "a daemon of ours is started, and a process asks CUDA whether it is its client "
        "(attribute 133)",
        "No MPS: measure with backends `green` and `direct`, which need no daemon.",
        deadline_s=35,
    ),
    "shares": Assumption(
        "a share of 12, 25, 33, 50, 100 % is that many SMs, give or take 8",
        "five clients of one daemon count their SMs; beside each the share rounded down, and "
        "that in pairs",
        "Compare rows of `mps` by the SMs that were counted, not by the percentage; or use "
        "`green`, whose groups are exact.",
        deadline_s=45,
    ),
    "ipc": Assumption(
        "CUDA IPC works between clients of MPS and outside it, also for two allocations of less "
        "than 1 MiB of one process, which may lie in one block of 2 MiB",
        "10 MiB and twice 0.5 MiB are exported by torch (`_share_cuda_`, as experience) and by "
        "cupy (as the reducer `ipc`), opened in another process and compared; times to open, to "
        "wait for an event, and to copy",
        "Set `comm.reduction: mpr` (through the host; `REDUCTION=mpr` for slot.sh) and a template "
        "without channels between GMIs of a GPU (`tcg_ex`), or use `green`, whose GMIs share one "
        "process.",
        deadline_s=75,
    ),
    "conditional": Assumption(
        "`wp.capture_while` makes a graph whose loop the GPU decides, in a client of MPS and on a "
        "green stream",
        "a counter is counted down by a captured loop: without MPS, as its client, on a green "
        "stream",
        "Adapter `warp` unrolls the solver's loop on green streams. Where MPS refuses it: "
        "`direct`, or `run.capture: false`; without warp at all BallBalance-v0 by adapter `torch`.",
        deadline_s=75,
    ),
    "capture": Assumption(
        "torch captures forward, backward and Adam in thread-local mode while another thread "
        "calls CUDA, on a stream of its own and on a green one, and replays inside its SMs",
        "a small network is captured as updates are, beside a twin that is not; another thread "
        "allocates, copies and waits meanwhile; a kernel in the graph notes its SMs",
        "Set `run.capture: false` with `green`, or use `direct` or `mps`, where a process has "
        "one GMI.",
        deadline_s=60,
    ),
    "events": Assumption(
        "events made under the primary context work on green streams",
        "torch's events, one of them for other processes, are recorded on one green stream and "
        "waited for on others; the time between two of them is read",
        "Use `mps` or `direct`: `green` would need events that are made in its own contexts.",
        deadline_s=30,
    ),
    "registered": Assumption(
        "cudaHostRegister takes a mapping of a memfd",
        "16 MiB are registered as buckets and packets are, and copied to the GPU and back",
        "None needed: copies go through memory that is not registered, one by one, and a "
        "warning says so. `ulimit -l unlimited` may help.",
        deadline_s=30,
    ),
    "usage": Assumption(
        "NVML tells how busy the SMs are (GPM) and what memory each process has, under MPS too",
        "a process keeps the GPU at work, with and without MPS, and NVML is asked from outside",
        "None needed: where NVML does not say, utilisation is left out of the tables, and the "
        "memory is what torch, warp and JAX count.",
        deadline_s=45,
    ),
    "kernels": Assumption(
        "warp takes the kernels that were compiled ahead of time",
        "`kernel_cache.py` makes environments, and says which modules were compiled again",
        "Let warp compile before anything is measured (the suite does, and counts it); if that "
        "takes too long, BallBalance-v0 by adapter `torch`.",
        deadline_s=50,
    ),
    "green": Assumption(
        "green contexts of one split run on SMs that no other has",
        "kernels note their SMs in three contexts",
        "Use `mps`, or `direct`.",
        deadline_s=35,
    ),
    "reduce": Assumption(
        "GMIs of one GPU reduce, in its memory and through the host",
        "strategies `ipc` and `mpr` among 4 and 2 GMIs of `direct`, `mps` and `green`, with times",
        "Set `comm.reduction` to the strategy that works.",
        deadline_s=100,
    ),
    "static": Assumption(
        "the daemon makes static partitions of SMs (CUDA 13.1 and newer)",
        "a daemon is started with -S, and a client of a partition of half of the GPU counts its "
        "SMs; an older daemon is not asked",
        "None needed: shares are caps then, as CUDA_MPS_ACTIVE_THREAD_PERCENTAGE.",
        deadline_s=30,
    ),
    "terminate": Assumption(
        "a client at work can be ended without its server being stuck",
        "a busy client is fenced as one that hangs would be; then another one comes",
        "Set `run.max_restarts: 0` with `mps`, so that no GMI is started again on a server that "
        "is stuck (it ends with its run), or use `direct`.",
        deadline_s=45,
    ),
}  # fmt: skip
