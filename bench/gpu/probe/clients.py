"""Uses a GPU for `checks.py`: `clients.py NAME [ARGUMENT ...]`, answers in JSON.

Environment variables give a client its slice of the GPU. An answer is a line `{"answer": ...}`; a
package that is not installed gives `{"not_here": ...}`, and any other failure `{"error": ...}` with
the library's message.
"""

from __future__ import annotations

import importlib
import json
import select
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

# Packages by the modules that they bring.
PACKAGES: Final = {
    "torch": "torch", "numpy": "numpy", "cuda": "cuda-bindings", "pynvml": "nvidia-ml-py",
    "warp": "warp-lang", "mujoco_warp": "mujoco-warp", "cupy": "cupy-cuda13x", "triton": "triton",
}  # fmt: skip
_SIZES: Final = (10 << 20, 512 << 10, 512 << 10)  # bytes of the allocations that are shared
_REPEATS: Final = 50
_REGISTERED: Final = 16 << 20
_NOT_INITIALIZED: Final = 3  # CUDA_ERROR_NOT_INITIALIZED, which is said until cuInit


def say(answer: Any) -> None:
    print(json.dumps({"answer": answer}), flush=True)


def sees() -> Any:
    """Tells whether this process is an MPS client, and the SMs it may use."""
    from gmi_drl.gmi import cuda_driver

    return {"mps": cuda_driver.mps_enabled(), "sm_count": cuda_driver.sm_count()}


# The preload.


class Forked:
    """A GMI forked from a server that has preloaded."""

    def started(self) -> str:
        """Answers once the CUDA driver has verified its slice."""
        return "yes"

    def computes(self) -> str:
        """Computes on the GPU, and returns torch's version."""
        import torch

        ones = torch.ones(64, 64, device="cuda")
        if float((ones @ ones).sum()) != 64**3:
            raise RuntimeError("a product of ones is not what it is")
        return f"torch {torch.__version__}"


def preloads(*modules: str) -> Any:
    """Returns the first of the modules whose import starts CUDA; None if none does."""
    from gmi_drl.gmi import cuda_driver

    for name in modules:
        try:
            importlib.import_module(name)
        except Exception:  # so does the fork server
            continue
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            return {"module": name, "how": "torch.cuda is initialized"}
        error, _ = cuda_driver.driver().cuDeviceGetCount()
        if int(error) != _NOT_INITIALIZED:
            return {"module": name, "how": "cuInit was called"}
    return {"module": None, "how": ""}


# CUDA IPC: memory and an event of one process in another.


def exports(library: str) -> Any:
    """Exports handles of memory and of an event, and keeps both until it is asked to end."""
    handles, exported = _cupy_exports() if library == "cupy" else _torch_exports()
    say(handles)
    sys.stdin.readline()
    del exported
    return "over"


def _cupy_exports() -> tuple[Any, Any]:
    import cupy

    runtime = cupy.cuda.runtime
    memories = [cupy.cuda.Memory(nbytes) for nbytes in _SIZES]
    event = cupy.cuda.Event(disable_timing=True, interprocess=True)
    for number, memory in enumerate(memories):
        runtime.memset(memory.ptr, number + 1, memory.size)
    event.record()
    runtime.deviceSynchronize()
    handles = {
        "memory": [runtime.ipcGetMemHandle(memory.ptr).hex() for memory in memories],
        "event": runtime.ipcGetEventHandle(event.ptr).hex(),
    }
    return handles, (memories, event)


def _torch_exports() -> tuple[Any, Any]:
    import torch

    tensors = [
        torch.full((nbytes,), number + 1, dtype=torch.uint8, device="cuda")
        for number, nbytes in enumerate(_SIZES)
    ]
    event: Any = torch.cuda.Event(interprocess=True)  # type: ignore[no-untyped-call]
    event.record()
    torch.cuda.synchronize()
    storages: list[Any] = [tensor.untyped_storage() for tensor in tensors]
    handles = {
        "memory": [
            [{"hex": part.hex()} if isinstance(part, bytes) else part for part in handle]
            for handle in (storage._share_cuda_() for storage in storages)
        ],
        "event": event.ipc_handle().hex(),
    }
    return handles, (tensors, event)


def imports(library: str, handles: str) -> Any:
    """Opens what another process has exported; returns whether the data are right, and times."""
    exported = json.loads(handles)
    return _cupy_imports(exported) if library == "cupy" else _torch_imports(exported)


def _cupy_imports(exported: Any) -> Any:
    import cupy

    runtime = cupy.cuda.runtime
    stream = cupy.cuda.Stream(non_blocking=True)
    targets = [cupy.zeros(nbytes, dtype=cupy.uint8) for nbytes in _SIZES]
    cupy.cuda.Device().synchronize()
    began_s = time.perf_counter()
    addresses = [runtime.ipcOpenMemHandle(bytes.fromhex(handle)) for handle in exported["memory"]]
    opened_s = time.perf_counter()
    event = runtime.ipcOpenEventHandle(bytes.fromhex(exported["event"]))
    event_s = time.perf_counter()

    def wait() -> None:
        runtime.streamWaitEvent(stream.ptr, event)
        stream.synchronize()

    def copy(index: int = 0) -> None:
        runtime.memcpyAsync(  # 3: device to device
            targets[index].data.ptr, addresses[index], _SIZES[index], 3, stream.ptr
        )
        stream.synchronize()

    wait()
    for index in range(len(_SIZES)):
        copy(index)
    right = [bool((copied == number + 1).all()) for number, copied in enumerate(targets)]
    return {"right": right, **_times(opened_s - began_s, event_s - opened_s, wait, copy)}


def _torch_imports(exported: Any) -> Any:
    import torch

    device = torch.cuda.current_device()
    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    targets = [torch.zeros(nbytes, dtype=torch.uint8, device="cuda") for nbytes in _SIZES]
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    memory = []
    for handle in exported["memory"]:
        parts = [bytes.fromhex(part["hex"]) if isinstance(part, dict) else part for part in handle]
        storage = torch.UntypedStorage._new_shared_cuda(device, *parts[1:])
        memory.append(torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage))
    opened_s = time.perf_counter()
    event: Any = torch.cuda.Event.from_ipc_handle(  # type: ignore[no-untyped-call]
        torch.device("cuda", device), bytes.fromhex(exported["event"])
    )
    event_s = time.perf_counter()

    def wait() -> None:
        event.wait(stream)
        stream.synchronize()

    def copy(index: int = 0) -> None:
        with torch.cuda.stream(stream):
            targets[index].copy_(memory[index])
        stream.synchronize()

    wait()
    for index in range(len(_SIZES)):
        copy(index)
    right = [bool((copied == number + 1).all()) for number, copied in enumerate(targets)]
    return {"right": right, **_times(opened_s - began_s, event_s - opened_s, wait, copy)}


def _times(
    open_memory_s: float, open_event_s: float, wait: Callable[[], None], copy: Callable[[], None]
) -> dict[str, float]:
    return {
        "open_memory_us": round(open_memory_s * 1e6, 1),
        "open_event_us": round(open_event_s * 1e6, 1),
        "wait_event_us": timed_us(wait),
        "copy_10mib_us": timed_us(copy),
    }


def timed_us(call: Callable[[], None]) -> float:
    """Returns the median microseconds of a call."""
    durations = []
    for _ in range(_REPEATS):
        began_s = time.perf_counter()
        call()
        durations.append(time.perf_counter() - began_s)
    return round(statistics.median(durations) * 1e6, 1)


# Memory of the host, and a GPU that is kept busy.


def registered() -> Any:
    """Copies both ways through a memfd that is registered as buckets are, or says why it is not."""
    import torch

    from gmi_drl.comm.shm.pinned import PinnedMemory, is_pinned
    from gmi_drl.runtime.store.memfd import Memfd

    device = torch.zeros(1, device="cuda").device  # CUDA is started
    memory = Memfd.create("probe", _REGISTERED).map()
    host = torch.frombuffer(memory, dtype=torch.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is in the answer
        pinned = PinnedMemory(memory, device, "what the probe copies is")
    host.copy_(torch.randint(256, (_REGISTERED,), dtype=torch.uint8))
    original, known = host.clone(), is_pinned(host)
    on_device = torch.empty(_REGISTERED, dtype=torch.uint8, device=device)

    def copy() -> None:
        on_device.copy_(host, non_blocking=True)
        on_device.add_(1)
        host.copy_(on_device, non_blocking=True)
        pinned.wait()

    copy()
    right = bool((host == original + 1).all())
    taken_us = timed_us(copy)
    pinned.close()
    return {"right": right, "pinned": known, "why_not": pinned.why_not, "both_ways_us": taken_us}


def works() -> Any:
    """Keeps the GPU busy until it is asked to end."""
    import torch

    matrix = torch.rand(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    say("ready")
    while not select.select([sys.stdin], [], [], 0)[0]:
        for _ in range(20):
            matrix = torch.nn.functional.normalize(matrix @ matrix)
        torch.cuda.synchronize()
    return "over"


def main(name: str, *arguments: str) -> None:
    from gpu.probe import stream_clients as streams

    clients: dict[str, Callable[..., Any]] = {
        "sees": sees, "preloads": preloads, "exports": exports, "imports": imports,
        "registered": registered, "works": works, "loops": streams.loops,
        "captures": streams.captures, "events": streams.events, "green": streams.green,
    }  # fmt: skip
    try:
        say(clients[name](*arguments))
    except Exception as error:
        traceback.print_exc()
        missing = isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0]
        if missing in PACKAGES:
            print(json.dumps({"not_here": PACKAGES[str(missing)]}))
            return
        print(json.dumps({"error": streams.in_words(error)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
