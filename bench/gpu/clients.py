"""Processes that use a GPU for `checks.py`: `clients.py NAME [ARGUMENT ...]`, answers in JSON.

Their slice is in their environment.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, Final

_NBYTES: Final = 10 << 20
_REPEATS: Final = 50
# Marks the SM each block runs on, and stays there long enough for all of them to be needed.
_WHERE: Final = """
extern "C" __global__ void where(unsigned char* seen) {
    unsigned sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    seen[sm] = 1;
    for (long long begin = clock64(); clock64() - begin < 50000;) {}
}
"""


def sees() -> Any:
    """Whether this process is an MPS client, and the SMs it may use."""
    from gmi_drl.gmi import cuda_driver

    return {"mps": cuda_driver.mps_enabled(), "sm_count": cuda_driver.sm_count()}


def exports() -> Any:
    """Gives handles of memory and of an event away, and keeps both until it is told."""
    import cupy

    runtime = cupy.cuda.runtime
    memory = cupy.cuda.Memory(_NBYTES)
    event = cupy.cuda.Event(disable_timing=True, interprocess=True)
    runtime.memset(memory.ptr, 7, _NBYTES)
    event.record()
    runtime.deviceSynchronize()
    handles = (runtime.ipcGetMemHandle(memory.ptr), runtime.ipcGetEventHandle(event.ptr))
    print(json.dumps(dict(zip(("memory", "event"), [h.hex() for h in handles], strict=True))))
    sys.stdout.flush()
    sys.stdin.readline()
    return "over"


def imports(handles: str) -> Any:
    """Opens what another process has exported, and times it."""
    import cupy

    runtime, said = cupy.cuda.runtime, json.loads(handles)
    stream = cupy.cuda.Stream(non_blocking=True)
    own = cupy.zeros(_NBYTES, dtype=cupy.uint8)
    began_s = time.perf_counter()
    address = runtime.ipcOpenMemHandle(bytes.fromhex(said["memory"]))
    opened_s = time.perf_counter()
    event = runtime.ipcOpenEventHandle(bytes.fromhex(said["event"]))
    event_s = time.perf_counter()

    def wait() -> None:
        runtime.streamWaitEvent(stream.ptr, event)
        stream.synchronize()

    def copy() -> None:
        runtime.memcpyAsync(own.data.ptr, address, _NBYTES, 3, stream.ptr)  # device to device
        stream.synchronize()

    times = {"wait_event_us": timed_us(wait), "copy_10mib_us": timed_us(copy)}
    right = bool((own == 7).all())
    runtime.eventDestroy(event)
    runtime.ipcCloseMemHandle(address)
    opening = {
        "open_memory_us": round((opened_s - began_s) * 1e6, 1),
        "open_event_us": round((event_s - opened_s) * 1e6, 1),
    }
    return {"right": right, **opening, **times}


def green(major: str) -> Any:
    """The SMs that kernels run on in three green contexts of one split."""
    import cupy
    import torch

    from gmi_drl.gmi.green_driver import Partition, green_context_of
    from gmi_drl.placement import Device
    from gmi_drl.placement.green import group_sms

    size = group_sms(Device(0, "gpu", "", (), capability=(int(major), 0)))
    partition = Partition(size)
    groups = partition.num_groups
    contexts = [partition.take(count) for count in (groups // 2, groups // 4, groups // 4)]
    kernel = cupy.RawKernel(_WHERE, "where")
    found = []
    for context in contexts:
        with cupy.cuda.ExternalStream(context.stream) as stream:
            seen = cupy.zeros(1024, dtype=cupy.uint8)
            kernel((4096,), (1024,), (seen,))
            stream.synchronize()
            found.append([int(sm) for sm in cupy.flatnonzero(seen).get()])
    torch.cuda.set_stream(torch.cuda.ExternalStream(contexts[0].stream))  # type: ignore[no-untyped-call]
    product = torch.ones(512, 512, device="cuda") @ torch.ones(512, 512, device="cuda")
    mine = green_context_of(torch.cuda.current_stream().cuda_stream) == int(contexts[0].handle)
    return {
        "groups": groups, "group_sms": size, "sms": found,
        "said": [context.sm_count for context in contexts],
        "torch": mine and bool((product == 512).all()),
    }  # fmt: skip


def works() -> Any:
    """Keeps the GPU at work until it is ended."""
    import torch

    matrix = torch.rand(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    print("ready", flush=True)
    while True:
        for _ in range(20):
            matrix = torch.nn.functional.normalize(matrix @ matrix)
        torch.cuda.synchronize()


def timed_us(call: Callable[[], None]) -> float:
    """The median of some calls."""
    taken = []
    for _ in range(_REPEATS):
        began_s = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began_s)
    return round(statistics.median(taken) * 1e6, 1)


if __name__ == "__main__":
    _clients: dict[str, Callable[..., Any]] = {
        "sees": sees, "exports": exports, "imports": imports, "green": green, "works": works,
    }  # fmt: skip
    print(json.dumps(_clients[sys.argv[1]](*sys.argv[2:])))
