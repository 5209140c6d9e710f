"""Uses streams for `checks.py`: graphs, events and SMs, on torch's streams and on green ones."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any, Final

# Marks the SM of each block, and stays there long enough for all SMs to be needed.
WHERE: Final = """
extern "C" __global__ void where(unsigned char* seen) {
    unsigned sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    seen[sm] = 1;
    for (long long begin = clock64(); clock64() - begin < 50000;) {}
}
"""
_MOST_SMS: Final = 1024
_SPIN: Final = 20_000_000  # cycles: some 10 ms
_BEFORE, _REPLAYS = 2, 3
_CALL_S: Final = 10  # the longest wait for a CUDA call of another thread


def green_contexts(*parts: int) -> tuple[int, list[Any]]:
    """Returns the SMs of a group, and a green context for each part; 2 is half of the groups."""
    from gmi_drl.gmi import cuda_driver
    from gmi_drl.gmi.backends.green import Partition
    from gmi_drl.placement import Device
    from gmi_drl.placement.slicing import group_sms

    capability = (cuda_driver.attribute(75), cuda_driver.attribute(76))
    size = group_sms(Device(0, "gpu", "", (), capability=capability))
    partition = Partition(size)
    groups = partition.num_groups
    return size, [partition.take(max(1, groups // part)) for part in parts]


def two_streams(where: str) -> list[Any]:
    """Returns streams for two threads: of two green contexts, or ("plain") two of torch's."""
    import torch

    torch.zeros(1, device="cuda")  # the primary context is there, and current in this thread
    if where == "plain":
        return [torch.cuda.Stream(), torch.cuda.Stream()]  # type: ignore[no-untyped-call]
    _, contexts = green_contexts(2, 4)
    return [torch.cuda.ExternalStream(context.stream) for context in contexts]  # type: ignore[no-untyped-call]


def loops(where: str) -> Any:
    """Returns how many rounds a captured loop runs that should end after ten."""
    import torch
    import warp as wp

    from .graph_loop import rounds_of_loop

    torch.cuda.set_stream(two_streams(where)[0])
    wp.init()  # type: ignore[no-untyped-call]
    make: Any = wp.stream_from_torch
    return rounds_of_loop(10, wp.get_device("cuda:0"), make(torch.cuda.current_stream()))


def captures(where: str) -> Any:
    """Compares updates in a graph with eager ones while another thread calls CUDA; notes SMs."""
    import torch

    from gmi_drl.roles.graphs import Pool

    stream, other_stream = two_streams(where)
    torch.cuda.set_stream(stream)
    torch.manual_seed(0)
    marks = torch.zeros(_MOST_SMS, dtype=torch.uint8, device="cuda")
    device = marks.device  # with its index
    network = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)
    ).to(device)
    twin = copy.deepcopy(network)
    inputs = torch.rand(256, 64, device=device)
    update, eager = update_of(network, inputs), update_of(twin, inputs)
    kernel, allowed, fault = _where(), list[int](), ""
    try:
        allowed = _sms(kernel)
    except RuntimeError as error:  # then the graph has torch's kernels alone
        fault = in_words(error)

    def captured() -> None:
        update()
        disturbs.again()
        if not fault:
            kernel(grid=(4096, 1, 1), block=(1024, 1, 1), args=[marks])

    pool = Pool(device)
    disturbs = Disturbs(other_stream)
    with pool.at_work():
        for _ in range(_BEFORE):
            update()
        disturbs.begin()
        try:
            graph = pool.record(captured)
        finally:
            disturbs.end()
    for _ in range(_REPLAYS):
        graph.replay()
    for _ in range(_BEFORE + _REPLAYS):
        eager()
    stream.synchronize()
    pairs = zip(network.parameters(), twin.parameters(), strict=True)
    used = set(torch.nonzero(marks).flatten().tolist())
    return {
        "off": max(float((a - b).detach().abs().max()) for a, b in pairs),
        "calls": disturbs.calls, "error": disturbs.error,
        "sms": len(used), "inside": used <= set(allowed), "allowed": len(allowed), "fault": fault,
    }  # fmt: skip


def update_of(network: Any, inputs: Any) -> Any:
    """Returns an update of the network that a graph can hold."""
    import torch

    rate = torch.tensor(1e-3, device=inputs.device)
    adam = torch.optim.Adam(network.parameters(), lr=rate, capturable=inputs.is_cuda)

    def update() -> None:
        adam.zero_grad(set_to_none=True)
        network(inputs).square().mean().backward()
        adam.step()

    return update


class Disturbs:
    """Calls CUDA on a stream of its own in a thread, as another GMI of the process does."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._over, self._changed = stream, False, threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.calls, self.error = 0, ""

    def begin(self) -> None:
        self._thread.start()
        self.again()

    def again(self) -> None:
        """Returns when the thread has made one more full CUDA call, or cannot."""
        with self._changed:
            target = self.calls + 2  # the next one may be under way
            self._changed.wait_for(
                lambda: self.error or self._over or self.calls >= target, _CALL_S
            )

    def end(self) -> None:
        self._over = True
        self._thread.join()

    def _run(self) -> None:
        import torch

        try:
            torch.cuda.set_stream(self._stream)
            while not self._over:
                size = 1 << (20 + self.calls % 4)  # now and then memory that is not cached
                numbers = torch.ones(size, device="cuda").to("cpu", non_blocking=True)
                self._stream.synchronize()
                assert int(numbers.sum()) == size
                with self._changed:
                    self.calls += 1
                    self._changed.notify_all()
        except Exception as error:
            with self._changed:
                self.error = in_words(error)
                self._changed.notify_all()


def events() -> Any:
    """Returns what is wrong with torch's events on green streams, by question; "" is right."""
    import torch

    first, second = two_streams("green")
    plain: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    sleep: Any = torch.cuda._sleep
    number = torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    value = iter(range(1, 10))

    def crosses(event: Any, waiter: Any) -> str:
        """Records after work of `first`; checks what `waiter` reads after the event."""
        written = next(value)
        with torch.cuda.stream(first):
            sleep(_SPIN)
            number.fill_(written)
            event.record(first)
        with torch.cuda.stream(waiter):
            waiter.wait_event(event)
            read = number.clone()
        waiter.synchronize()
        return "" if read.item() == written else f"{read.item()} was read for {written}"

    def new_event(**options: bool) -> Any:
        event: Any = torch.cuda.Event(**options)  # type: ignore[no-untyped-call]
        event.record(plain)  # torch creates it at its first record
        return event

    def shared() -> str:
        event = new_event(interprocess=True)
        event.ipc_handle()
        return crosses(event, second)

    def timed() -> str:
        begin, end = new_event(enable_timing=True), new_event(enable_timing=True)
        with torch.cuda.stream(first):
            begin.record(first)
            sleep(_SPIN)
            end.record(first)
        end.synchronize()
        elapsed_ms = begin.elapsed_time(end)
        return "" if elapsed_ms > 0.1 else f"{elapsed_ms} ms for {_SPIN} cycles"

    questions = {
        "recorded on a green stream, waited for on another": lambda: crosses(new_event(), second),
        "waited for on a stream of torch": lambda: crosses(new_event(), plain),
        "the same of an event for other processes": shared,
        "elapsed_time of two on a green stream": timed,
    }
    return {name: _words(question) for name, question in questions.items()}


def _words(question: Callable[[], str]) -> str:
    try:
        return question()
    except RuntimeError as error:
        return in_words(error)


def in_words(error: Exception) -> str:
    """Returns the error's type and first line; the rest is advice of torch."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def green() -> Any:
    """Returns whether work runs in three green contexts of one split, and on which SMs."""
    import torch

    from gmi_drl.gmi.backends.green import green_context_of

    torch.zeros(1, device="cuda")  # the primary context is there, for the kernel
    size, contexts = green_contexts(2, 4, 4)
    streams: list[Any] = [torch.cuda.ExternalStream(context.stream) for context in contexts]  # type: ignore[no-untyped-call]
    torch.cuda.set_stream(streams[0])
    product = torch.ones(512, 512, device="cuda") @ torch.ones(512, 512, device="cuda")
    current = green_context_of(torch.cuda.current_stream().cuda_stream)
    works = current == int(contexts[0].handle) and bool((product == 512).all())
    kernel, sms, fault = _where(), [], ""
    try:
        for stream in streams:
            torch.cuda.set_stream(stream)
            sms.append(_sms(kernel))
    except RuntimeError as error:
        fault = in_words(error)
    return {
        "group_sms": size, "sms": sms, "said": [context.sm_count for context in contexts],
        "torch": works, "fault": fault,
    }  # fmt: skip


def _where() -> Any:
    """Returns the kernel, compiled by the NVRTC that comes with torch."""
    import torch

    return torch.cuda._compile_kernel(WHERE, "where")


def _sms(kernel: Any) -> list[int]:
    """Returns the SMs that the current stream's kernels run on."""
    import torch

    marks = torch.zeros(_MOST_SMS, dtype=torch.uint8, device="cuda")
    kernel(grid=(4096, 1, 1), block=(1024, 1, 1), args=[marks])
    torch.cuda.current_stream().synchronize()
    return [int(sm) for sm in torch.nonzero(marks).flatten().tolist()]
