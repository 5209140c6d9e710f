"""An NVIDIA driver that is not there: what nvidia-ml-py calls, with GPUs as a test wants them.

It stands below nvidia-ml-py, which does all of its marshalling: the functions take the ctypes
arguments that the real library takes, and write through them. `boxes` has whole machines.
"""

import ctypes
from dataclasses import dataclass, field

import pynvml

from fake_mig import FakeGpuInstance, FakeMig, profile_of

_SUCCESS = 0
_TEXTS = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: b"Not Supported",
    pynvml.NVML_ERROR_NO_PERMISSION: b"Insufficient Permissions",
    pynvml.NVML_ERROR_NOT_FOUND: b"Not Found",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: b"Driver Not Loaded",
    pynvml.NVML_ERROR_GPU_IS_LOST: b"GPU is lost",
    pynvml.NVML_ERROR_IN_USE: b"In use by another client",
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: b"Insufficient Resources",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: b"RM has detected an NVML/RM version mismatch.",
}
_MIG = 1 << 16  # handles of MIG devices begin here: GPU, GPU instance, compute instance


@dataclass
class FakeProcess:
    """A process on a GPU, in the list of its kind: compute, mps or graphics."""

    pid: int
    kind: str = "compute"
    mem_bytes: int | None = 1 << 30


@dataclass
class FakeGpu:
    """One GPU; `error` is what every question about it returns, from `lost_after` of them on."""

    name: str = "NVIDIA H200"
    uuid: str = "GPU-00000000-0000-0000-0000-000000000000"
    num_cores: int = 16896
    capability: tuple[int, int] = (9, 0)
    mem_bytes: int = 141 << 30
    cpu_mask: tuple[int, ...] = ()
    error: int = _SUCCESS
    mig: bool | None = None  # None: of a kind without MIG
    reaches: tuple[str, ...] = ()  # uuids of the GPUs whose memory it reads
    mig_pending: bool | None = None  # the mode after the next reset; None: the same
    gpu_instances: list[FakeGpuInstance] = field(default_factory=list)
    compute_mode: int = pynvml.NVML_COMPUTEMODE_DEFAULT
    numa_node: int | None = None
    pci: str = ""  # "00000000:07:00.0"
    nvlinks: tuple[str | None, ...] = ()  # where each goes: a PCI address, "switch"; None: down
    near: dict[str, int] = field(default_factory=dict)  # common ancestor, by PCI address
    processes: list[FakeProcess] = field(default_factory=list)
    lost_after: int | None = None  # questions that it still answers; then the bus has lost it
    asked: int = 0
    used_bytes: int = 0  # of its memory
    mig_used: dict[str, int] = field(default_factory=dict)  # of each MIG device's, by uuid
    gpm: bool = False  # whether its SMs can be watched
    sm_busy: float = 0.0

    def state(self):
        """What a question about it returns."""
        self.asked += 1
        if self.lost_after is not None and self.asked > self.lost_after:
            return self.error or pynvml.NVML_ERROR_GPU_IS_LOST
        return _SUCCESS if self.lost_after is not None else self.error


@dataclass
class FakeLib(FakeMig):
    """Stands in for libnvidia-ml.so; `error` is what its initialisation returns."""

    gpus: list[FakeGpu] = field(default_factory=list)
    error: int = _SUCCESS
    root: bool = True  # False: this user may not ask or change what root may
    driver: str = "580.159.03"
    cuda: int = 13000
    samples: dict[int, FakeGpu | None] = field(default_factory=dict)  # GPM's, and of which GPU

    def __post_init__(self):
        self.nvmlErrorString = _ErrorString()

    def nvmlInitWithFlags(self, flags):
        return self.error

    def nvmlShutdown(self):
        return _SUCCESS

    def nvmlSystemGetDriverVersion(self, buffer, size):
        buffer.value = self.driver.encode()
        return _SUCCESS

    def nvmlSystemGetCudaDriverVersion(self, version):
        version._obj.value = self.cuda
        return _SUCCESS

    # Handles.

    def nvmlDeviceGetCount_v2(self, count):
        count._obj.value = len(self.gpus)
        return _SUCCESS

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):
        place = index.value
        _write(handle, place + 1)
        return self.gpus[place].state()

    def nvmlDeviceGetHandleByUUID(self, uuid, handle):
        known = [gpu.uuid.encode() for gpu in self.gpus]
        if uuid.value in known:
            return self.nvmlDeviceGetHandleByIndex_v2(
                ctypes.c_uint(known.index(uuid.value)), handle
            )
        for place, gpu in enumerate(self.gpus):
            for instance, compute in _mig_devices(gpu):
                if compute.uuid.encode() == uuid.value:
                    _write(handle, _mig_handle(place, instance, compute))
                    return gpu.state()
        return pynvml.NVML_ERROR_NOT_FOUND

    # A GPU.

    def nvmlDeviceGetUUID(self, handle, buffer, size):
        mig = self._mig(handle)
        return self._text(handle, mig[1].uuid if mig else self._gpu(handle).uuid, buffer)

    def nvmlDeviceGetName(self, handle, buffer, size):
        gpu, mig = self._gpu(handle), self._mig(handle)
        name = gpu.name
        if mig:
            whole, part = profile_of(gpu, mig[0].profile_id), mig[1]
            slices = len(mig[0].compute_instances) > 1 and _compute_slices(part.profile_id)
            name += f" MIG {f'{slices}c.' if slices else ''}{whole.name}"
        return self._text(handle, name, buffer)

    def nvmlDeviceGetMemoryInfo(self, handle, info):
        gpu, mig = self._gpu(handle), self._mig(handle)
        info._obj.total = profile_of(gpu, mig[0].profile_id).mem_mb << 20 if mig else gpu.mem_bytes
        info._obj.used = gpu.mig_used.get(mig[1].uuid, 0) if mig else gpu.used_bytes
        info._obj.free = info._obj.total - info._obj.used
        return gpu.state()

    def nvmlDeviceGetNumGpuCores(self, handle, cores):
        gpu = self._gpu(handle)
        cores._obj.value = gpu.num_cores
        return gpu.state() if gpu.num_cores else pynvml.NVML_ERROR_NOT_SUPPORTED

    def nvmlDeviceGetCudaComputeCapability(self, handle, major, minor):
        gpu = self._gpu(handle)
        major._obj.value, minor._obj.value = gpu.capability
        return gpu.state()

    def nvmlDeviceGetCpuAffinity(self, handle, words, masks):
        gpu = self._gpu(handle)
        if not gpu.cpu_mask:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        for word in range(getattr(words, "value", words)):
            masks._obj[word] = gpu.cpu_mask[word] if word < len(gpu.cpu_mask) else 0
        return gpu.state()

    def nvmlDeviceGetMemoryAffinity(self, handle, words, nodes, scope):
        gpu = self._gpu(handle)
        if gpu.numa_node is None:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        nodes._obj[gpu.numa_node // 64] = 1 << gpu.numa_node % 64
        return gpu.state()

    def nvmlDeviceGetComputeMode(self, handle, mode):
        mode._obj.value = self._gpu(handle).compute_mode
        return self._gpu(handle).state()

    def nvmlDeviceGetPciInfo_v3(self, handle, info):
        return self._pci(self._gpu(handle), self._gpu(handle).pci, info)

    # Its processes: the first call asks how many there are.

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle, count, processes):
        return self._processes(handle, ("compute", "mps"), count, processes)

    def nvmlDeviceGetMPSComputeRunningProcesses_v3(self, handle, count, processes):
        return self._processes(handle, ("mps",), count, processes)

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle, count, processes):
        return self._processes(handle, ("graphics",), count, processes)

    # How it reaches others.

    def nvmlDeviceGetP2PStatus(self, handle, other, index, status):
        near = self._gpu(other).uuid in self._gpu(handle).reaches
        status._obj.value = pynvml.NVML_P2P_STATUS_OK if near else 1
        return self._gpu(handle).state()

    def nvmlDeviceGetTopologyCommonAncestor(self, handle, other, level):
        near = self._gpu(handle).near
        level._obj.value = near.get(self._gpu(other).pci, pynvml.NVML_TOPOLOGY_SYSTEM)
        return self._gpu(handle).state()

    def nvmlDeviceGetNvLinkState(self, handle, link, active):
        gpu = self._gpu(handle)
        if link >= len(gpu.nvlinks):
            return pynvml.NVML_ERROR_INVALID_ARGUMENT if gpu.nvlinks else _UNSUPPORTED
        active._obj.value = int(gpu.nvlinks[link] is not None)
        return gpu.state()

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle, link, kind):
        switch = self._gpu(handle).nvlinks[link] == "switch"
        kind._obj.value = (
            pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH if switch else pynvml.NVML_NVLINK_DEVICE_TYPE_GPU
        )
        return self._gpu(handle).state()

    def nvmlDeviceGetNvLinkRemotePciInfo_v2(self, handle, link, info):
        remote = self._gpu(handle).nvlinks[link]
        return self._pci(
            self._gpu(handle), "00000000:C4:00.0" if remote == "switch" else remote, info
        )

    # What its SMs do between two samples.

    def nvmlGpmQueryDeviceSupport(self, handle, support):
        support._obj.isSupportedDevice = int(self._gpu(handle).gpm)
        return self._gpu(handle).state()

    def nvmlGpmSampleAlloc(self, sample):
        number = max(self.samples, default=0) + 1
        self.samples[number] = None
        _write(sample, number)
        return _SUCCESS

    def nvmlGpmSampleGet(self, handle, sample):
        self.samples[_value(sample)] = self._gpu(handle)
        return self._gpu(handle).state() if self._gpu(handle).gpm else _UNSUPPORTED

    def nvmlGpmSampleFree(self, sample):
        del self.samples[_value(sample)]
        return _SUCCESS

    def nvmlGpmMetricsGet(self, question):
        asked = question._obj
        first, second = _value(asked.sample1), _value(asked.sample2)
        gpu, metric = self.samples[first], asked.metrics[0]
        if first >= second or self.samples[second] is not gpu or asked.version != 1:
            return pynvml.NVML_ERROR_INVALID_ARGUMENT
        known = metric.metricId == pynvml.NVML_GPM_METRIC_SM_UTIL
        metric.nvmlReturn = _SUCCESS if known else _UNSUPPORTED
        metric.value = 100 * gpu.sm_busy
        return gpu.state()

    # MIG, as it is read; what changes it is in fake_mig.

    def nvmlDeviceGetMigMode(self, handle, current, pending):
        gpu = self._gpu(handle)
        if gpu.mig is None:
            return _UNSUPPORTED
        current._obj.value = int(gpu.mig)
        pending._obj.value = int(gpu.mig if gpu.mig_pending is None else gpu.mig_pending)
        return gpu.state()

    def nvmlDeviceGetMaxMigDeviceCount(self, handle, count):
        gpu = self._gpu(handle)
        count._obj.value = 0 if gpu.mig is None else 4 if "A30" in gpu.name else 7
        return gpu.state()

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index, device):
        found = _mig_devices(self._gpu(handle))
        if index.value >= len(found):
            return pynvml.NVML_ERROR_NOT_FOUND
        _write(device, _mig_handle(_value(handle) - 1, *found[index.value]))
        return self._gpu(handle).state()

    def nvmlDeviceIsMigDeviceHandle(self, handle, answer):
        answer._obj.value = int(_value(handle) >= _MIG)
        return _SUCCESS

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle, device):
        _write(device, _value(handle) >> 16)
        return self._gpu(handle).state()

    def nvmlDeviceGetGpuInstanceId(self, handle, answer):
        return self._instance(handle, lambda instance, compute: instance.id, answer)

    def nvmlDeviceGetComputeInstanceId(self, handle, answer):
        return self._instance(handle, lambda instance, compute: compute.id, answer)

    def nvmlDeviceGetAttributes_v2(self, handle, attributes):
        gpu, mig = self._gpu(handle), self._mig(handle)
        if mig is None:
            return _UNSUPPORTED
        profile, found = profile_of(gpu, mig[0].profile_id), attributes._obj
        several = len(mig[0].compute_instances) > 1
        slices = _compute_slices(mig[1].profile_id) if several else profile.compute
        found.gpuInstanceSliceCount, found.computeInstanceSliceCount = profile.compute, slices
        found.multiprocessorCount = (profile.sm_count or 0) * slices // profile.compute
        found.memorySizeMB = profile.mem_mb
        return gpu.state()

    def _gpu(self, handle):
        """The GPU of a handle, also of one of its MIG devices."""
        value = _value(handle)
        return self.gpus[(value >> 16 if value >= _MIG else value) - 1]

    def _mig(self, handle):
        """(GPU instance, compute instance) of a MIG device; None for a GPU, or if it is gone."""
        value = _value(handle)
        for instance, compute in _mig_devices(self._gpu(handle)) if value >= _MIG else ():
            if (instance.id, compute.id + 1) == (value >> 8 & 255, value & 255):
                return instance, compute
        return None

    def _instance(self, handle, question, answer):
        mig = self._mig(handle)
        if mig is None:
            return pynvml.NVML_ERROR_NOT_FOUND
        answer._obj.value = question(*mig)
        return self._gpu(handle).state()

    def _processes(self, handle, kinds, count, array):
        gpu, mig = self._gpu(handle), self._mig(handle)
        found = [] if mig else [process for process in gpu.processes if process.kind in kinds]
        for _, compute in [mig] if mig else _mig_devices(gpu):
            if "compute" in kinds:
                found += [FakeProcess(pid) for pid in compute.in_use_by]
        room, count._obj.value = count._obj.value, len(found)
        if array is None or room < len(found):
            return pynvml.NVML_ERROR_INSUFFICIENT_SIZE if found else gpu.state()
        for place, process in enumerate(found):
            array[place].pid = process.pid
            unknown = pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value
            array[place].usedGpuMemory = unknown if process.mem_bytes is None else process.mem_bytes
        return gpu.state()

    def _pci(self, gpu, address, info):
        if not address:
            return _UNSUPPORTED
        info._obj.busId = address.encode()
        return gpu.state()

    def _text(self, handle, text, buffer):
        buffer.value = text.encode()
        return self._gpu(handle).state()


_UNSUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED


def _mig_devices(gpu):
    """What exists of (GPU instance, compute instance), in the order that the driver counts them."""
    instances = sorted(gpu.gpu_instances, key=lambda instance: instance.id)
    return [(i, c) for i in instances if gpu.mig for c in i.compute_instances]


def _mig_handle(place, instance, compute):
    return (place + 1) << 16 | instance.id << 8 | compute.id + 1


def _compute_slices(profile_id):
    """NVML's enum of compute instance profiles: 1, 2, 3, 4, 7, 8 slices."""
    return {0: 1, 1: 2, 2: 3, 3: 4, 4: 7, 5: 8}.get(profile_id, 1)


def _value(handle):
    return ctypes.cast(handle, ctypes.c_void_p).value


def _write(handle, value):
    ctypes.cast(handle, ctypes.POINTER(ctypes.c_void_p))[0] = value


class _ErrorString:
    """A function with attributes, as ctypes has them: nvidia-ml-py sets its restype."""

    def __call__(self, code):
        return _TEXTS.get(code, b"Unknown Error")


def install(monkeypatch, *gpus, error=_SUCCESS, **fields):
    """Makes nvidia-ml-py talk to a fake with these GPUs until the end of the test."""
    lib = FakeLib(list(gpus), error, **fields)
    monkeypatch.setattr(pynvml, "nvmlLib", lib)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "_LoadNvmlLibrary", lambda: None)
    return lib
