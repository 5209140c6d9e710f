#!/usr/bin/env python3
"""Compiles the GPU kernels of adapter `warp` on a machine without a GPU.

    bench/gpu/pack/aot_kernels.py --cache FOLDER [--env Ant-v5 ...] [--arch 90] [--driver 13.0]
                             [--jobs N]

FOLDER becomes a kernel cache as warp itself lays it out: on the GPU's machine set WARP_CACHE_PATH
to it, and warp compiles nothing. Safe to interrupt: what has been compiled is found again.

How it is known what to compile: warp compiles a module (a set of kernels) when one of them is first
launched, and names it by a hash of the kernels that the module has at that moment, of options and
of the launch's block_dim. So the real environment is made and stepped on an *offline device*:
warp's own class for a CUDA device, over stand-ins for the functions of warp's library that need a
driver. Memory is the host's and launches do nothing, everything else is what runs on a GPU: the
branches of mujoco_warp for CUDA, its block_dims, the hashes, the file's names. A loop on a
condition (`wp.capture_while`) runs its body once, as a capture does.

Not in the cache, and so made at run time: the small kernel that warp's library compiles for a
conditional graph node, in each process, and kernels that only values on the device lead to (there
is no such branch in what our tasks use). The output is for drivers older than warp's CUDA toolkit:
with a newer one warp looks for PTX (--driver says for which to build).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpu.pack.kernel_cache import Loaded, watched

SRC: Final = Path(__file__).resolve().parents[3] / "src"
_CONTEXT, _STREAM, _EVENT = 0x1000, 0x2000, 0x3000  # handles; nothing looks into them
_ELF_CUDA: Final = 190  # e_machine of a cubin
# Functions of warp's library that need no driver: the compilers of kernels and of the
# factorisations that they link (cuSOLVERDx).
_OF_THE_COMPILER: Final = ("wp_cuda_compile_", "wp_cuda_toolkit_version")
# Ways to run an environment, each in a process of its own as on a node: the modules and their
# kernels may depend on the order of launches. In `steps` p is physics and s settling: capturing
# does both, and a reset without capture begins with settling.
_WAYS: Final = (
    {"num_env": 64, "steps": "psps", "conditional": True},  # captured
    {"num_env": 2048, "steps": "sps", "conditional": True},  # not captured
    {"num_env": 64, "steps": "psps", "conditional": False},  # without conditional graph nodes
)


@dataclass(frozen=True)
class Target:
    """The GPU and driver to compile for."""

    arch: int = 90  # compute capability, times ten
    driver: str = "13.0"  # the CUDA version of its driver


class _DriverCalls:
    """Stand-ins for the functions of warp's library that need a CUDA driver, by name.

    A function that is missing here raises an error that names it.
    """

    def __init__(self, library: Any, target: Target) -> None:
        self._library = library
        self._memory: dict[int, mmap.mmap] = {}
        self._binaries: list[bytes] = []
        constants: dict[str, Any] = {
            "device_get_count": 1,
            "device_get_name": b"offline device",
            "device_get_arch": target.arch,
            "device_get_sm_count": 132,
            "device_get_max_shared_memory": 227 << 10,
            "device_is_uva": 1,
            "device_get_pageable_memory_access": 0,
            "device_get_direct_managed_mem_access_from_host": 0,
            "device_get_host_native_atomic_supported": 0,
            "device_get_managed_memory_supported": 1,
            "device_get_concurrent_managed_access_supported": 1,
            "device_is_mempool_supported": 1,
            "device_is_ipc_supported": 1,
            "device_get_uuid": None,
            "device_get_pci_domain_id": 0,
            "device_get_pci_bus_id": 0,
            "device_get_pci_device_id": 0,
            "device_get_primary_context": _CONTEXT,
            "context_get_current": _CONTEXT,
            "context_set_current": None,
            "context_set_stream": None,
            "context_synchronize": True,
            "context_push_current": None,
            "context_pop_current": None,
            "driver_is_initialized": True,
            "stream_create": _STREAM,
            "stream_destroy": None,
            "stream_register": None,
            "stream_unregister": None,
            "stream_is_capturing": False,
            "stream_synchronize": True,
            "stream_wait_event": None,
            "stream_wait_stream": None,
            "event_create": _EVENT,
            "event_record": None,
            "event_destroy": None,
            "unload_module": None,
            "configure_kernel_shared_memory": True,
            "launch_kernel": 0,
        }
        self._constants = {f"wp_cuda_{name}": value for name, value in constants.items()}

    def __getattr__(self, name: str) -> Any:
        if name in self._constants:
            value = self._constants[name]
            return lambda *args: value
        needs_driver = "_device" in name or name.startswith("wp_cuda_")
        if needs_driver and not name.startswith(_OF_THE_COMPILER):
            raise NotImplementedError(
                f"{name}: the offline device has no such function. Add it to {Path(__file__).name}."
            )
        return getattr(self._library, name)

    def wp_alloc_device_async(self, context: int, size: int, *args: Any) -> int:
        memory = mmap.mmap(-1, max(size, 1))  # zeros, which take no memory until they are written
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._memory[address] = memory
        return address

    def wp_free_device_async(self, context: int, address: int, *args: Any) -> None:
        del self._memory[address]

    def wp_memset_device(self, context: int, to: int, value: int, size: int, *args: Any) -> bool:
        ctypes.memset(to, value, size)
        return True

    def wp_memtile_device(self, context: int, to: int, item: Any, size: int, count: int) -> None:
        self._library.wp_memtile_host(to, item, size, count)

    def wp_memcpy_h2d(self, context: int, to: Any, source: Any, size: Any, *args: Any) -> bool:
        ctypes.memmove(*(getattr(a, "value", a) for a in (to, source, size)))
        return True

    wp_memcpy_d2h = wp_memcpy_d2d = wp_memcpy_h2d

    def wp_cuda_get_suggested_block_size(self, *args: Any) -> bool:
        args[-2]._obj.value, args[-1]._obj.value = 1024, 264
        return True

    def wp_cuda_load_module(self, context: int, path: bytes) -> int | None:
        binary = Path(os.fsdecode(path)).read_bytes()
        is_ptx = path.endswith(b".ptx")
        if not is_ptx and (binary[:4] != b"\x7fELF" or binary[18] != _ELF_CUDA):
            return None
        self._binaries.append(binary)
        return len(self._binaries)  # its handle

    def wp_cuda_get_kernel(self, context: int, module: int, name: bytes) -> int | None:
        return 1 if name + b"\0" in self._binaries[module - 1] else None


def toolkit() -> str:
    """Returns the CUDA version of warp's compiler."""
    import warp as wp

    wp.config.log_level = wp.LOG_ERROR
    version = wp.get_cuda_toolkit_version()
    return "{}.{}".format(*version) if version else ""


def offline_device(target: Target) -> Any:
    """Makes a CUDA device of warp's where there is none; this process keeps it to its end."""
    import warp as wp
    import warp._src.context as context

    wp.config.log_level = wp.LOG_ERROR  # it would say that there is no driver
    wp.init()
    runtime = context.runtime
    if runtime.cuda_devices:
        raise RuntimeError("this process has CUDA devices. Hide them: CUDA_VISIBLE_DEVICES=''")
    runtime.core = _DriverCalls(runtime.core, target)
    major, minor = target.driver.split(".")
    runtime.driver_version = (int(major), int(minor))
    device = context.Device(runtime, "cuda:0", ordinal=0, is_primary=True)
    runtime.cuda_devices.append(device)
    runtime.cuda_primary_devices.append(device)
    runtime.device_map["cuda:0"] = device
    runtime.default_ptx_arch = target.arch
    return device


def run_environment(device: Any, env_id: str, way: dict[str, Any]) -> None:
    """Makes environments of adapter `warp` and launches the steps of `way` on the offline device.

    Their torch side is on the CPU, and sees tensors of zeros.
    """
    import torch
    import warp as wp

    from gmi_drl.roles.envs.protocol import VecEnvSpec
    from gmi_drl.roles.envs.warp import vec, world

    def zeros(array: Any, requires_grad: bool | None = None) -> torch.Tensor:
        scalar = getattr(array.dtype, "_wp_scalar_type_", array.dtype)
        dtype = {wp.int32: torch.int32, wp.float32: torch.float32}[scalar]
        return torch.zeros(array.shape + getattr(array.dtype, "_shape_", ()), dtype=dtype)

    wp.to_torch, wp.device_from_torch = zeros, lambda torch_device: device
    wp.capture_while = lambda condition, while_body, stream=None, **kw: while_body(**kw)
    wp.capture_if = _both_branches
    world.stream_of_torch = lambda torch_device: device.stream
    env = vec.WarpVecEnv(VecEnvSpec(env_id=env_id, num_env=way["num_env"]))
    env._warp._model.opt.graph_conditional = way["conditional"]
    for step in way["steps"]:
        with env._warp.on_torch_stream():
            {"p": env._physics, "s": env._settle}[step]()


def _both_branches(
    condition: Any,
    on_true: Callable[..., object] | None = None,
    on_false: Callable[..., object] | None = None,
    stream: Any = None,
    **kw: Any,
) -> None:
    for branch in (on_true, on_false):
        if branch is not None:
            branch(**kw)


def traced(run: Callable[[Any], None], target: Target, *, compile: bool) -> list[Loaded]:
    """Returns the modules that `run(device)` launches; with `compile` into warp's kernel cache.

    They are not loaded. A module that another process is compiling is skipped.
    """
    import warp as wp
    import warp._src.context as context

    device = offline_device(target)
    launchables: dict[tuple[Any, int, bytes], Any] = {}
    modules: list[Loaded] = []
    load_module = context.Module.load

    def load(self: Any, on: Any, block_dim: int | None = None, *args: Any, **kw: Any) -> Any:
        on = context.runtime.get_device(on)
        if not on.is_cuda:
            return load_module(self, on, block_dim, *args, **kw)
        dim = block_dim if block_dim is not None else self.options["block_dim"]
        key = (self, dim, self.get_module_hash(dim))
        if key not in launchables:
            launchables[key] = _Launchable(context.KernelHooks)
            folder = os.path.join(wp.config.kernel_cache_dir, self.get_module_identifier(dim))
            name = self._get_compile_output_name(on, block_dim=dim)
            begin, compiled = time.perf_counter(), False
            with _claim(folder) if compile else contextlib.nullcontext(False) as claimed:
                if claimed:
                    arch, options = self._get_compile_arch(on), self.resolved_options[dim]
                    compiled = self._compile(on, folder, name, arch, options=options)
            seconds = time.perf_counter() - begin
            modules.append(Loaded(os.path.basename(folder), name, dim, compiled, seconds))
            if compiled:
                print(json.dumps(asdict(modules[-1])), flush=True)
        return launchables[key]

    context.Module.load = load
    try:
        run(device)
    finally:
        context.Module.load = load_module
    return modules


class _Launchable:
    """Stands in for a loaded module in a launch that does nothing."""

    def __init__(self, hooks: Callable[..., Any]) -> None:
        self._hooks = hooks(1, 1, 0, 0)

    def get_kernel_hooks(self, kernel: Any) -> Any:
        return self._hooks


@contextlib.contextmanager
def _claim(folder: str) -> Iterator[bool]:
    """Lets one process at a time compile into `folder`; yields False in the others."""
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    with open(folder + ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def taken(run: Callable[[Any], None], target: Target) -> list[Loaded]:
    """Returns the modules that warp itself loads when `run(device)` launches them.

    Those from its kernel cache are not `compiled`. Kernels are looked up in the binaries.
    """
    device = offline_device(target)
    with watched() as loaded:
        run(device)
    return loaded


class KernelError(RuntimeError):
    """Kernels could not be compiled, or were not where warp looks for them."""


def compile_kernels(
    cache: Path, env_ids: Sequence[str], target: Target, jobs: int, tell: Callable[[str], None]
) -> list[Path]:
    """Fills `cache` with what the environments launch, and returns the modules' folders in it."""
    needed: dict[str, Loaded] = {}
    for env_id in env_ids:
        for way in _WAYS:
            modules = _in_processes(1, "list", cache, env_id, way, target)
            missing = [module for module in modules if _folder(cache, module) is None]
            tell(f"{env_id}, {way['num_env']} environments: {len(modules)} modules, "
                 f"{len(missing)} to compile")  # fmt: skip
            if missing:
                _in_processes(jobs, "compile", cache, env_id, way, target, tell, len(missing))
            for loaded in _in_processes(1, "load", cache, env_id, way, target):
                if loaded.compiled:
                    raise KernelError(
                        f"{loaded.file} was compiled again when it was loaded: warp does not find "
                        "it under the name that it was compiled to. Remove the cache and try again."
                    )
            needed |= {module.file: module for module in modules}
    folders = {_folder(cache, module) for module in needed.values()}
    return sorted(folder for folder in folders if folder is not None)


def _folder(cache: Path, loaded: Loaded) -> Path | None:
    """Returns the folder of a module in the cache, if it has all that warp loads."""
    for binary in cache.glob(f"*/{loaded.module}/{loaded.file}"):
        if (binary.parent / f"{loaded.module}.meta").is_file():
            return binary.parent
    return None


def _in_processes(
    number: int,
    task: str,
    cache: Path,
    env_id: str,
    way: dict[str, Any],
    target: Target,
    tell: Callable[[str], None] | None = None,
    expected: int = 0,
) -> list[Loaded]:
    """Runs the same task in `number` processes and joins what they answer."""
    arguments = {"task": task, "env_id": env_id, "way": way, "target": asdict(target)}
    hidden = {"CUDA_VISIBLE_DEVICES": "", "WARP_CACHE_PATH": str(cache)}
    path = os.pathsep.join(filter(None, [str(SRC), os.environ.get("PYTHONPATH", "")]))
    env = os.environ | hidden | {"PYTHONPATH": path}
    command = ["nice", sys.executable, __file__, "--worker", json.dumps(arguments)]
    workers = [
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(number)
    ]
    modules: list[Loaded] = []
    try:
        for line in _lines(workers):
            modules.append(Loaded(**json.loads(line)))
            if tell is not None:
                module = modules[-1]
                tell(f"  {len(modules)} of {expected}: {module.module}, {module.seconds:.0f} s")
    finally:
        for worker in workers:
            worker.kill()
    failed = [worker.returncode for worker in workers if worker.wait()]
    if failed:
        raise KernelError(
            f"{env_id}: a process that should {task} kernels ended with code {failed[0]}; what it "
            "said stands above. Modules that have been compiled are kept: try again."
        )
    return modules


def _lines(workers: Sequence[subprocess.Popen[str]]) -> Iterator[str]:
    """Yields lines of all processes as they come, until all have ended."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read(worker: subprocess.Popen[str]) -> None:
        assert worker.stdout is not None
        for line in worker.stdout:
            lines.put(line)
        worker.wait()
        lines.put(None)

    for worker in workers:
        threading.Thread(target=read, args=(worker,), daemon=True).start()
    ended = 0
    while ended < len(workers):
        line = lines.get()
        if line is None:
            ended += 1
        else:
            yield line


def _work(task: str, env_id: str, way: dict[str, Any], target: dict[str, Any]) -> None:
    """Runs one worker, which prints each module as a JSON line."""

    def run(device: Any) -> None:
        run_environment(device, env_id, way)

    if task == "compile":
        traced(run, Target(**target), compile=True)
        return
    modules = taken(run, Target(**target)) if task == "load" else \
        traced(run, Target(**target), compile=False)  # fmt: skip
    for module in modules:
        print(json.dumps(asdict(module)), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cache", type=Path, metavar="FOLDER")
    parser.add_argument("--env", nargs="+", default=["Ant-v5"], metavar="ID")
    parser.add_argument("--arch", type=int, default=Target.arch)
    parser.add_argument("--driver", default=Target.driver, help="CUDA version of its driver")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.worker:
        _work(**json.loads(options.worker))
        return 0
    if options.cache is None:
        parser.error("--cache FOLDER is needed")
    target = Target(options.arch, options.driver)
    try:
        folders = compile_kernels(
            options.cache.resolve(), options.env, target, options.jobs,
            lambda text: print(text, file=sys.stderr, flush=True),
        )  # fmt: skip
    except KernelError as error:
        print(f"aot_kernels: {error}", file=sys.stderr)
        return 1
    for folder in folders:
        print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
