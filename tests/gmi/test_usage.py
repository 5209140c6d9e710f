"""What processes use, measured from outside: memory, cores, GPUs, and what is left."""

import subprocess
import sys
import textwrap

import pynvml
import pytest

import boxes
import fake_nvml
from fake_mig import profile_of, put
from fake_nvml import FakeGpu, FakeProcess
from gmi_drl.gmi.usage import processes
from gmi_drl.gmi.usage.meter import DeviceMeter, DeviceUsage, Meter
from gmi_drl.placement import Device, GmiSpec, Layout, Topology
from gmi_drl.placement.layout import MigSlice

MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture
def child():
    """Starts a process that runs a script and waits until it has printed a line."""
    started = []

    def start(script):
        command = [sys.executable, "-c", textwrap.dedent(script)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        return process, process.stdout.readline().split()

    yield start
    for process in started:
        process.communicate()  # its input ends, and so does it


# The host -----------------------------------------------------------------------------------------

FAMILY = """
    import os, sys
    shared = bytearray(b"x") * (60 << 20)
    children = []
    for _ in range(3):
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            own = bytearray(b"y") * (20 << 20)
            os.write(write, b".")
            sys.stdin.read()
            os._exit(0)
        os.read(read, 1)
        children.append(pid)
    print(*children, flush=True)
    sys.stdin.read()
    for pid in children:
        os.waitpid(pid, 0)
"""


def test_memory_that_is_shared_counts_once(child):
    parent, line = child(FAMILY)
    children = [int(pid) for pid in line]
    assert set(processes.with_children([parent.pid])) == {parent.pid, *children}
    assert processes.parents(children) == {parent.pid}
    alone = processes.memory_bytes(children[:1], [parent.pid])
    together = processes.memory_bytes(children, [parent.pid])
    assert together == pytest.approx(120 * MIB, rel=0.35)  # 60 + 3 x 20, and Python
    assert together - alone > 30 * MIB


def test_a_peak_counts_after_it_is_over(child):
    process, _ = child("""
        import sys
        big = bytearray(b"x") * (80 << 20)
        del big
        print("", flush=True)
        sys.stdin.read()
    """)
    assert processes.memory_bytes([process.pid]) > 80 * MIB


def test_processor_time_goes_up_while_a_process_works(child):
    process, line = child("""
        import sys, time
        while time.process_time() < 0.3:
            pass
        print(time.process_time(), flush=True)
        sys.stdin.read()
    """)
    assert processes.cpu_s([process.pid]) == pytest.approx(float(line[0]), abs=0.1)


def test_who_is_gone_uses_nothing():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert processes.memory_bytes([process.pid]) == processes.cpu_s([process.pid]) == 0
    assert processes.parents([process.pid]) == set()
    processes.offer_to_oom_killer([process.pid])


def test_the_kernel_is_offered_a_process_first(child):
    process, _ = child("import sys; print('', flush=True); sys.stdin.read()")
    processes.offer_to_oom_killer([process.pid])
    with open(f"/proc/{process.pid}/oom_score_adj") as file:
        assert int(file.read()) == 1000


class Gang:
    """GMIs in processes that the test has started."""

    def __init__(self, *pids):
        self.layout = None
        self._pids = dict(enumerate(pids))

    def pids(self):
        return self._pids


@pytest.fixture
def no_gpus(monkeypatch):
    fake_nvml.install(monkeypatch, error=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)


def test_what_a_gmi_has_started_before_the_first_look_is_offered_with_it(child, no_gpus):
    process, line = child(FAMILY)
    with Meter() as meter:
        meter.look(Gang(process.pid))
    for pid in [process.pid, *map(int, line)]:
        with open(f"/proc/{pid}/oom_score_adj") as file:
            assert int(file.read()) == 1000


def test_each_gmi_has_its_own_last_time_at_work(monkeypatch, no_gpus):
    now_s, spent_s = 10.0, {7: 0.0, 8: 0.0}
    monkeypatch.setattr(processes, "with_children", list)
    monkeypatch.setattr(processes, "offer_to_oom_killer", lambda pids: None)
    monkeypatch.setattr(processes, "cpu_s", lambda pids: spent_s[pids[0]])
    with Meter(lambda: now_s) as meter:
        for _ in range(5):
            now_s += 1.5
            spent_s[7] += 1.2
            meter.look(Gang(7, 8))
        assert meter.busy == pytest.approx({0: 0.8, 1: 0.0})
        assert meter.worked_s == {0: 17.5, 1: 11.5}
        now_s += 1.5
        meter.look(Gang(7))
        assert meter.worked_s == {0: 17.5}


def test_this_machine_has_memory_left():
    memory = processes.host_memory()
    assert 0 < memory.free_bytes < memory.of_bytes
    assert processes.oom_kills() >= 0


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine of 64 GiB with 40 available, in files; returns what writes more of them."""
    monkeypatch.setattr(processes, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(processes, "_CGROUP", tmp_path / "cgroup")

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    write("proc/meminfo", f"MemTotal: {64 << 20} kB\nMemAvailable: {40 << 20} kB\n")
    write("proc/vmstat", "oom_kill 5\n")
    return write


def test_a_limit_of_a_cgroup_above_counts(machine):
    assert processes.host_memory() == processes.HostMemory(40 * GIB, 64 * GIB)  # no cgroups here
    assert processes.oom_kills() == 5
    machine("proc/self/cgroup", "0::/jobs/mine\n")
    machine("cgroup/jobs/mine/memory.max", "max\n")
    machine("cgroup/jobs/mine/memory.current", f"{3 * GIB}\n")
    machine("cgroup/jobs/memory.max", f"{8 * GIB}\n")
    machine("cgroup/jobs/memory.current", f"{7 * GIB}\n")
    files = f"inactive_file {GIB}\nactive_file {GIB // 2}\nslab_reclaimable {GIB // 2}\n"
    machine("cgroup/jobs/memory.stat", f"anon 1\nshmem {GIB}\n{files}")
    machine("cgroup/jobs/memory.events", "oom 3\noom_kill 2\n")
    assert processes.host_memory() == processes.HostMemory(3 * GIB, 8 * GIB)
    assert processes.oom_kills() == 2


def test_a_limit_of_the_first_kind_of_cgroups_counts(machine):
    machine("proc/self/cgroup", "3:pids:/x\n")
    machine("cgroup/memory/memory.limit_in_bytes", f"{4 * GIB}\n")
    machine("cgroup/memory/memory.usage_in_bytes", f"{5 * GIB}\n")  # just now above it
    machine("cgroup/memory/memory.oom_control", "oom_kill_disable 0\noom_kill 1\n")
    assert processes.host_memory() == processes.HostMemory(40 * GIB, 64 * GIB)
    machine("proc/self/cgroup", "4:cpu,memory:/not/seen/here\n0::/\n3:pids:/x\n")
    assert processes.host_memory() == processes.HostMemory(0, 4 * GIB)
    assert processes.oom_kills() == 1
    stat = f"active_file 7\ntotal_active_file {2 * GIB}\ntotal_inactive_file {GIB}\n"
    machine("cgroup/memory/memory.stat", stat)
    assert processes.host_memory() == processes.HostMemory(2 * GIB, 4 * GIB)


# Its GPUs -----------------------------------------------------------------------------------------


def layout(gpus, per_gpu=1, **fields):
    devices = tuple(
        Device(i, "gpu", gpu.name, (i,), uuid=gpu.uuid, mem_bytes=gpu.mem_bytes)
        for i, gpu in enumerate(gpus)
    )
    gmi = {"roles": ("simulator", "agent"), "backend": "mps", "cores": (0,), "num_env": 4}
    specs = [GmiSpec(i, gpu_id=i // per_gpu, **gmi | fields) for i in range(len(gpus) * per_gpu)]
    return Layout("tcg", Topology(devices), tuple(specs))


@pytest.fixture
def meter_on(monkeypatch):
    """A meter of a machine with these GPUs, in which others hold what they hold."""
    meters = []

    def make(*gpus):
        fake_nvml.install(monkeypatch, *gpus)
        meters.append(DeviceMeter())
        return meters[-1]

    yield make
    for meter in meters:
        meter.close()


def test_without_a_driver_nothing_is_known_of_devices(monkeypatch):
    fake_nvml.install(monkeypatch, error=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    meter = DeviceMeter()
    meter.look(layout([FakeGpu()]), {0: 7})
    meter.begin()
    assert meter.end() == DeviceUsage(None, 0.0, None)


def test_device_memory_is_that_above_what_others_held_at_its_most(meter_on):
    one, two = boxes.box(2, mem_bytes=100 * GIB, used_bytes=20 * GIB)
    meter = meter_on(one, two)
    gang = layout([one, two])
    one.used_bytes = 50 * GIB
    two.used_bytes = 60 * GIB
    meter.look(gang, {0: 7, 1: 8})
    two.used_bytes = 30 * GIB
    meter.look(gang, {0: 7, 1: 8})
    found = meter.end()
    assert found.mem_bytes == 40 * GIB
    assert found.share == pytest.approx(40 / 80)  # 20 of the 100 are others'


def test_what_the_driver_says_of_the_processes_goes_before(meter_on):
    (gpu,) = boxes.box(1, mem_bytes=100 * GIB, used_bytes=20 * GIB)
    meter = meter_on(gpu)
    gpu.used_bytes = 70 * GIB  # somebody else has come too
    gpu.processes = [FakeProcess(7, "mps", 6 * GIB), FakeProcess(8, "mps", 9 * GIB)]
    meter.look(layout([gpu], 2, mem_bytes=10 * GIB), {0: 7, 1: 8})
    found = meter.end()
    assert found.mem_bytes == 15 * GIB
    assert found.share == pytest.approx(0.9)  # of the limit of gmi 1


def test_sm_activity_is_the_mean_since_it_began(meter_on):
    one, two = boxes.box(2, gpm=True)
    one.sm_busy, two.sm_busy = 0.5, 0.7
    meter = meter_on(one, two)
    meter.look(layout([one, two]), {})
    meter.begin()
    meter.begin()  # it counts from the first time
    assert meter.end().sm_activity == pytest.approx(0.6)
    meter.close()
    assert not pynvml.nvmlLib.samples  # all are given back


def test_the_fullest_mig_instance_counts(meter_on):
    (gpu,) = boxes.box(1, name="NVIDIA H100 80GB HBM3", mem_bytes=80 * GIB, mig=True)
    instances = [put(gpu, "3g.40gb", start) for start in (0, 4)]
    first, second = (instance.compute_instances[0].uuid for instance in instances)
    meter = meter_on(gpu)
    gpu.mig_used = {first: 10 * GIB, second: 30 * GIB}
    size = profile_of(gpu, instances[0].profile_id).mem_mb << 20
    meter.look(layout([gpu], 2, backend="mig", mig=MigSlice("3g.40gb", 0)), {})
    assert meter.end().mem_bytes == 40 * GIB
    assert meter.end().share == pytest.approx(30 * GIB / size)


def test_a_gpu_without_such_counters_has_no_activity(meter_on):
    (gpu,) = boxes.box(1, gpm=False)
    meter = meter_on(gpu)
    meter.look(layout([gpu]), {})
    meter.begin()
    assert meter.end().sm_activity is None


def test_a_gpu_that_is_lost_ends_the_measuring_and_nothing_else(meter_on):
    (gpu,) = boxes.box(1, mem_bytes=100 * GIB, gpm=True)
    meter = meter_on(gpu)
    gpu.used_bytes = 25 * GIB
    meter.look(layout([gpu]), {})
    meter.begin()
    gpu.error = pynvml.NVML_ERROR_GPU_IS_LOST
    meter.look(layout([gpu]), {})
    found = meter.end()
    assert (found.mem_bytes, found.sm_activity) == (25 * GIB, None)
