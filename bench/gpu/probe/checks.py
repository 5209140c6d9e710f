"""Runs a check of `probe.py` in a process of its own: `checks.py NAME LAYOUT`.

Each result is printed at once as a line of JSON, so that a check that is ended at its deadline
loses none of its earlier results.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gmi_drl import runtime
from gmi_drl.gmi import nvml as driver
from gmi_drl.gmi.backends.mps import chunk_sms, num_chunks
from gmi_drl.gmi.discover import look
from gmi_drl.gmi.process import start_process
from gmi_drl.gmi.usage.meter import DeviceMeter
from gmi_drl.launcher.start.preload import PRELOAD
from gmi_drl.placement import Layout
from gpu.probe.assumptions import ASSUMPTIONS
from gpu.probe.clients import Forked
from gpu.probe.harness import Check, client, in_words, merged, slices_of, started
from gpu.probe.node import node

KERNELS: Final = Path(__file__).resolve().parents[1] / "pack" / "kernel_cache.py"
_PERCENTS: Final = (12, 25, 33, 50, 100)
_OFF: Final = 8  # SMs
_STEP: Final = timedelta(seconds=30)
_ENDED_S: Final = 10
_WATCHED_S: Final = 1.5
_DIFFERENCE: Final = 1e-4
_STATIC: Final = (13, 1)
_WARP: Final = "gmi_drl.roles.envs.warp.vec"  # preloaded for runs with adapter warp


def fork(check: Check, preload: Sequence[str] = (*PRELOAD, _WARP)) -> None:
    """Checks CUDA in a process forked after the preload; names the module that prevents it."""
    if _forks(check, preload, "PRELOAD"):
        return
    layout = check.layout("direct", None)
    with check.tried("module that starts CUDA"), slices_of(layout) as (gmis, slices):
        blamed = client("preloads", slices.environment(gmis[0]), *preload)
        clean = blamed["module"] is None
        check.row("module that starts CUDA", blamed["module"], clean, why=blamed["how"])
    _forks(check, (), "nothing preloaded")


def _forks(check: Check, preload: Sequence[str], stage: str) -> bool:
    """Tells whether a GMI forked by a server that has preloaded computes on the GPU."""
    layout, works = check.layout("direct", None), True
    runtime.init(preload)
    try:
        ready = runtime.preloaded(_STEP)
        skipped = "; ".join(f"{name}: {why}" for name, why in ready.skipped.items())
        check.row(f"{stage}: imports took s", round(ready.import_s, 1), None, why=skipped)
        if ready.num_threads > 1:
            check.row(f"{stage}: threads before the fork", ready.num_threads, False, expected=1,
                      why=f"{ready.threaded_by} started them")  # fmt: skip
        with slices_of(layout) as (gmis, slices):
            process = start_process(gmis, layout, slices, Forked, lambda spec: ())
            questions = {"started": "the driver starts", "computes": "torch computes"}
            for method, question in questions.items():
                try:
                    value = runtime.get(process.call(0, method), _STEP)
                    check.row(f"{stage}: {question} after the fork", value, True)
                except runtime.ActorRuntimeError as error:
                    works = False
                    text = in_words(error)
                    check.row(f"{stage}: {question} after the fork", None, False, why=text)
                    break
    finally:
        runtime.shutdown()
    return works


def mps(check: Check) -> None:
    """Checks a daemon of ours, and that CUDA calls its client one."""
    began_s = time.monotonic()
    with check.tried("a daemon answers"), slices_of(check.layout("mps", 100)) as (gmis, slices):
        took_s = round(time.monotonic() - began_s, 1)
        check.row("a daemon answers", f"after {took_s} s", True, why=f"as uid {os.getuid()}")
        with check.tried("a process is its client"):
            answer = client("sees", slices.environment(gmis[0]))
            check.row("a process is its client", answer["mps"], answer["mps"])
    with check.tried("a process is outside MPS"):
        answer = _in("direct", check, "sees")
        check.row("a process is outside MPS", not answer["mps"], not answer["mps"])


def shares(check: Check) -> None:
    """Checks the SMs that clients see, beside two ways of rounding."""
    total_sms = check.device.sm_count or 0
    with check.tried("outside MPS: SMs"):
        sm_count = _in("direct", check, "sees")["sm_count"]
        check.row("outside MPS: SMs", sm_count, sm_count == total_sms, expected=total_sms)
    with check.tried("shares"), slices_of(check.layout("mps", *_PERCENTS)) as (gmis, slices):
        for spec, percent in zip(gmis, _PERCENTS, strict=True):
            with check.tried(f"{percent} %: SMs"):
                answer = client("sees", slices.environment(spec))
                floor = total_sms * percent // 100
                expected = f"{floor}, in pairs {floor - floor % 2}; {_OFF} off at most"
                near = answer["mps"] and abs(answer["sm_count"] - floor) <= _OFF
                check.row(f"{percent} %: SMs", answer["sm_count"], near, expected=expected)


def ipc(check: Check) -> None:
    """Checks CUDA IPC between two processes, also for small allocations, and times it."""
    for backend, half in (("mps", 50), ("direct", None)):
        for library in ("torch", "cupy"):
            title = f"{backend}, {library}"
            layout = check.layout(backend, half, half)
            with check.tried(title), slices_of(layout) as (gmis, slices):
                exporter, importer = (slices.environment(spec) for spec in gmis)
                with started("exports", exporter, library) as process:
                    handles = json.dumps(process.answer())
                    times = client("imports", importer, library, handles)
                    process.end(_ENDED_S)
                big, *small = times.pop("right")
                check.row(f"{title}: 10 MiB are what was written", big, big)
                check.row(f"{title}: so are twice 0.5 MiB", small, all(small))
                check.row(f"{title}: us", times, None)


def conditional(check: Check) -> None:
    """Checks a loop in a graph, by warp."""
    for backend in ("direct", "mps", "green"):
        what = f"{backend}: rounds of a loop to 10"
        with check.tried(what):
            rounds = _in(backend, check, "loops", _where(backend))
            check.row(what, rounds, rounds == 10, expected=10)


def capture(check: Check) -> None:
    """Checks an update in a graph while another thread calls CUDA."""
    for backend in ("direct", "green"):
        with check.tried(f"{backend}: captured"):
            answer = _in(backend, check, "captures", _where(backend))
            check.row(
                f"{backend}: largest difference to eager", answer["off"],
                answer["off"] <= _DIFFERENCE, expected=f"{_DIFFERENCE} at most",
            )  # fmt: skip
            called = answer["calls"] > 0 and not answer["error"]
            check.row(f"{backend}: calls of another thread meanwhile", answer["calls"], called,
                      why=answer["error"])  # fmt: skip
            inside = answer["inside"] and answer["sms"] > 0
            check.row(f"{backend}: SMs of the replays", answer["sms"],
                      None if answer["fault"] else inside, why=answer["fault"],
                      expected=f"of the {answer['allowed']} of its stream")  # fmt: skip


def events(check: Check) -> None:
    """Checks torch's events on green streams."""
    with check.tried("events"):
        for name, problem in _in("green", check, "events").items():
            check.row(name, not problem, not problem, why=problem)


def registered(check: Check) -> None:
    """Checks memory of a memfd that CUDA registers."""
    with check.tried("registered"):
        answer = _in("direct", check, "registered")
        check.row("registered", answer["pinned"], answer["pinned"], why=answer["why_not"])
        check.row("copies both ways are right", answer["right"], answer["right"])
        check.row("16 MiB there and back: us", answer["both_ways_us"], None)


def usage(check: Check) -> None:
    """Asks NVML about a process that keeps the GPU at work."""
    for backend, percent in (("direct", None), ("mps", 100)):
        layout = check.layout(backend, percent)
        with check.tried(f"{backend}: usage"), slices_of(layout) as (gmis, slices):
            meter = DeviceMeter()
            try:
                with started("works", slices.environment(gmis[0])) as process:
                    process.answer()
                    meter.look(layout, {0: process.pid})
                    meter.begin()
                    time.sleep(_WATCHED_S)  # usage is measured over a time
                    busy, held = meter.end().sm_activity, _held(check, process.pid)
                    process.end(_ENDED_S)
            finally:
                meter.close()
            check.row(f"{backend}: SMs busy (GPM)", None if busy is None else round(busy, 2),
                      bool(busy), expected="more than 0")  # fmt: skip
            check.row(f"{backend}: memory of the process, MiB", held[0] and held[0] >> 20,
                      bool(held[0]), why=held[1])  # fmt: skip


def _held(check: Check, pid: int) -> tuple[int | None, str]:
    """Returns the bytes that a process holds by NVML, and a text with the processes it lists."""
    with driver.nvml_session() as nvml:
        handle = nvml.nvmlDeviceGetHandleByUUID(check.device.uuid)
        listed = driver.read_processes(nvml, [handle])
    own = [process for process in listed if process.pid == pid]
    names = ", ".join(f"{p.pid} ({p.kind}, {p.mem_bytes} bytes)" for p in listed)
    return (own[0].mem_bytes if own else None), f"it is {pid}; listed are {names or 'none'}"


def kernels(check: Check) -> None:
    """Checks whether kernels that were compiled ahead of time are loaded."""
    if not KERNELS.exists():
        check.row("kernels", f"not here: {KERNELS.name}", None)
        return
    if importlib.util.find_spec("warp") is None:
        check.row("kernels", "not here: warp-lang", None)
        return
    with check.tried("kernels"), slices_of(check.layout("direct", None)) as (gmis, slices):
        run = subprocess.run(
            [sys.executable, str(KERNELS)], env=merged(slices.environment(gmis[0])),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False,
        )  # fmt: skip
        answers = [line for line in run.stdout.splitlines() if line.startswith("{")]
        if run.returncode or not answers:
            raise RuntimeError(f"{KERNELS.name} ended with {run.returncode}:\n{run.stdout}")
        answer = json.loads(answers[-1])
        cached, compiled = answer["from_cache"], [module["module"] for module in answer["compiled"]]
        check.row("modules taken as they were", cached, cached > 0)
        check.row("modules compiled again", len(compiled), not compiled, expected=0,
                  why=", ".join(compiled[:5]))  # fmt: skip
        check.row("until the first step: s", answer["first_step_s"], None)


def green(check: Check) -> None:
    """Checks that contexts of one split of the GPU run on SMs that no other has."""
    with check.tried("green contexts"):
        answer = _in("green", check, "green")
        check.row("torch works on a stream of one", answer["torch"], answer["torch"])
        launched = not answer["fault"]
        check.row(
            "a kernel of the primary context's module does", launched, launched,
            why=answer["fault"],
            workaround="warp and cupy load such modules: use mps or direct; torch alone can go on "
            "with green (adapter torch, comm.reduction: mpr).",
        )  # fmt: skip
        if not launched:
            return
        sets = [set(sms) for sms in answer["sms"]]
        counts = [len(sms) for sms in sets]
        apart = sum(counts) == len(set().union(*sets))
        check.row("SMs of three contexts", counts, all(counts),
                  expected=f"in groups of {answer['group_sms']}")  # fmt: skip
        check.row("no SM in two of them", apart, apart)
        check.row("as many as the driver says", answer["said"], counts == answer["said"])


def reduce(
    check: Check,
    gangs: Sequence[tuple[str, int]] = (
        ("direct", 4), ("mps", 4), ("green", 4), ("mps", 2), ("direct", 2),
    ),
) -> None:  # fmt: skip
    """Checks reductions among GMIs of one GPU, in its memory (ipc) and through the host (mpr)."""
    from gmi_drl.comm.plan.measure import PRELOAD as COMM

    strategies = ["ipc", "mpr"]
    if check.device.kind == "gpu" and importlib.util.find_spec("cupy") is None:
        check.row(
            "ipc", "not here: cupy-cuda13x", None, workaround=ASSUMPTIONS["reduce"].workaround
        )
        strategies = ["mpr"]
    runtime.init(COMM)  # one fork server for all of them
    try:
        for backend, count in gangs:
            percent = None if backend in ("direct", "cpu") else 100 // count
            layout = check.layout(backend, *[percent] * count)
            if not _reduced(check, layout, strategies) and len(strategies) > 1:
                for strategy in strategies:  # one by one, to see which of them fails
                    _reduced(check, layout, [strategy])
    finally:
        runtime.shutdown()


def _reduced(check: Check, layout: Layout, strategies: Sequence[Any]) -> bool:
    """Measures strategies in one gang; tells whether that was possible."""
    from gmi_drl.comm.plan.measure import measure
    from gmi_drl.comm.plan.project import key_of, stages_of
    from gmi_drl.placement.reduction import reducing

    title = f"{layout.gmis[0].backend}, {len(layout.gmis)} GMIs"
    stages, names = {}, {}
    for strategy in strategies:
        (stage,) = stages_of(strategy, reducing(layout))
        key = key_of(stage, layout)
        stages[key], names[key] = stage, strategy
    with check.tried(f"{title}: {' and '.join(strategies)}"):
        for key, link in measure(stages, layout, _STEP).items():
            latencies_us = {f"{nbytes >> 10} KiB": round(s * 1e6, 1) for nbytes, s in link.samples}
            check.row(f"{title}: {names[key]}, us", latencies_us, True)
        return True
    return False


def static(check: Check) -> None:
    """Checks static partitions (-S), where the daemon has them."""
    cuda = check.topology.cuda or look().cuda
    if cuda is not None and cuda < _STATIC:
        why = f"CUDA {cuda[0]}.{cuda[1]}; the daemon has them from 13.1 on"
        check.row("static SM partitions", "not asked", None, why=why)
        return
    half = check.layout("mps", 50)
    with check.tried("static SM partitions"), slices_of(half) as (gmis, slices):
        environment = slices.environment(gmis[0])
        partition = environment.get("CUDA_MPS_SM_PARTITION")
        check.row("static SM partitions", partition, None, why="" if partition else "the daemon "
                  "started without")  # fmt: skip
        if partition:
            count = client("sees", environment)["sm_count"]
            expected = num_chunks(gmis[0], check.device) * chunk_sms(check.device)
            check.row("SMs of half of the chunks", count, count == expected, expected=expected)


def terminate(check: Check) -> None:
    """Checks how a fenced client at work ends, and whether others get in afterwards."""
    layout = check.layout("mps", 50, 50)
    with check.tried("a client is fenced"), slices_of(layout) as (gmis, slices):
        with started("works", slices.environment(gmis[0])) as running:
            running.answer()
            began_s = time.monotonic()
            slices.fence_all([(gmis[0], running.pid)])
            check.row("fence took s", round(time.monotonic() - began_s, 3), None)
            try:
                running.process.wait(_ENDED_S)
                end = "by itself"
            except subprocess.TimeoutExpired:
                running.process.kill()
                end = "it went on until SIGKILL"
            output = running.process.communicate()[0]
            errors = re.findall(r"(?:CUDA_ERROR_|cudaError)\w+|CUDA error[^\n\"]*", output)
            check.row("the client's end", end, None, why=", ".join(dict.fromkeys(errors)))
        began_s = time.monotonic()
        is_mps = client("sees", slices.environment(gmis[1]))["mps"]
        took_s = round(time.monotonic() - began_s, 1)
        check.row("another client gets in", is_mps, is_mps, expected=f"after {took_s} s")


def _in(backend: str, check: Check, name: str, *arguments: str) -> Any:
    """Returns the answer of a client that is alone on the GPU, by a backend."""
    percent = None if backend == "direct" else 50
    with slices_of(check.layout(backend, percent)) as (gmis, slices):
        return client(name, slices.environment(gmis[0]), *arguments)


def _where(backend: str) -> str:
    return "green" if backend == "green" else "plain"


CHECKS: Final[dict[str, Callable[[Check], None]]] = {
    function.__name__: function
    for function in (
        node, fork, mps, shares, ipc, conditional, capture, events, registered, usage, kernels,
        green, reduce, static, terminate,
    )
}  # fmt: skip


if __name__ == "__main__":
    _name, _path = sys.argv[1:]
    CHECKS[_name](Check(_name, Layout.from_json(Path(_path).read_text())))
