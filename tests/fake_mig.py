"""MIG below nvidia-ml-py: GPU instances and compute instances, made and destroyed by its rules.

The driver's own numbers: what creates an instance is `id` of the profile's information, which is
not the number by which that information is asked for.
"""

import ctypes
import functools
import uuid
from dataclasses import dataclass, field

import pynvml


@dataclass
class FakeComputeInstance:
    """What a process sees as a GPU; `in_use_by` are the pids of those that do."""

    id: int
    profile_id: int
    uuid: str
    in_use_by: list[int] = field(default_factory=list)


@dataclass
class FakeGpuInstance:
    """A part of a GPU, with `size` memory slices from `start` on."""

    id: int
    profile_id: int
    start: int
    size: int
    compute_instances: list[FakeComputeInstance] = field(default_factory=list)


@dataclass(frozen=True)
class FakeProfile:
    """One row of `nvidia-smi mig -lgip`."""

    asked: int  # NVML_GPU_INSTANCE_PROFILE_...
    id: int
    name: str
    compute: int  # compute slices
    size: int  # memory slices
    starts: tuple[int, ...]
    sm_count: int
    mem_mb: int


# Asked for by, id, compute slices, memory slices, starts.
_SEVEN = (
    (0, 19, 1, 1, range(7)),
    (7, 20, 1, 1, range(7)),
    (9, 15, 1, 2, (0, 2, 4, 6)),
    (1, 14, 2, 2, (0, 2, 4)),
    (2, 9, 3, 4, (0, 4)),
    (3, 5, 4, 4, (0,)),
    (4, 0, 7, 8, (0,)),
)
_FOUR = ((0, 14, 1, 1, range(4)), (7, 21, 1, 1, range(4)), (1, 5, 2, 2, (0, 2)), (3, 0, 4, 4, (0,)))
_HOPPER = (16, 16, 26, 32, 60, 64, 132)
_AMPERE = (14, 14, 14, 28, 42, 56, 98)
_BLACKWELL = (18, 18, 30, 36, 70, 74, 148)
# A word of the name, the least GiB, the names of the profiles, their SMs and their GiB.
_KINDS = (
    ("A30", 0, "1g.6gb 1g.6gb+me 2g.12gb 4g.24gb", (14, 14, 28, 56), (5.81, 5.81, 11.69, 23.44)),
    ("A100", 60, "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb", _AMPERE,
     (9.5, 9.5, 19.5, 19.5, 39.25, 39.25, 79)),
    ("A100", 0, "1g.5gb 1g.5gb+me 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb", _AMPERE,
     (4.75, 4.75, 9.75, 9.75, 19.62, 19.62, 39.38)),
    ("H100", 0, "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb", _HOPPER,
     (9.75, 9.75, 19.62, 19.62, 39.5, 39.5, 79.25)),
    ("H200", 0, "1g.18gb 1g.18gb+me 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb", _HOPPER,
     (16, 16, 32.5, 32.5, 69.5, 69.5, 140)),
    ("B200", 0, "1g.23gb 1g.23gb+me 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb", _BLACKWELL,
     (21, 21, 42.5, 42.5, 88, 88, 178)),
)  # fmt: skip


def profiles_of(gpu):
    """What the driver offers on this GPU; none for a kind without MIG."""
    words = gpu.name.replace("-", " ").split()
    for word, least, names, sms, gibs in _KINDS:
        if word in words and gpu.mem_bytes >= least << 30:
            places = _SEVEN if len(sms) == 7 else _FOUR
            return tuple(
                FakeProfile(asked, id_, name, compute, size, tuple(starts), sm, int(gib * 1024))
                for (asked, id_, compute, size, starts), name, sm, gib in zip(
                    places, names.split(), sms, gibs, strict=True
                )
            )
    return ()


def profile_of(gpu, profile_id):
    """The row with this id."""
    return next(row for row in profiles_of(gpu) if row.id == profile_id)


def put(gpu, name, start, in_use_by=()):
    """An instance that is there already, with one compute instance over all of it; returns it."""
    row = next(row for row in profiles_of(gpu) if row.name == name)
    gi = FakeGpuInstance(_free_id(gpu.gpu_instances, 1), row.id, start, row.size)
    gi.compute_instances.append(FakeComputeInstance(0, 0, mig_uuid(gpu, gi.id, 0), list(in_use_by)))
    gpu.gpu_instances.append(gi)
    return gi


def mig_uuid(gpu, gi_id, ci_id):
    """Of a MIG device: the same again when the same is made again, as drivers do it."""
    return f"MIG-{uuid.uuid5(uuid.NAMESPACE_OID, f'{gpu.uuid}/{gi_id}/{ci_id}')}"


def changes(function):
    """A function that needs root and changes what is there; `stepped` is told before and after."""

    @functools.wraps(function)
    def step(self, *arguments):
        name = function.__name__
        if not self.root:
            return pynvml.NVML_ERROR_NO_PERMISSION
        if name in self.refuses:
            return self.refuses[name]
        self.stepped(f"before {name}")
        try:
            result = function(self, *arguments)
        except _Refused as refused:
            return refused.args[0]
        self.stepped(f"after {name}")
        return result

    return step


class _Refused(Exception):
    """With NVML's code for it."""


class FakeMig:
    """The functions that change MIG state, over `FakeGpu.gpu_instances`; FakeLib inherits it."""

    root = True  # whether the user may
    refuses: dict = {}  # noqa: RUF012  # by function, the code it returns
    hidden: frozenset = frozenset()  # uuids of GPUs that something holds which NVML does not list

    def stepped(self, what):
        """Called around every change. For tests."""

    @changes
    def nvmlDeviceSetMigMode(self, handle, mode, activated):
        gpu = self._of(handle, mode_on=False)
        activated._obj.value = 0
        held = gpu.processes or gpu.uuid in self.hidden
        if mode != gpu.mig and (gpu.gpu_instances if gpu.mig else held):
            activated._obj.value, gpu.mig_pending = pynvml.NVML_ERROR_IN_USE, bool(mode)
        else:
            gpu.mig, gpu.mig_pending = bool(mode), None
        return 0

    def nvmlDeviceGetGpuInstanceProfileInfoV(self, handle, asked, info):
        gpu = self._gpu(handle)
        row = next((row for row in profiles_of(gpu) if row.asked == asked), None)
        if row is None or gpu.mig is None:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        known = info._obj
        known.id, known.sliceCount, known.multiprocessorCount = row.id, row.compute, row.sm_count
        known.memorySizeMB = row.mem_mb
        known.name = f"MIG {row.name}".encode()
        known.instanceCount = 1 if "+me" in row.name else len(row.starts)
        return gpu.state()

    def nvmlDeviceGetGpuInstancePossiblePlacements_v2(self, handle, profile_id, places, count):
        if not self.root:
            return pynvml.NVML_ERROR_NO_PERMISSION
        gpu = self._gpu(handle)
        row = profile_of(gpu, profile_id)
        if places is not None:
            for target, start in zip(places, row.starts, strict=False):
                target.start, target.size = start, row.size
        count._obj.value = len(row.starts)
        return gpu.state()

    @changes
    def nvmlDeviceCreateGpuInstanceWithPlacement(self, handle, profile_id, place, made):
        gpu, place = self._of(handle), place._obj
        row = next((row for row in profiles_of(gpu) if row.id == profile_id), None)
        if row is None or place.start not in row.starts or place.size != row.size:
            return pynvml.NVML_ERROR_INVALID_ARGUMENT
        taken = {s for gi in gpu.gpu_instances for s in range(gi.start, gi.start + gi.size)}
        if taken & set(range(place.start, place.start + place.size)):
            return pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES
        gi = FakeGpuInstance(_free_id(gpu.gpu_instances, 1), row.id, place.start, row.size)
        gpu.gpu_instances.append(gi)
        _write(made, self._gi_handle(gpu, gi))
        return 0

    @changes
    def nvmlGpuInstanceDestroy(self, handle):
        gpu, gi = self._gi(handle)
        if gi.compute_instances:
            return pynvml.NVML_ERROR_IN_USE
        gpu.gpu_instances.remove(gi)
        return 0

    def nvmlDeviceGetGpuInstances(self, handle, profile_id, found, count):
        if not self.root:
            return pynvml.NVML_ERROR_NO_PERMISSION
        gpu = self._gpu(handle)
        its = [gi for gi in gpu.gpu_instances if gi.profile_id == profile_id]
        _fill(found, [self._gi_handle(gpu, gi) for gi in its])
        count._obj.value = len(its)
        return gpu.state()

    def nvmlDeviceGetGpuInstanceById(self, handle, gi_id, found):
        if not self.root:
            return pynvml.NVML_ERROR_NO_PERMISSION
        gpu = self._gpu(handle)
        its = [gi for gi in gpu.gpu_instances if gi.id == getattr(gi_id, "value", gi_id)]
        if not its:
            return pynvml.NVML_ERROR_NOT_FOUND
        _write(found, self._gi_handle(gpu, its[0]))
        return gpu.state()

    def nvmlGpuInstanceGetInfo(self, handle, info):
        try:
            gpu, gi = self._gi(handle)
        except _Refused as refused:
            return refused.args[0]
        known = info._obj
        known.id, known.profileId = gi.id, gi.profile_id
        known.placement.start, known.placement.size = gi.start, gi.size
        return gpu.state()

    def nvmlGpuInstanceGetComputeInstanceProfileInfoV(self, handle, asked, engines, info):
        gpu, gi = self._gi(handle)
        row = profile_of(gpu, gi.profile_id)
        wide = row.compute == 1 and row.size == 2
        slices = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7, 7: 1}.get(asked, 99)
        if slices > row.compute or wide != (asked == 7):
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        known = info._obj
        known.id, known.sliceCount = asked, slices
        known.instanceCount = row.compute // slices
        known.multiprocessorCount = row.sm_count * slices // row.compute
        return gpu.state()

    @changes
    def nvmlGpuInstanceCreateComputeInstance(self, handle, profile_id, made):
        gpu, gi = self._gi(handle)
        ci_id = _free_id(gi.compute_instances, 0)
        if gi.compute_instances:
            return pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES
        ci = FakeComputeInstance(ci_id, profile_id, mig_uuid(gpu, gi.id, ci_id))
        gi.compute_instances.append(ci)
        _write(made, self._gi_handle(gpu, gi, ci.id))
        return 0

    @changes
    def nvmlComputeInstanceDestroy(self, handle):
        _, gi = self._gi(handle)
        ci = next(ci for ci in gi.compute_instances if ci.id == _value(handle) & 0xFF)
        if ci.in_use_by:
            return pynvml.NVML_ERROR_IN_USE
        gi.compute_instances.remove(ci)
        return 0

    def nvmlGpuInstanceGetComputeInstances(self, handle, profile_id, found, count):
        gpu, gi = self._gi(handle)
        its = [ci for ci in gi.compute_instances if ci.profile_id == profile_id]
        _fill(found, [self._gi_handle(gpu, gi, ci.id) for ci in its])
        count._obj.value = len(its)
        return gpu.state()

    def _of(self, handle, mode_on=True):
        gpu = self._gpu(handle)
        if code := gpu.state():
            raise _Refused(code)
        if gpu.mig is None or (mode_on and not gpu.mig):
            raise _Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return gpu

    def _gi_handle(self, gpu, gi, ci_id=0):
        place = next(n for n, its in enumerate(self.gpus) if its is gpu)
        return 1 << 32 | place << 16 | gi.id << 8 | ci_id

    def _gi(self, handle):
        value = _value(handle)
        gpu = self.gpus[value >> 16 & 0xFF]
        if code := gpu.state():
            raise _Refused(code)
        its = [gi for gi in gpu.gpu_instances if gi.id == value >> 8 & 0xFF]
        if not its:
            raise _Refused(pynvml.NVML_ERROR_NOT_FOUND)
        return gpu, its[0]


def _free_id(held, first):
    ids = {one.id for one in held}
    return next(n for n in range(first, 256) if n not in ids)


def _value(handle):
    return ctypes.cast(handle, ctypes.c_void_p).value


def _write(reference, value):
    ctypes.cast(reference, ctypes.POINTER(ctypes.c_void_p))[0] = value


def _fill(array, values):
    target = ctypes.cast(array, ctypes.POINTER(ctypes.c_void_p))
    for place, value in enumerate(values):
        target[place] = value


def maximal_combinations(profiles):
    """Returns the profiles of every full GPU: in some placement of them nothing more fits.

    Largest first, each combination once.
    """
    found = set()
    by_size = sorted(profiles, key=lambda profile: (-profile.size, -(profile.sm_count or 0)))

    def extend(names, taken):
        free = [
            (profile, start)
            for profile in by_size
            for start in profile.starts
            if taken.isdisjoint(range(start, start + profile.size))
        ]
        if not free:
            found.add(tuple(sorted(names, key=order.__getitem__)))
        for profile, start in free:
            # In ascending places: each placement is met once, and one with a gap left below that
            # something fits in ends here, without being found.
            if not taken or start > max(taken):
                extend((*names, profile.name), taken | {*range(start, start + profile.size)})

    order = {profile.name: place for place, profile in enumerate(by_size)}
    extend((), frozenset())
    return tuple(sorted(found, key=lambda names: [order[name] for name in names]))
