"""CUDA's driver as far as gmi_drl uses it, true to what is documented, without a GPU.

The GPUs there are come from the JSON file that FAKE_CUDA names: a list of objects with uuid,
sm_count, mem_bytes, capability, and mig, a list of objects with uuid, sm_count, mem_bytes. Without
it there is no driver. What is visible follows CUDA_VISIBLE_DEVICES (indices, UUIDs, MIG UUIDs).
cuInit connects to the MPS daemon (tests/fake_mps) that answers in CUDA_MPS_PIPE_DIRECTORY; if none
does the process goes on without MPS, and says nothing.
"""

import contextlib
import enum
import json
import os
import socket
import threading
import time
import types
import uuid

from .fake_handles import *  # noqa: F403
from .fake_handles import CUcontext, CUdevice, CUgreenCtx, address, cuuint64_t


class CUresult(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NOT_INITIALIZED = 3
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_DEVICE = 101
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_INVALID_HANDLE = 400
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_LAUNCH_FAILED = 719
    CUDA_ERROR_NOT_PERMITTED = 800
    CUDA_ERROR_NOT_SUPPORTED = 801
    CUDA_ERROR_MPS_CONNECTION_FAILED = 805
    CUDA_ERROR_MPS_RPC_FAILURE = 806
    CUDA_ERROR_MPS_SERVER_NOT_READY = 807
    CUDA_ERROR_MPS_MAX_CLIENTS_REACHED = 808
    CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED = 809
    CUDA_ERROR_MPS_CLIENT_TERMINATED = 810
    CUDA_ERROR_INVALID_RESOURCE_TYPE = 914
    CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION = 915


class CUdevice_attribute(enum.IntEnum):
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76
    CU_DEVICE_ATTRIBUTE_MPS_ENABLED = 133


class CUgraphMem_attribute(enum.IntEnum):
    CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT = 0
    CU_GRAPH_MEM_ATTR_USED_MEM_HIGH = 1
    CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT = 2
    CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH = 3


_OK = CUresult.CUDA_SUCCESS
_PRIMARY = 0xC0  # the address of the first device's primary context
VERSION = 13000

# Of this process: set by cuInit.
gpus = None  # the visible ones
pid = None  # the process that called it
mps = None  # the open connection to the daemon
terms = {}  # what the daemon granted: percentage, or sm_count of a static partition
green_contexts = {}  # their SMs, by address; as a CUcontext one has the same
graph_mem = {}  # bytes, by the name of an attribute
current = threading.local()  # `context`: the address of the one current to a thread
work_ends_s = 0.0  # when what is under way is done


def cuInit(flags):
    global gpus, mps, terms, pid
    if gpus is not None:  # in a process forked since, no call of the driver works
        return (_OK if pid == os.getpid() else CUresult.CUDA_ERROR_NOT_INITIALIZED,)
    if "FAKE_CUDA" not in os.environ:
        raise RuntimeError("no driver: FAKE_CUDA names no file")
    with open(os.environ["FAKE_CUDA"]) as file:
        found = _visible(json.load(file))
    connection = _connect()
    if connection is not None:
        answer = _ask(
            connection,
            connect=os.getpid(),
            partition=os.environ.get("CUDA_MPS_SM_PARTITION", ""),
            gpus=[gpu["uuid"] for gpu in found],
        )
        if answer.get("error"):
            connection.close()
            return (CUresult(answer["error"]),)
        mps, terms = connection, answer
    gpus, pid = found, os.getpid()
    return (_OK,) if gpus else (CUresult.CUDA_ERROR_NO_DEVICE,)


def _visible(all_gpus):
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return all_gpus
    found = []
    for name in filter(None, (part.strip() for part in wanted.split(","))):
        if name.isdigit():
            its = all_gpus[int(name) : int(name) + 1]
        elif name.startswith("MIG-"):
            its = [i | {"of": g} for g in all_gpus for i in g.get("mig", ()) if i["uuid"] == name]
        else:
            its = [gpu for gpu in all_gpus if gpu["uuid"].lower().startswith(name.lower())]
        if not its:
            break  # what comes after one that is not there is not visible
        found += its
    return found


def _connect():
    path = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(f"{path}/control")
    except OSError:
        connection.close()
        return None
    connection.settimeout(20)
    return connection


def _ask(connection, **what):
    try:
        connection.sendall(json.dumps(what).encode() + b"\n")
        answer = connection.makefile().readline()
    except OSError:
        answer = ""
    return json.loads(answer) if answer else {"error": 806}


def _broken():
    """The error that every call gives from now on, as after a fault; 0 if there is none."""
    return CUresult(_ask(mps, check=os.getpid()).get("error", 0)) if mps is not None else _OK


def fake_fault():
    """A fatal fault in this process: not of the real driver."""
    if mps is not None:
        _ask(mps, fault=os.getpid())


def fake_work(seconds):
    """Work under way for so long, which cuCtxSynchronize waits for: not of the real driver."""
    global work_ends_s
    work_ends_s = time.monotonic() + seconds
    if mps is not None:
        _ask(mps, work=os.getpid(), for_s=seconds)


def _found(device):
    ordinal = address(CUdevice, device)
    if gpus is None:
        return CUresult.CUDA_ERROR_NOT_INITIALIZED, None
    if not 0 <= ordinal < len(gpus):
        return CUresult.CUDA_ERROR_INVALID_DEVICE, None
    return _OK, gpus[ordinal]


def cuDriverGetVersion():
    return _OK, VERSION


def cuDeviceGetCount():
    return (CUresult.CUDA_ERROR_NOT_INITIALIZED, 0) if gpus is None else (_OK, len(gpus))


def cuDeviceGet(ordinal):
    error, _ = _found(ordinal)
    return error, None if error else CUdevice(ordinal)


def cuDeviceGetAttribute(attribute, device):
    error, gpu = _found(device)
    if error:
        return error, None
    if attribute == CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MPS_ENABLED:
        return _OK, int(mps is not None)
    if attribute == CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        return _OK, _sm_count(gpu)
    whole = gpu.get("of", gpu)["capability"]
    if attribute == CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        return _OK, whole[0]
    if attribute == CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        return _OK, whole[1]
    return CUresult.CUDA_ERROR_INVALID_VALUE, None


def _sm_count(gpu):
    if mps is None:
        return gpu["sm_count"]
    if "sm_count" in terms:
        return terms["sm_count"]
    mine = float(os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", 100))
    sms, granule = gpu["sm_count"] * min(mine, terms["percentage"]) / 100, terms["granule"]
    return max(granule, int(sms / granule + 1e-9) * granule)


class CUuuid(types.SimpleNamespace):
    bytes: bytes


def cuDeviceGetUuid(device):
    error, gpu = _found(device)
    if error:
        return error, None
    return _OK, CUuuid(bytes=uuid.UUID(gpu["uuid"].partition("-")[2]).bytes)


def cuDeviceGetName(length, device):
    error, gpu = _found(device)
    return error, None if error else gpu.get("name", "fake").encode()


def cuDeviceTotalMem(device):
    error, gpu = _found(device)
    return error, None if error else gpu["mem_bytes"]


def cuDeviceGetGraphMemAttribute(device, attribute):
    if not isinstance(attribute, CUgraphMem_attribute):  # as in cuda-bindings: no plain number
        raise AttributeError(f"{attribute!r} has no attribute 'value'")
    error, _ = _found(device)
    return error, None if error else cuuint64_t(graph_mem.get(attribute.name, 0))


def cuDevicePrimaryCtxRetain(device):
    error, _ = _found(device)
    return (error, None) if error else (_broken(), CUcontext(_PRIMARY + int(device)))


def cuDevicePrimaryCtxRelease(device):
    return (_found(device)[0],)


def cuCtxSetCurrent(context):
    if isinstance(context, CUgreenCtx):  # see cuCtxFromGreenCtx
        return (CUresult.CUDA_ERROR_INVALID_CONTEXT,)
    found = address(CUcontext, context)
    if found and not (_PRIMARY <= found < _PRIMARY + len(gpus) or found in green_contexts):
        return (CUresult.CUDA_ERROR_INVALID_CONTEXT,)
    current.context = found
    return (_broken(),)


def cuCtxSynchronize():
    while not (error := _broken()) and time.monotonic() < work_ends_s:
        time.sleep(0.005)  # between two looks
    if not error and work_ends_s and mps is not None:
        _ask(mps, work=os.getpid(), for_s=0)
    return (error,)


def cuGetErrorName(error):
    return _OK, CUresult(error).name.encode()


def cuGetErrorString(error):
    return _OK, CUresult(error).name.lower().replace("_", " ").encode()


with contextlib.suppress(ModuleNotFoundError):
    from .fake_green import *  # noqa: F403
