"""Green contexts, streams and events of the fake driver, and torch.cuda as a thread needs it there.

As documented (driver API, "Green Contexts"): groups of one split share no SM; a descriptor takes
groups of one split only; what remains of a split is no whole group; what a split gave cannot be
split again. Splits of the whole device overlap each other, as they do in the real driver. A stream
and an event are of a context, and cuEventRecord refuses an event of another context than the
stream's; whether the real driver takes a green context and its primary one for two here is not
known, and this double does. Any stream may wait for any event.

Where FAKE_CUDA_TORCH is set, `torch.cuda` of a process that asks for its SMs gets streams, one in
each thread, as torch has them.
"""

import enum
import itertools
import os
import sys
import threading
import types

from . import driver as _driver
from .fake_handles import (
    CUcontext,
    CUdevResourceDesc,
    CUevent,
    CUgreenCtx,
    CUstream,
    address,
)


class CUdevResourceType(enum.IntEnum):
    CU_DEV_RESOURCE_TYPE_INVALID = 0
    CU_DEV_RESOURCE_TYPE_SM = 1


class CUgreenCtxCreate_flags(enum.IntEnum):
    CU_GREEN_CTX_NONE = 0
    CU_GREEN_CTX_DEFAULT_STREAM = 1


class CUstream_flags(enum.IntEnum):
    CU_STREAM_DEFAULT = 0
    CU_STREAM_NON_BLOCKING = 1


class CUdevResource:
    def __init__(self, sms=(), split=0, of_split=False):
        self.type = CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        self.sm = types.SimpleNamespace(smCount=len(sms))
        self.sms, self.split, self.of_split = tuple(sms), split, of_split


fractions = []  # of the memory that torch was told to keep to
_descriptors = {}  # address -> its SMs
_streams = {}  # address -> the address of its context
_events = {}  # address -> the address of its context
_addresses = itertools.count(0x1000, 0x10)
_splits = itertools.count(1)
_RESULT = _driver.CUresult
_OK = _RESULT.CUDA_SUCCESS
_WRONG = _RESULT.CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION
_SPECIAL = (0, 1, 2)  # NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD: of the current context


def cuDeviceGetDevResource(device, kind):
    error, gpu = _driver._found(device)
    if "FAKE_CUDA_TORCH" in os.environ:
        _give_torch_streams(sys.modules["torch"])
    if kind != CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM:
        return _RESULT.CUDA_ERROR_INVALID_RESOURCE_TYPE, None
    return error, None if error else CUdevResource(range(gpu["sm_count"]))


def _least(gpu):
    major = gpu["capability"][0]
    return 8 if major >= 9 else {8: 4, 7: 2}.get(major, 1)


def cuDevSmResourceSplitByCount(num_groups, resource, flags, min_count):
    if not isinstance(resource, CUdevResource):
        kind = type(resource).__name__
        raise TypeError(f"incorrect type (expected cuda.bindings.driver.CUdevResource, got {kind})")
    if not 0 <= min_count <= resource.sm.smCount:
        return _RESULT.CUDA_ERROR_INVALID_VALUE, [], 0, None
    least = _least(_driver.gpus[0])
    size = -(-max(min_count, least) // least) * least
    # A chip lacks SMs in places of its own, and its driver may make fewer groups than SMs // size.
    most = _driver.gpus[0].get("sm_groups", resource.sm.smCount // size)
    count, split = min(num_groups, most), next(_splits)
    if not count or resource.of_split:
        return _WRONG, [], 0, None
    sms = resource.sms
    groups = [CUdevResource(sms[i * size : (i + 1) * size], split, True) for i in range(count)]
    empty = [CUdevResource((), split, True) for _ in range(num_groups - count)]
    return _OK, groups + empty, count, CUdevResource(sms[count * size :], split, True)


def cuDevResourceGenerateDesc(resources, count):
    if not all(isinstance(resource, CUdevResource) for resource in resources):
        raise TypeError("Argument 'resources' is not instance of type (expected CUdevResource)")
    if count > len(resources):
        raise RuntimeError(f"List is too small: {len(resources)} < {count}")
    sms = [sm for resource in resources[:count] for sm in resource.sms]
    if len({resource.split for resource in resources[:count]}) != 1 or len(set(sms)) != len(sms):
        return _WRONG, None
    made = next(_addresses)
    _descriptors[made] = tuple(sms)
    return _OK, CUdevResourceDesc(made)


def cuGreenCtxCreate(descriptor, device, flags):
    error, _ = _driver._found(device)
    sms = _descriptors.get(address(CUdevResourceDesc, descriptor))
    if error or sms is None or flags not in tuple(CUgreenCtxCreate_flags):
        return error or _RESULT.CUDA_ERROR_INVALID_VALUE, None
    made = next(_addresses)
    _driver.green_contexts[made] = sms
    return _OK, CUgreenCtx(made)


def cuGreenCtxGetDevResource(green, kind):
    found = address(CUgreenCtx, green)
    if found not in _driver.green_contexts:
        return _RESULT.CUDA_ERROR_INVALID_CONTEXT, None
    return _OK, CUdevResource(_driver.green_contexts[found])


def cuCtxFromGreenCtx(green):
    found = address(CUgreenCtx, green)
    known = found in _driver.green_contexts
    return (_OK, CUcontext(found)) if known else (_RESULT.CUDA_ERROR_INVALID_CONTEXT, None)


def cuGreenCtxStreamCreate(green, flags, priority):
    found = address(CUgreenCtx, green)
    if found not in _driver.green_contexts:
        return _RESULT.CUDA_ERROR_INVALID_CONTEXT, None
    if flags != CUstream_flags.CU_STREAM_NON_BLOCKING:
        return _RESULT.CUDA_ERROR_INVALID_VALUE, None
    return _OK, CUstream(_made_in(_streams, found))


def cuStreamCreate(flags):
    here = _current()
    return (_OK, CUstream(_made_in(_streams, here))) if here else (_NO_CONTEXT, None)


def cuStreamGetGreenCtx(stream):
    here = _context_of(stream)
    if here is None:
        return _RESULT.CUDA_ERROR_INVALID_HANDLE, None
    return _OK, CUgreenCtx(here if here in _driver.green_contexts else 0)


def cuStreamGetCtx(stream):
    here = _context_of(stream)
    return (_OK, CUcontext(here)) if here else (_NO_CONTEXT, None)


def cuEventCreate(flags):
    here = _current()
    return (_OK, CUevent(_made_in(_events, here))) if here else (_NO_CONTEXT, None)


def cuEventRecord(event, stream):
    made_in, here = _events.get(address(CUevent, event)), _context_of(stream)
    # "hEvent and hStream must be from the same context otherwise CUDA_ERROR_INVALID_HANDLE"
    if made_in is None or made_in != here:
        return (_RESULT.CUDA_ERROR_INVALID_HANDLE,)
    return (_OK,)


def cuStreamWaitEvent(stream, event, flags):
    # "hEvent may be from a different context or device than hStream"
    known = _context_of(stream) is not None and address(CUevent, event) in _events
    return (_OK if known else _RESULT.CUDA_ERROR_INVALID_HANDLE,)


_NO_CONTEXT = _RESULT.CUDA_ERROR_INVALID_CONTEXT


def _current():
    return getattr(_driver.current, "context", 0)


def _made_in(table, context):
    made = next(_addresses)
    table[made] = context
    return made


def _context_of(stream):
    """The address of its context; None where there is no such stream."""
    found = address(CUstream, stream)
    return _current() if found in _SPECIAL else _streams.get(found)


def fake_sms(stream):
    """The SMs that work in a stream runs on: not of the real driver."""
    return _driver.green_contexts[_context_of(stream)]


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
