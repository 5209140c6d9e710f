"""An NVIDIA driver that is not there: what nvidia-ml-py calls, with GPUs as a test wants them.

It stands below nvidia-ml-py, which does all of its marshalling: the functions take the ctypes
arguments that the real library takes, and write through them.
"""

import ctypes
from dataclasses import dataclass, field

import pynvml

_SUCCESS = 0
_TEXTS = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: b"Not Supported",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: b"Driver Not Loaded",
    pynvml.NVML_ERROR_GPU_IS_LOST: b"GPU is lost",
}


@dataclass
class FakeGpu:
    """One GPU; `error` is what every question about it returns."""

    name: str = "NVIDIA H200"
    uuid: str = "GPU-00000000-0000-0000-0000-000000000000"
    num_cores: int = 16896
    capability: tuple[int, int] = (9, 0)
    mem_bytes: int = 141 << 30
    cpu_mask: tuple[int, ...] = ()
    error: int = _SUCCESS
    mig: bool | None = None  # None: of a kind without MIG
    reaches: tuple[str, ...] = ()  # uuids of the GPUs whose memory it reads


@dataclass
class FakeLib:
    """Stands in for libnvidia-ml.so; `error` is what its initialisation returns."""

    gpus: list[FakeGpu] = field(default_factory=list)
    error: int = _SUCCESS

    def __post_init__(self):
        self.nvmlErrorString = _ErrorString()

    def nvmlInitWithFlags(self, flags):
        return self.error

    def nvmlShutdown(self):
        return _SUCCESS

    def nvmlDeviceGetCount_v2(self, count):
        count._obj.value = len(self.gpus)
        return _SUCCESS

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):
        place = index.value
        target = ctypes.cast(handle, ctypes.POINTER(ctypes.c_void_p))
        target[0] = place + 1
        return _SUCCESS

    def nvmlDeviceGetHandleByUUID(self, uuid, handle):
        known = [gpu.uuid.encode() for gpu in self.gpus]
        if uuid.value not in known:
            return pynvml.NVML_ERROR_NOT_FOUND
        return self.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(known.index(uuid.value)), handle)

    def nvmlDeviceGetMigMode(self, handle, current, pending):
        gpu = self._gpu(handle)
        if gpu.mig is None:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        current._obj.value = pending._obj.value = int(gpu.mig)
        return gpu.error

    def nvmlDeviceGetP2PStatus(self, handle, other, index, status):
        near = self._gpu(other).uuid in self._gpu(handle).reaches
        status._obj.value = pynvml.NVML_P2P_STATUS_OK if near else 1
        return _SUCCESS

    def nvmlDeviceGetUUID(self, handle, buffer, size):
        return self._text(handle, "uuid", buffer)

    def nvmlDeviceGetName(self, handle, buffer, size):
        return self._text(handle, "name", buffer)

    def nvmlDeviceGetMemoryInfo(self, handle, info):
        gpu = self._gpu(handle)
        info._obj.total = gpu.mem_bytes
        return gpu.error

    def nvmlDeviceGetNumGpuCores(self, handle, cores):
        gpu = self._gpu(handle)
        cores._obj.value = gpu.num_cores
        return gpu.error if gpu.num_cores else pynvml.NVML_ERROR_NOT_SUPPORTED

    def nvmlDeviceGetCudaComputeCapability(self, handle, major, minor):
        gpu = self._gpu(handle)
        major._obj.value, minor._obj.value = gpu.capability
        return gpu.error

    def nvmlDeviceGetCpuAffinity(self, handle, words, masks):
        gpu = self._gpu(handle)
        if not gpu.cpu_mask:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        for word in range(getattr(words, "value", words)):
            masks._obj[word] = gpu.cpu_mask[word] if word < len(gpu.cpu_mask) else 0
        return gpu.error

    def _gpu(self, handle):
        return self.gpus[ctypes.cast(handle, ctypes.c_void_p).value - 1]

    def _text(self, handle, name, buffer):
        gpu = self._gpu(handle)
        buffer.value = getattr(gpu, name).encode()
        return gpu.error


class _ErrorString:
    """A function with attributes, as ctypes has them: nvidia-ml-py sets its restype."""

    def __call__(self, code):
        return _TEXTS.get(code, b"Unknown Error")


def install(monkeypatch, *gpus, error=_SUCCESS):
    """Makes nvidia-ml-py talk to a fake with these GPUs until the end of the test."""
    lib = FakeLib(list(gpus), error)
    monkeypatch.setattr(pynvml, "nvmlLib", lib)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "_LoadNvmlLibrary", lambda: None)
    return lib
