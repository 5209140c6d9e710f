"""Green contexts of the fake driver, and as much of torch.cuda as a thread needs to work in one.

As documented: groups of one split share no SM; a descriptor takes groups of one split only; what
remains of a split is no whole group. Splits of the whole device overlap each other, as they do in
the real driver. Where FAKE_CUDA_TORCH is set, `torch.cuda` of a process that asks for its SMs
gets streams, one in each thread, as torch has them.
"""

import enum
import itertools
import os
import sys
import threading
import types

from . import driver as _driver


class CUdevResourceType(enum.IntEnum):
    CU_DEV_RESOURCE_TYPE_INVALID = 0
    CU_DEV_RESOURCE_TYPE_SM = 1


class CUgreenCtxCreate_flags(enum.IntEnum):
    CU_GREEN_CTX_DEFAULT_STREAM = 1


class CUstream_flags(enum.IntEnum):
    CU_STREAM_DEFAULT = 0
    CU_STREAM_NON_BLOCKING = 1


CUstream = int
fractions = []  # of the memory that torch was told to keep to
_contexts = {}  # green context -> its SMs
_streams = {}  # stream -> green context
_handles = itertools.count(0x1000, 0x10)
_splits = itertools.count(1)
_OK = _driver.CUresult.CUDA_SUCCESS
_WRONG = _driver.CUresult.CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION


def _resource(sms, split=0):
    sm = types.SimpleNamespace(smCount=len(sms))
    return types.SimpleNamespace(type=1, sm=sm, sms=tuple(sms), split=split)


def cuDeviceGetDevResource(device, kind):
    error, gpu = _driver._found(device)
    if "FAKE_CUDA_TORCH" in os.environ:
        _give_torch_streams(sys.modules["torch"])
    return error, None if error else _resource(range(gpu["sm_count"]))


def _least(gpu):
    major = gpu["capability"][0]
    return 8 if major >= 9 else {8: 4, 7: 2}.get(major, 1)


def cuDevSmResourceSplitByCount(num_groups, resource, flags, min_count):
    least = _least(_driver.gpus[0])
    size = -(-max(min_count, least) // least) * least
    count, split = min(num_groups, resource.sm.smCount // size), next(_splits)
    if not count:
        return _WRONG, [], 0, None
    groups = [_resource(resource.sms[i * size : (i + 1) * size], split) for i in range(count)]
    empty = [_resource((), split) for _ in range(num_groups - count)]
    return _OK, groups + empty, count, _resource(resource.sms[count * size :], split)


def cuDevResourceGenerateDesc(resources, count):
    sms = [sm for resource in resources[:count] for sm in resource.sms]
    if len({resource.split for resource in resources}) != 1 or len(set(sms)) != len(sms):
        return _WRONG, None
    return _OK, tuple(sms)


def cuGreenCtxCreate(descriptor, device, flags):
    if flags != 1:
        return _driver.CUresult.CUDA_ERROR_INVALID_VALUE, None
    handle = next(_handles)
    _contexts[handle] = descriptor
    return _OK, handle


def cuGreenCtxGetDevResource(handle, kind):
    return _OK, _resource(_contexts[handle])


def cuGreenCtxStreamCreate(handle, flags, priority):
    if flags != CUstream_flags.CU_STREAM_NON_BLOCKING:
        return _driver.CUresult.CUDA_ERROR_INVALID_VALUE, None
    stream = next(_handles)
    _streams[stream] = handle
    return _OK, stream


def cuStreamCreate(flags):
    return _OK, next(_handles)


def cuStreamGetGreenCtx(stream):
    return _OK, _streams.get(stream)


def fake_sms(stream):
    """The SMs that work in a stream runs on: not of the real driver."""
    return _contexts[_streams[stream]]


class _Stream:
    def __init__(self, stream_ptr):
        self.cuda_stream = stream_ptr


def _give_torch_streams(torch):
    if torch.cuda.ExternalStream is _Stream:
        return
    here = threading.local()
    torch.cuda.is_available = lambda: True
    torch.cuda.ExternalStream = _Stream
    torch.cuda.set_stream = lambda stream: setattr(here, "stream", stream)
    torch.cuda.current_stream = lambda device=None: getattr(here, "stream", _Stream(0))
    total = types.SimpleNamespace(total_memory=_driver.gpus[0]["mem_bytes"])
    torch.cuda.get_device_properties = lambda device: total
    torch.cuda.set_per_process_memory_fraction = lambda part, device: fractions.append(part)
