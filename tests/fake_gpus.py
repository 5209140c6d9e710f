"""A machine with GPUs that are not there: the CUDA driver and NVIDIA's MPS programs are doubles."""

import dataclasses
import json
import os
import sys
from pathlib import Path

from gmi_drl.gmi.backends.mps import control
from gmi_drl.placement import Device, GmiSpec, Topology

_HERE = Path(__file__).parent
CORES = tuple(sorted(os.sched_getaffinity(0)))
GIB = 2**30
_MODULES = ("cuda", "cuda.bindings", "cuda.bindings.driver", "cuda.bindings.fake_green")


def device(index=0, capability=(9, 0), sm_count=132, mem_bytes=80 * GIB, **more):
    """An H100 unless it is told otherwise."""
    more = {"uuid": f"GPU-{index:08x}-1111-2222-3333-444444444444"} | more
    return Device(
        index, "gpu", "GPU", CORES, sm_count=sm_count, mem_bytes=mem_bytes, capability=capability,
        **more,
    )  # fmt: skip


def topology(num_gpus=1, **more):
    return Topology(tuple(device(index, **more) for index in range(num_gpus)))


def specs(backend, machine, per_gpu=2, **share):
    """GMIs of one backend, so many on each device."""
    return [
        GmiSpec(
            place, place // per_gpu, ("trainer",), backend, CORES, 4,
            device_uuid=machine.devices[place // per_gpu].uuid, **share,
        )
        for place in range(per_gpu * len(machine.devices))
    ]  # fmt: skip


def install(patch, folder, machine, mps=""):
    """Puts the doubles where processes of this test find them; returns variables for children.

    `mps` are the words of FAKE_MPS; `folder` is for the file with the GPUs.
    """
    gpus = [
        {
            "uuid": one.uuid,
            "sm_count": one.sm_count,
            "mem_bytes": one.mem_bytes,
            "capability": one.capability,
            "mig": [dataclasses.asdict(instance) for instance in one.mig],
        }
        for one in machine.devices
    ]
    file = Path(folder, "gpus.json")
    file.write_text(json.dumps(gpus))
    paths = [str(_HERE / "fake_mps"), os.path.dirname(sys.executable), os.environ["PATH"]]
    variables = {"FAKE_CUDA": str(file), "FAKE_MPS": mps, "PATH": os.pathsep.join(paths)}
    for name, value in variables.items():
        patch.setenv(name, value)
    patch.setattr(sys, "path", [str(_HERE / "fake_cuda"), *sys.path])
    patch.setenv("PYTHONPATH", os.pathsep.join(part for part in sys.path if part))
    for name in {*_MODULES, *(name for name in sys.modules if name.startswith("cuda."))}:
        patch.setitem(sys.modules, name, None)  # put back afterwards, or taken out
        del sys.modules[name]
    return variables


def forget_cuda():
    """In a child: what the process it was forked from knew of cuda.bindings may be the real one."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "cuda"]:
        del sys.modules[name]


def mps_pids():
    """The fake MPS processes that run on pipes in this session's directory."""
    ours = f"CUDA_MPS_PIPE_DIRECTORY={os.environ['XDG_RUNTIME_DIR']}/".encode()
    return [
        int(entry)
        for entry in os.listdir("/proc")
        if entry.isdigit() and (_pipe_of(entry) or b"").startswith(ours)
    ]


def _pipe_of(pid):
    try:
        command = Path("/proc", pid, "cmdline").read_bytes()
        variables = Path("/proc", pid, "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    if control._PROGRAM.encode() not in command:
        return None
    return next((v for v in variables if v.startswith(b"CUDA_MPS_PIPE_DIRECTORY=")), None)
