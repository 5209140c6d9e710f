"""The first checks on a GPU, as far as fakes of CUDA, NVML and MPS take them."""

import contextlib
import inspect
import json
import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

import fake_gpus
import fake_nvml
from cuda_on_cpu import CudaOnCpu
from gmi_drl import runtime
from gmi_drl.gmi import nvml
from gmi_drl.placement import Device, Topology
from gmi_drl.placement.topology import GpuProcess

TESTS = Path(__file__).resolve().parents[1]
BENCH = TESTS.parent / "bench"
UUID = "GPU-12345678-1234-1234-1234-123456789abc"
CORES = tuple(sorted(os.sched_getaffinity(0)))
H200 = Device(0, "gpu", "NVIDIA H200", CORES, UUID, 132, 141 << 30, (9, 0), compute_mode="default")
# Stands in for clients.py: says what ANSWERS has for the client, and stays if it is one that does.
CLIENTS = """
import json, os, sys
name, *arguments = sys.argv[1:]
said = json.loads(os.environ["ANSWERS"])[name]
print("Warp 1.19.0 initialized:", flush=True)  # libraries talk
if isinstance(said, str):
    sys.exit(said)
print(json.dumps(said), flush=True)
if name in ("exports", "works"):
    sys.stdin.readline()
"""


@pytest.fixture
def probe(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    from gpu.probe import probe

    yield probe
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(BENCH)):
            del sys.modules[name]


@pytest.fixture
def fake_h200(monkeypatch, tmp_path, probe):
    gpus = [{"uuid": UUID, "sm_count": 132, "mem_bytes": 141 << 30, "capability": [9, 0]}]
    (tmp_path / "gpus.json").write_text(json.dumps(gpus))
    monkeypatch.setenv("FAKE_CUDA", str(tmp_path / "gpus.json"))
    monkeypatch.setenv("PYTHONPATH", f"{TESTS / 'fake_cuda'}:{TESTS.parent / 'src'}")
    path = (TESTS / "fake_mps", Path(sys.executable).parent, os.environ["PATH"])
    monkeypatch.setenv("PATH", ":".join(map(str, path)))
    monkeypatch.setattr(probe, "found_gpus", lambda: Topology((H200,)))


@pytest.fixture
def query(monkeypatch, tmp_path, probe, capsys):
    """Runs one check in this process, with clients that answer as they are told; its rows."""
    from gpu.probe import checks, harness

    (tmp_path / "clients.py").write_text(CLIENTS)
    monkeypatch.setattr(harness, "CLIENTS", tmp_path / "clients.py")

    def ask(name, device=H200, answers=None, cuda=None, **more):
        monkeypatch.setenv("ANSWERS", json.dumps(answers or {}))
        layout = probe.one_gmi(Topology((device,), cuda=cuda))
        capsys.readouterr()
        checks.CHECKS[name](harness.Check(name, layout), **more)
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert all(one["workaround"] for one in rows if one["ok"] is not None)
        return {one["what"]: one for one in rows}

    return ask


def kept(results):
    return json.loads((results / "nvidia-h200" / "probe.json").read_text())


# The probe itself.


def test_a_machine_without_a_gpu_is_told_so(probe, capsys, monkeypatch):
    monkeypatch.setattr(probe, "discover", lambda: Topology.from_cores(CORES))
    assert probe.main([]) == 0
    assert capsys.readouterr().out == "no GPU here: nothing probed\n"


@pytest.mark.slow
@pytest.mark.usefixtures("fake_h200")
def test_what_clients_of_mps_see_is_a_table_and_a_file(probe, tmp_path, capfd):
    assert probe.main(["--only", "shares", "--results", str(tmp_path)]) == 0
    out, table = capfd.readouterr()
    path = tmp_path / "nvidia-h200" / "probe.json"
    assert out == f"0 of 6 rows are not as they should be: {path}\n"
    assert "NVIDIA H200, 132 SMs" in table
    found = kept(tmp_path)
    assert found.keys() >= {"machine", "commit", "date", "versions", "gpu", "seconds", "took_s"}
    assert found["left"] == []
    values = {one["what"]: one["value"] for one in found["rows"]}
    shares = [values[f"{percent} %: SMs"] for percent in (12, 25, 33, 50, 100)]
    assert values["outside MPS: SMs"] == 132
    for seen, floor in zip(shares, (15, 33, 43, 66, 132), strict=True):
        assert floor - 2 < seen <= floor  # however the double rounds


@pytest.mark.usefixtures("fake_h200")
def test_a_no_is_told_with_its_way_round(probe, query, capsys):
    rows = query("shares", answers={"sees": {"answer": {"mps": True, "sm_count": 36}}})
    oks = [rows[f"{percent} %: SMs"]["ok"] for percent in (12, 25, 33, 50, 100)]
    assert oks == [False, True, True, False, False]
    assert rows["25 %: SMs"]["expected"] == "33, in pairs 32; 8 off at most"
    probe.show(H200, list(rows.values()), {"shares": 1.0})
    table = " ".join(capsys.readouterr().err.split())
    assert table.count("-> Compare rows of `mps` by the SMs") == 4


@pytest.mark.slow
@pytest.mark.usefixtures("fake_h200")
def test_a_check_that_fails_is_a_row_and_not_the_end(probe, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_MPS", "refuse")
    command = ["--only", "terminate", "mps", "--results", str(tmp_path)]
    assert probe.main(command) == 1
    failed, no_daemon, outside = kept(tmp_path)["rows"]
    assert (failed["what"], failed["ok"]) == ("a client is fenced", False)
    assert "MpsError" in failed["why"]
    assert (no_daemon["ok"], outside["ok"]) == (False, True)
    assert "`green` and `direct`" in no_daemon["workaround"]


def test_a_check_that_crashes_is_a_row(probe, tmp_path, monkeypatch):
    (tmp_path / "checks.py").write_text("raise SystemExit('the driver is of another age')\n")
    monkeypatch.setattr(probe, "HERE", tmp_path)
    probe.checked("green", tmp_path, 30.0, rows := [])
    (one,) = rows
    assert (one["what"], one["why"]) == ("ended with 1", "the driver is of another age")
    assert one["workaround"] == "Use `mps`, or `direct`."


HANGS = (
    "import os, subprocess, sys, json, time\n"
    "child = subprocess.Popen(['sleep', '60'])\n"
    "print(json.dumps({'check': sys.argv[1], 'what': 'one', 'value': 1, 'ok': True}), flush=True)\n"
    "if sys.argv[1] != 'node':\n"
    "    open('hangs.new', 'w').write(f'{os.getpid()} {child.pid}')\n"
    "    os.rename('hangs.new', 'hangs')\n"
    "    time.sleep(60)\n"  # it hangs
)


def test_a_check_that_hangs_is_ended_with_all_it_started(probe, tmp_path, monkeypatch):
    """What it had found is kept; that its child is gone is checked after every test."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checks.py").write_text(HANGS)
    monkeypatch.setattr(probe, "HERE", tmp_path)
    probe.checked("green", tmp_path, 3.0, rows := [])
    found, late = rows
    assert (found["value"], late["what"], late["ok"]) == (1, "was not done after 3 s", False)
    probe.checked("green", tmp_path, 0, rows)
    assert rows[2]["what"] == "not run"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.usefixtures("fake_h200")
def test_a_probe_that_is_ended_has_left_what_it_found(tmp_path, number):
    (tmp_path / "checks.py").write_text(HANGS)
    script = (
        "import sys, private_leases\n"
        "from gpu.probe import probe\n"
        "from pathlib import Path\n"
        "from gmi_drl.placement import Device, Topology\n"
        f"probe.found_gpus = lambda: Topology(({H200!r},))\n"
        "probe.HERE = Path.cwd()\n"
        "sys.exit(probe.main(['--only', 'node', 'green', 'reduce', '--results', '.']))\n"
    )
    paths = [BENCH, TESTS, os.environ["PYTHONPATH"]]
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": ":".join(map(str, paths))},
    )  # fmt: skip
    with process:
        while not (tmp_path / "hangs").exists():
            assert process.poll() is None
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
        process.send_signal(number)
        out = process.communicate()[0]
    found = kept(tmp_path)
    checks = [one["check"] for one in found["rows"]]
    if number == signal.SIGTERM:  # then it ends the check, too, and keeps what that had found
        assert process.returncode == 143, out
        assert "ended by SIGTERM" in out
        assert (checks, found["left"]) == (["node", "green", "green"], ["reduce"])
        assert found["rows"][2]["what"] == "was ended, as the probe was"
        return
    assert (checks, found["left"]) == (["node"], ["green", "reduce"])
    for pid in map(int, (tmp_path / "hangs").read_text().split()):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.usefixtures("fake_h200")
def test_a_folder_that_cannot_be_written_is_told_before_anything_is_asked(probe, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as ended:
        probe.main(["--results", str(tmp_path / "file")])
    assert ended.value.code == 2
    assert "Give a folder that can be written." in capsys.readouterr().err


def test_checks_and_assumptions_are_the_same_and_stand_on_the_page(probe):
    from gpu.probe import checks
    from gpu.probe.assumptions import ASSUMPTIONS

    assert list(checks.CHECKS) == list(ASSUMPTIONS)
    assert 60 * probe.MINUTES + max(one.deadline_s for one in ASSUMPTIONS.values()) <= 400
    page = (TESTS.parent / "docs" / "gpu-backends.md").read_text()
    for name, one in ASSUMPTIONS.items():
        assert f"| `{name}` | {one.assumption} | {one.method} | {one.workaround} |" in page


# The node.


def test_programs_off_the_path_are_found_and_put_on_it(probe, query, tmp_path, monkeypatch):
    from gpu.probe import node

    folder = tmp_path / "usr" / "local" / "nvidia" / "bin"
    folder.mkdir(parents=True)
    for name in ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(node, "FOLDERS", (f"{tmp_path}/nowhere", f"{tmp_path}/usr/*/*/bin"))
    one = query("node")["nvidia-cuda-mps-control"]
    assert (one["value"], one["ok"]) == (str(folder / "nvidia-cuda-mps-control"), False)
    assert one["workaround"] == f'export PATH="$PATH:{folder}"'
    probe.reach_programs()
    assert os.environ["PATH"] == f"{tmp_path / 'empty'}:{folder}"
    assert query("node")["nvidia-cuda-mps-control"]["ok"] is True
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(node, "FOLDERS", ())
    one = query("node")["nvidia-cuda-mps-server"]
    assert (one["value"], one["ok"]) == (None, False)
    assert "measure with green and direct" in one["workaround"]


def test_what_a_node_lacks_is_a_no_each_with_its_remedy(query, monkeypatch):
    from gpu.probe import node

    installed = {"torch": "2.11.0", "numpy": "2.4", "nvidia-ml-py": "13", "cuda-bindings": "13.0"}
    monkeypatch.setattr(node, "versions", lambda: installed)
    good = query("node", cuda=(13, 0))
    names = ("driver", "torch", "cuda-bindings", "processes of others", "compute mode", "MIG mode")
    assert [good[name]["ok"] for name in names] == [True] * 6
    assert (good["warp-lang"]["value"], good["warp-lang"]["ok"]) == ("not here", None)
    del installed["cuda-bindings"]
    usage = types.SimpleNamespace(total=1 << 20, free=1 << 19)
    monkeypatch.setattr(node.shutil, "disk_usage", lambda path: usage)
    busy = Device(
        0, "gpu", "NVIDIA H200", CORES, UUID, 132, 141 << 30, (9, 0), compute_mode="exclusive",
        mig_mode=True, processes=(GpuProcess(7, "compute", 1 << 30),),
    )  # fmt: skip
    bad = query("node", busy, cuda=(12, 9))
    names = ("driver", "cuda-bindings", "/dev/shm: MiB free of MiB", *names[3:])
    assert [bad[name]["ok"] for name in names] == [False] * 6
    assert bad["processes of others"]["value"] == ["pid 7 (compute, 1024 MiB)"]
    assert bad["cuda-bindings"]["workaround"].startswith("Install cuda-bindings")


def test_a_distribution_is_found_whatever_its_cuda(monkeypatch, probe):
    from gpu.probe import node

    found = [("Torch", "2.11.0"), ("nvidia_ml_py", "13"), ("cupy-cuda12x", "14.2"), ("x", "1")]
    packages = [types.SimpleNamespace(name=name, version=version) for name, version in found]
    monkeypatch.setattr(node.importlib.metadata, "distributions", lambda: packages)
    node.versions.cache_clear()
    assert node.versions() == {
        "torch": "2.11.0", "nvidia-ml-py": "13", "cupy-cuda12x": "14.2",
    }  # fmt: skip


# The preload.


@pytest.fixture
def fake_driver(monkeypatch, tmp_path, probe):
    """In this process, too: its fork server is told where modules are."""
    fake_gpus.install(monkeypatch, tmp_path, Topology((H200,)))


@pytest.mark.usefixtures("fake_driver")
def test_a_fork_after_the_preload_can_start_cuda(query, monkeypatch):
    from gpu.probe import checks

    import bodies_probe

    monkeypatch.setattr(checks, "Forked", bodies_probe.Computes)
    rows = query("fork", preload=("gmi_drl.gmi", "there_is_no_such_module"))
    assert [one["ok"] for one in rows.values()] == [None, True, True]
    assert "there_is_no_such_module" in rows["PRELOAD: imports took s"]["why"]
    assert rows["PRELOAD: torch computes after the fork"]["value"] == "torch"


@pytest.mark.slow
@pytest.mark.usefixtures("fake_driver")
def test_the_module_is_named_that_starts_cuda_before_the_fork(query, monkeypatch):
    from gpu.probe import checks, harness

    import bodies_probe

    monkeypatch.setattr(checks, "Forked", bodies_probe.Computes)
    monkeypatch.setattr(harness, "CLIENTS", BENCH / "gpu" / "probe" / "clients.py")
    rows = query("fork", preload=("json", "starts_cuda", "gmi_drl.gmi"))
    failed = rows["PRELOAD: the driver starts after the fork"]
    assert failed["ok"] is False
    assert "CUDA_ERROR_NOT_INITIALIZED" in failed["why"]
    assert "PRELOAD" in failed["workaround"]
    blamed = rows["module that starts CUDA"]
    assert (blamed["value"], blamed["why"]) == ("starts_cuda", "cuInit was called")
    assert rows["nothing preloaded: the driver starts after the fork"]["ok"] is True
    assert rows["nothing preloaded: torch computes after the fork"]["ok"] is True


# What clients answer.

TIMES = {"open_memory_us": 1.0, "open_event_us": 1.0, "wait_event_us": 1.0, "copy_10mib_us": 1.0}
CAPTURED = {
    "off": 1e-7, "calls": 9, "error": "", "sms": 64, "inside": True, "allowed": 64, "fault": "",
}  # fmt: skip
GREEN = {
    "group_sms": 8, "sms": [list(range(64)), list(range(64, 96)), list(range(96, 128))],
    "said": [64, 32, 32], "torch": True, "fault": "",
}  # fmt: skip
EXPORTS = {"exports": {"answer": {"memory": [], "event": ""}}}


@pytest.mark.usefixtures("fake_h200")
@pytest.mark.parametrize(
    ("name", "answers", "wrong"),
    [
        ("ipc", EXPORTS | {"imports": {"answer": {"right": [True, True, True], **TIMES}}}, []),
        (
            "ipc",
            EXPORTS | {"imports": {"answer": {"right": [True, True, False], **TIMES}}},
            [f"{b}, {lib}: so are twice 0.5 MiB" for b in ("mps", "direct")
             for lib in ("torch", "cupy")],
        ),
        ("ipc", {"exports": {"error": "RuntimeError: CUDA error: invalid argument"}},
         ["mps, torch", "mps, cupy", "direct, torch", "direct, cupy"]),
        ("mps", {"sees": {"answer": {"mps": True, "sm_count": 132}}}, ["a process is outside MPS"]),
        ("mps", {"sees": {"answer": {"mps": False, "sm_count": 132}}}, ["a process is its client"]),
        ("conditional", {"loops": {"answer": 10}}, []),
        ("conditional", {"loops": {"answer": 9}},
         [f"{b}: rounds of a loop to 10" for b in ("direct", "mps", "green")]),
        ("conditional", {"loops": "Segmentation fault"},
         [f"{b}: rounds of a loop to 10" for b in ("direct", "mps", "green")]),
        ("capture", {"captures": {"answer": CAPTURED}}, []),
        ("capture", {"captures": {"answer": CAPTURED | {"off": 0.1, "error": "it failed",
                                                        "inside": False}}},
         [f"{b}: {what}" for b in ("direct", "green")
          for what in ("largest difference to eager", "calls of another thread meanwhile",
                       "SMs of the replays")]),
        ("capture", {"captures": {"answer": CAPTURED | {"sms": 0, "fault": "invalid handle"}}}, []),
        ("events", {"events": {"answer": {"recorded": "", "timed": ""}}}, []),
        ("events", {"events": {"answer": {"recorded": "", "timed": "invalid"}}}, ["timed"]),
        ("registered", {"registered": {"answer": {"right": True, "pinned": True, "why_not": "",
                                                  "both_ways_us": 9.0}}}, []),
        ("registered", {"registered": {"answer": {"right": True, "pinned": False,
                                                  "why_not": "error 801", "both_ways_us": 9.0}}},
         ["registered"]),
        ("green", {"green": {"answer": GREEN}}, []),
        ("green", {"green": {"answer": GREEN | {"sms": [[0, 1], [1, 2], [3, 4]]}}},
         ["no SM in two of them", "as many as the driver says"]),
        ("green", {"green": {"answer": GREEN | {"fault": "invalid handle", "sms": []}}},
         ["a kernel of the primary context's module does"]),
    ],
)  # fmt: skip
def test_what_clients_find_is_judged(query, name, answers, wrong):
    rows = query(name, answers=answers)
    assert [what for what, one in rows.items() if one["ok"] is False] == wrong
    assert wrong or any(one["ok"] for one in rows.values())


@pytest.mark.usefixtures("fake_h200")
def test_an_error_of_a_client_is_told_in_the_library_s_words(query):
    answers = {"loops": {"error": "RuntimeError: Warp CUDA error 900"}}
    rows = query("conditional", answers=answers)
    assert "Warp CUDA error 900" in rows["green: rounds of a loop to 10"]["why"]
    rows = query("conditional", answers={"loops": "Segmentation fault"})
    assert "Segmentation fault" in rows["green: rounds of a loop to 10"]["why"]


@pytest.mark.usefixtures("fake_h200")
def test_a_package_that_is_not_here_is_no_failure(query):
    rows = query("conditional", answers={"loops": {"not_here": "warp-lang"}})
    assert {one["value"] for one in rows.values()} == {"not here: warp-lang"}
    assert {one["ok"] for one in rows.values()} == {None}
    assert all("BallBalance-v0" in one["workaround"] for one in rows.values())


@pytest.mark.usefixtures("fake_h200")
@pytest.mark.parametrize(("words", "value"), [("static", "GPU-"), ("", "None")])
def test_static_partitions_are_there_or_not(probe, tmp_path, monkeypatch, words, value):
    monkeypatch.setenv("FAKE_MPS", words)
    assert probe.main(["--only", "static", "--results", str(tmp_path)]) == 0
    rows = kept(tmp_path)["rows"]
    assert str(rows[0]["value"]).startswith(value)
    assert [one["value"] for one in rows[1:]] == ([64] if words else [])


def test_a_daemon_of_cuda_13_0_is_not_asked_for_partitions(query):
    (one,) = query("static", cuda=(13, 0)).values()
    assert (one["value"], one["ok"]) == ("not asked", None)
    assert "13.1" in one["why"]


@pytest.mark.usefixtures("fake_h200")
@pytest.mark.parametrize("told", [True, False])
def test_what_nvml_says_of_a_process_at_work(query, monkeypatch, told):
    from gpu.probe import checks, harness

    gpu = fake_nvml.FakeGpu(uuid=UUID, gpm=told, sm_busy=0.75)
    fake_nvml.install(monkeypatch, gpu)

    @contextlib.contextmanager
    def started(*arguments):
        with harness.started(*arguments) as process:
            gpu.processes = [fake_nvml.FakeProcess(process.pid if told else 1, mem_bytes=5 << 20)]
            yield process

    monkeypatch.setattr(checks, "started", started)
    monkeypatch.setattr(checks, "_WATCHED_S", 0.0)
    rows = query("usage", answers={"works": {"answer": "ready"}})
    assert [one["ok"] for one in rows.values()] == [told] * 4
    values = {what: one["value"] for what, one in rows.items()}
    assert values["mps: SMs busy (GPM)"] == (0.75 if told else None)
    assert values["mps: memory of the process, MiB"] == (5 if told else None)
    assert "listed are" in rows["direct: memory of the process, MiB"]["why"]
    with nvml.nvml_session() as driver:  # what the meter has taken it has given back
        assert driver.nvmlLib.samples == {}


@pytest.mark.usefixtures("fake_h200")
@pytest.mark.parametrize(
    ("said", "oks"),
    [
        ({"from_cache": 36, "compiled": [], "first_step_s": 2.0}, [True, True, None]),
        (
            {"from_cache": 0, "compiled": [{"module": "a", "seconds": 9.0}], "first_step_s": 60.0},
            [False, False, None],
        ),
        (None, [False]),
    ],
)
def test_prebuilt_kernels_are_taken_or_not(query, tmp_path, monkeypatch, said, oks):
    from gpu.probe import checks

    monkeypatch.setattr(checks, "KERNELS", tmp_path / "kernel_cache.py")
    monkeypatch.setattr(checks.importlib.util, "find_spec", lambda name: name)
    (one,) = query("kernels").values()
    assert (one["value"], one["ok"]) == ("not here: kernel_cache.py", None)
    text = "raise SystemExit('no cache')" if said is None else f"print('''{json.dumps(said)}''')"
    (tmp_path / "kernel_cache.py").write_text(f"print('Warp')\n{text}\n")
    rows = query("kernels")
    assert [one["ok"] for one in rows.values()] == oks
    assert said is not None or "no cache" in rows["kernels"]["why"]
    monkeypatch.setattr(checks.importlib.util, "find_spec", lambda name: None)
    (one,) = query("kernels").values()
    assert one["value"] == "not here: warp-lang"


@pytest.mark.skipif(len(CORES) < 2, reason="two processes on one core wait for each other")
def test_reductions_of_all_gangs_share_one_fork_server(query, monkeypatch):
    """On groups of cores, where `ipc` is what `mpr` is."""

    servers = []
    init = runtime.init
    monkeypatch.setattr(runtime, "init", lambda preload: servers.append(init(preload)))
    device = Topology.from_cores(CORES).devices[0]
    rows = query("reduce", device, gangs=(("cpu", 2), ("cpu", 1), ("cpu", 2)))
    assert len(servers) == 1
    assert rows["cpu, 2 GMIs: mpr, us"]["ok"] is True
    assert list(rows["cpu, 2 GMIs: ipc, us"]["value"]) == [
        "16 KiB", "128 KiB", "512 KiB", "2048 KiB",
    ]  # fmt: skip


def test_of_reductions_that_fail_together_each_is_tried_alone(query, monkeypatch):
    from gpu.probe import checks

    tried = []

    def reduced(check, layout, strategies):
        tried.append(list(strategies))
        return strategies == ["mpr"]

    monkeypatch.setattr(checks, "_reduced", reduced)
    monkeypatch.setattr(checks.runtime, "init", lambda preload: None)
    device = Topology.from_cores(CORES).devices[0]
    query("reduce", device, gangs=(("cpu", 2),))
    assert tried == [["ipc", "mpr"], ["ipc"], ["mpr"]]
    monkeypatch.setattr(checks.importlib.util, "find_spec", lambda name: None)
    rows = query("reduce", gangs=(("direct", 2),))
    assert rows["ipc"]["value"] == "not here: cupy-cuda13x"
    assert tried[3:] == [["mpr"]]


@pytest.mark.usefixtures("fake_h200")
def test_a_client_that_is_ended_at_work_is_told(query, monkeypatch):
    """The stand-in does not use CUDA, so that nothing ends it but its slice's end."""
    from gpu.probe import checks

    monkeypatch.setattr(checks, "_ENDED_S", 0.1)
    answers = {
        "works": {"answer": "ready"}, "sees": {"answer": {"mps": True, "sm_count": 66}},
    }  # fmt: skip
    rows = query("terminate", answers=answers)
    assert rows["the client's end"]["value"] == "it went on until SIGKILL"
    assert rows["another client gets in"]["ok"] is True


# Clients, as far as they run without a GPU.


def test_a_client_says_what_is_not_here_and_what_went_wrong(probe, capsys, monkeypatch):
    from gpu.probe import clients

    monkeypatch.setitem(sys.modules, "cupy", None)
    clients.main("imports", "cupy", "{}")
    assert json.loads(capsys.readouterr().out) == {"not_here": "cupy-cuda13x"}
    monkeypatch.setitem(clients.__dict__, "sees", lambda: 1 / 0)
    clients.main("sees")
    out, err = capsys.readouterr()
    assert json.loads(out) == {"error": "ZeroDivisionError: division by zero"}
    assert "Traceback" in err


def test_a_loop_of_warp_ends_by_itself(probe):
    """As a graph of warp on the CPU."""
    pytest.importorskip("warp")
    from gpu.probe.graph_loop import rounds_of_loop

    assert rounds_of_loop(10, "cpu") == 10


@pytest.fixture
def cuda(fake_driver, monkeypatch):
    """The CPU in place of a GPU; a graph is the work itself, which a capture does not run."""
    from cuda.bindings import driver

    from gmi_drl.roles import graphs

    class Pool:
        def __init__(self, device):
            assert device == torch.zeros(1).device

        def at_work(self):
            return contextlib.nullcontext()

        def record(self, run):
            return types.SimpleNamespace(replay=run)

    monkeypatch.setattr(graphs, "Pool", Pool)
    return CudaOnCpu(monkeypatch, driver.fake_sms)


@pytest.mark.parametrize(("where", "sms"), [("plain", 132), ("green", 64)])
def test_updates_are_captured_beside_a_twin_and_a_disturber(cuda, where, sms):
    from gpu.probe import stream_clients

    found = stream_clients.captures(where)
    assert found.pop("calls") >= 2
    assert found == {
        "off": 0.0, "error": "", "sms": sms, "inside": True, "allowed": sms, "fault": "",
    }  # fmt: skip


def test_an_update_that_a_graph_does_otherwise_is_seen(cuda, monkeypatch):
    from gpu.probe import stream_clients

    made = []
    update_of = stream_clients.update_of

    def once(network, inputs):
        made.append(update_of(network, inputs))
        return made[-1] if len(made) == 1 else lambda: None  # the twin stays as it is

    monkeypatch.setattr(stream_clients, "update_of", once)
    assert stream_clients.captures("plain")["off"] > 1e-4


def test_kernels_that_cannot_be_launched_are_told_and_torch_is_captured_alone(cuda, monkeypatch):
    from gpu.probe import stream_clients

    def refuse(**launch):
        raise RuntimeError("CUDA error: invalid resource handle")

    monkeypatch.setattr(torch.cuda, "_compile_kernel", lambda source, name: refuse)
    found = stream_clients.captures("green")
    assert (found["off"], found["sms"]) == (0.0, 0)
    assert "invalid resource handle" in found["fault"]
    found = stream_clients.green()
    assert (found["torch"], found["sms"]) == (True, [])
    assert "invalid resource handle" in found["fault"]


def test_green_contexts_of_one_split_are_apart(cuda):
    from gpu.probe import stream_clients

    found = stream_clients.green()
    assert [len(sms) for sms in found["sms"]] == found["said"] == [64, 32, 32]
    assert len({sm for sms in found["sms"] for sm in sms}) == 128
    assert (found["group_sms"], found["torch"], found["fault"]) == (8, True, "")


def test_events_cross_green_streams_or_say_why_not(cuda):
    from gpu.probe import stream_clients

    found = stream_clients.events()
    assert len(found) == 4
    assert set(found.values()) == {""}
    cuda.refuses_green = True
    assert set(stream_clients.events().values()) == {
        "RuntimeError: CUDA error: invalid resource handle"
    }


@pytest.mark.parametrize("error", [0, 801])
def test_memory_is_registered_or_copied_as_it_is(cuda, error):
    from gpu.probe import clients

    cuda.host_error = error
    found = clients.registered()
    assert found["right"] is True
    assert ("error 801" in found["why_not"]) == bool(error)


def test_a_thread_that_cannot_call_cuda_says_so_and_keeps_nobody_waiting(probe, monkeypatch):
    from gpu.probe.stream_clients import Disturbs

    def refuse(stream):
        raise RuntimeError("operation not permitted\nand advice")

    monkeypatch.setattr(torch.cuda, "set_stream", refuse)
    disturbs = Disturbs(None)
    disturbs.begin()
    disturbs.again()
    disturbs.end()
    assert (disturbs.calls, disturbs.error) == (0, "RuntimeError: operation not permitted")


def test_torch_has_what_the_clients_call(probe):
    from torch.cuda._utils import _CudaKernel

    compile_parameters = list(inspect.signature(torch.cuda._compile_kernel).parameters)
    assert compile_parameters[:2] == ["kernel_source", "kernel_name"]
    assert inspect.signature(_CudaKernel.__call__).parameters.keys() >= {"grid", "block", "args"}
    capture = inspect.signature(torch.cuda.CUDAGraph.capture_begin).parameters
    assert capture.keys() >= {"pool", "capture_error_mode"}
    assert all(
        (
            torch.cuda._sleep, torch.cuda.Event.from_ipc_handle, torch.cuda.ExternalStream,
            torch.UntypedStorage._share_cuda_, torch.UntypedStorage._new_shared_cuda,
        )
    )  # fmt: skip
