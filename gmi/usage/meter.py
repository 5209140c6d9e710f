"""Measures what a gang uses while it runs: memory, cores, and what NVML tells of its GPUs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from gmi_drl.gmi import nvml as driver
from gmi_drl.gmi.errors import DiscoveryError
from gmi_drl.gmi.nvml import mig_handles

from . import processes

if TYPE_CHECKING:
    from gmi_drl.gmi.gang import Gang
    from gmi_drl.placement.layout import Layout


@dataclass
class _Device:
    """Holds the measurements of one GPU of the gang."""

    handle: Any
    peak_bytes: int = 0
    share: float = 0.0  # largest use of the memory that GMIs may have, in the fullest part
    sample: Any = None  # of its counters, from `begin`


@dataclass(frozen=True)
class DeviceUsage:
    """Holds the peak use of devices; None where NVML does not report it."""

    mem_bytes: int | None  # of the fullest device
    share: float  # of the memory they may have; 0.0 if not known
    sm_activity: float | None  # share of busy SMs since `begin`, mean over devices


class DeviceMeter:
    """Measures the GPUs of one gang. Make it before the GMIs start; `close` it afterwards.

    GMIs may have the free memory of a GPU and their own, or their limit (mps) or MIG instance.
    """

    def __init__(self) -> None:
        self._devices: dict[int, _Device] = {}
        self._stack = contextlib.ExitStack()
        self._nvml: Any = None
        self._before: dict[str, int] = {}
        with contextlib.suppress(DiscoveryError):  # no driver here
            self._nvml = self._stack.enter_context(driver.nvml_session())
        if self._nvml is None:
            return
        with self._measuring():
            for number in range(self._nvml.nvmlDeviceGetCount()):
                handle = self._nvml.nvmlDeviceGetHandleByIndex(number)
                for name, part in self._parts(handle, True) + self._parts(handle, False):
                    memory = driver.query(self._nvml, self._nvml.nvmlDeviceGetMemoryInfo, part)
                    self._before[name] = 0 if memory is None else int(memory.used)

    def look(self, layout: Layout, pids: Mapping[int, int]) -> None:
        """Measures the memory in use on devices. `pids`: the GMIs' processes, by gmi_id."""
        if self._nvml is None:
            return
        with self._measuring():
            for spec in layout.gmis:
                device = layout.topology.devices[spec.gpu_id]
                if device.uuid is not None and device.index not in self._devices:
                    handle = self._nvml.nvmlDeviceGetHandleByUUID(device.uuid)
                    self._devices[device.index] = _Device(handle)
            for index, gpu in self._devices.items():
                self._look(layout, index, gpu, pids)

    def begin(self) -> None:
        """Begins to measure the activity of SMs."""
        if self._nvml is not None:
            with self._measuring():
                for gpu in self._devices.values():
                    gpu.sample = gpu.sample or self._sample(gpu.handle)

    def end(self) -> DeviceUsage:
        """Returns what was used so far."""
        devices, busy = self._devices.values(), list[float]()
        if self._nvml is not None:
            with self._measuring():
                for gpu in devices:
                    busy += self._busy(gpu) if gpu.sample is not None else []
        return DeviceUsage(
            max((gpu.peak_bytes for gpu in devices), default=None),
            max((gpu.share for gpu in devices), default=0.0),
            sum(busy) / len(busy) if busy else None,
        )

    def close(self) -> None:
        """Frees the samples, and closes NVML."""
        for gpu in self._devices.values():
            if gpu.sample is not None:
                self._free(gpu.sample)
        self._devices, self._nvml = {}, None
        self._stack.close()

    @contextlib.contextmanager
    def _measuring(self) -> Iterator[None]:
        """Stops measuring when a GPU is lost in the block, which ends a run by itself."""
        try:
            yield
        except self._nvml.NVMLError:
            self._nvml = None

    def _parts(self, handle: Any, in_mig: bool) -> list[tuple[str, Any]]:
        """Returns the parts with their own memory: a GPU, or each of its MIG devices."""
        handles = mig_handles(self._nvml, handle) if in_mig else [handle]
        return [(str(self._nvml.nvmlDeviceGetUUID(part)), part) for part in handles]

    def _look(self, layout: Layout, index: int, gpu: _Device, pids: Mapping[int, int]) -> None:
        specs = [layout.gmis[gmi_id] for gmi_id in layout.mpl[index]]
        in_mig = any(s.mig is not None for s in specs)
        parts = self._parts(gpu.handle, in_mig)
        processes = [gpu.handle, *(part for _, part in parts)] if in_mig else [gpu.handle]
        held = {p.pid: p.mem_bytes or 0 for p in driver.read_processes(self._nvml, processes)}
        own = {pids[s.gmi_id]: held.get(pids[s.gmi_id], 0) for s in specs if s.gmi_id in pids}
        known = bool(own) and all(own.values())
        used, share = 0, 0.0
        for name, part in parts:
            memory = driver.query(self._nvml, self._nvml.nvmlDeviceGetMemoryInfo, part)
            if memory is None:
                continue
            part_bytes = max(0, int(memory.used) - self._before.get(name, 0))
            if known and not in_mig:  # without other processes, which may have come or gone
                part_bytes = sum(own.values())
            used += part_bytes
            share = max(share, part_bytes / max(1, part_bytes + int(memory.free)))
        for spec in specs:
            if spec.mem_bytes is not None and spec.gmi_id in pids and known:
                share = max(share, own[pids[spec.gmi_id]] / spec.mem_bytes)
        gpu.peak_bytes, gpu.share = max(gpu.peak_bytes, used), max(gpu.share, share)

    # SM activity: the driver counts between two samples (GPM, from Hopper on).

    def _sample(self, handle: Any) -> Any:
        nvml = self._nvml
        support = driver.query(nvml, nvml.nvmlGpmQueryDeviceSupport, handle)
        if support is None or not support.isSupportedDevice:
            return None
        sample = driver.query(nvml, nvml.nvmlGpmSampleAlloc)
        if sample is not None and driver.query(nvml, nvml.nvmlGpmSampleGet, handle, sample) is None:
            self._free(sample)
            return None
        return sample

    def _free(self, sample: Any) -> None:
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlGpmSampleFree(sample)

    def _busy(self, gpu: _Device) -> list[float]:
        nvml, sample = self._nvml, self._sample(gpu.handle)
        if sample is None:
            return []
        try:
            question = nvml.c_nvmlGpmMetricsGet_t()
            question.version, question.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 1
            question.sample1, question.sample2 = gpu.sample, sample
            question.metrics[0].metricId = nvml.NVML_GPM_METRIC_SM_UTIL
            answer = driver.query(nvml, nvml.nvmlGpmMetricsGet, question)
            if answer is None or answer.metrics[0].nvmlReturn != nvml.NVML_SUCCESS:
                return []
            return [float(answer.metrics[0].value) / 100]  # NVML says percent
        finally:
            self._free(sample)


_POLL_S: Final = 1.0  # between measurements of CPU time, which counts hundredths of a second


@dataclass(frozen=True)
class GangUsage:
    """Holds the peak use of all GMIs together."""

    host_bytes: int  # peak; shared pages count once
    host_share: float  # peak, over itself plus the host's free memory
    cores: float  # mean number of busy cores since `begin`
    devices: DeviceUsage


class Meter:
    """Measures a gang from outside. Make it before the gang, as a context manager.

    Call `look` some ten times a second; it returns at once.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._host_bytes, self._host_share = 0, 0.0
        self._pids: set[int] = set()
        self._looked_s = clock()
        self._spent: dict[int, float] = {}  # seconds of processor time at the last look, by gmi_id
        self._began: tuple[float, float] | None = None  # clock and processor time
        self._cores = 0.0
        self.busy: Mapping[int, float] = {}  # cores between the last two looks, by gmi_id
        # The time of the last look, by gmi_id, at which the GMI was busy, or of the first.
        self.worked_s: Mapping[int, float] = {}
        self._devices = DeviceMeter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._devices.close()

    def look(self, gang: Gang) -> None:
        """Measures memory now, and CPU time once a second."""
        pids = gang.pids()
        if new_pids := set(pids.values()) - self._pids:
            # With its children so far; later ones inherit it.
            processes.offer_to_oom_killer(processes.with_children(new_pids))
            self._pids |= new_pids
        self._devices.look(gang.layout, pids)
        now_s = self._clock()
        if now_s - self._looked_s < _POLL_S:
            return
        spent = {gmi: processes.cpu_s(processes.with_children([pid])) for gmi, pid in pids.items()}
        elapsed_s, self._looked_s = now_s - self._looked_s, now_s
        self.busy = {
            gmi: max(0.0, seconds - self._spent.get(gmi, 0.0)) / elapsed_s
            for gmi, seconds in spent.items()
        }
        self._spent = spent
        self.worked_s = {
            gmi: now_s if cores > processes.IDLE_CORES else self.worked_s.get(gmi, now_s)
            for gmi, cores in self.busy.items()
        }

    def begin(self, gang: Gang) -> None:
        """Begins to measure, from the memory that is held now."""
        pids = set(gang.pids().values())
        self._began = self._clock(), processes.cpu_s(processes.with_children(pids))
        self._measure_host(pids)
        self._devices.begin()

    def end(self, gang: Gang) -> GangUsage:
        """Returns what was used since `begin`; the processes must still be there."""
        pids = set(gang.pids().values())
        if self._began is not None:
            began_s, spent_s = self._began
            elapsed_s = max(self._clock() - began_s, 1e-9)
            spent_s = processes.cpu_s(processes.with_children(pids)) - spent_s
            self._cores = max(0.0, spent_s) / elapsed_s
        self._measure_host(pids)
        return GangUsage(self._host_bytes, self._host_share, self._cores, self._devices.end())

    def _measure_host(self, pids: set[int]) -> None:
        all_pids = processes.with_children(pids)
        held_bytes = processes.memory_bytes(all_pids, processes.parents(pids))
        self._host_bytes = max(self._host_bytes, held_bytes)
        share = held_bytes / max(1, held_bytes + processes.host_memory().free_bytes)
        self._host_share = max(self._host_share, share)
