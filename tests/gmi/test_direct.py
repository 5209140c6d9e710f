"""A GMI on a GPU without partitions: it sees its one GPU, and is outside MPS, whoever runs it."""

import os
import pickle
import sys

import pytest

import bodies_mps
import fake_gpus
from fork_context import CONTEXT
from gmi_drl.gmi import SliceError, backend_of
from gmi_drl.gmi.backends import gpu
from gmi_drl.gmi.backends.mps.control import Daemon

TWO = fake_gpus.topology(2)
SPECS = fake_gpus.specs("direct", TWO, per_gpu=1)


@pytest.fixture(autouse=True)
def _machine(monkeypatch, tmp_path):
    fake_gpus.install(monkeypatch, tmp_path, TWO)


def seen(spec, **more):
    """What a process of the GMI saw, or the error's text; `more` are variables set after all."""
    slices = backend_of("direct").prepare(SPECS, TWO)
    environment = slices.environment(spec) | {"FAKE_CUDA": os.environ["FAKE_CUDA"]} | more
    receive, send = CONTEXT.Pipe(duplex=False)
    device = TWO.devices[spec.gpu_id]
    process = CONTEXT.Process(target=bodies_mps.client, args=(spec, device, environment, send))
    process.start()
    try:
        assert receive.poll(30)
        return receive.recv()
    finally:
        process.kill()
        process.join()
        slices.release()


def test_each_sees_its_gpu_and_all_of_it():
    assert [seen(spec) for spec in SPECS] == [(False, 132)] * 2
    assert f"CUDA sees {TWO.devices[0].uuid[4:]}" in seen(
        SPECS[1], CUDA_VISIBLE_DEVICES=TWO.devices[0].uuid
    )
    assert "CUDA sees 2 devices" in seen(SPECS[0], CUDA_VISIBLE_DEVICES="0,1")
    assert "no device is visible" in seen(SPECS[0], CUDA_VISIBLE_DEVICES="GPU-none")


def test_it_does_not_join_a_daemon_of_the_machine(monkeypatch, tmp_path):
    daemon = Daemon(tmp_path, TWO.devices[0].uuid)
    daemon.start()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(daemon.pipe))  # the user's, for all
    try:
        assert seen(SPECS[0]) == (False, 132)
        inside = seen(SPECS[0], CUDA_MPS_PIPE_DIRECTORY=str(daemon.pipe))
        assert "backend direct, but the process is an MPS client" in inside
    finally:
        daemon.stop()


def test_without_a_driver_it_says_so(monkeypatch):
    monkeypatch.delenv("FAKE_CUDA")
    with pytest.raises(SliceError, match="no CUDA driver"):
        gpu.verify_device(SPECS[0], SPECS[0].device_uuid)


def test_without_cuda_bindings_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(SliceError, match=r"pip install -e '\.\[cuda\]'") as caught:
        gpu.verify_device(SPECS[0], SPECS[0].device_uuid)
    error = caught.value.__cause__
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.code) == (str(error), 0)


def test_a_layout_without_uuids_is_refused():
    (lacking,) = fake_gpus.specs("direct", fake_gpus.topology(uuid=None), per_gpu=1)
    with pytest.raises(SliceError, match="backend direct without device_uuid"):
        backend_of("direct").prepare([lacking], TWO).environment(lacking)


def test_torchs_allocator_keeps_the_users_options_but_for_expandable_segments(monkeypatch):
    def environment(**given):
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            monkeypatch.delenv(name, raising=False)
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        found = gpu.gpu_environment(SPECS[0], SPECS[0].device_uuid)
        return {name: value for name, value in found.items() if name.startswith("PYTORCH")}

    assert environment() == {}
    kept = "max_split_size_mb:64,roundup_power2_divisions:[256:1,>:8]"
    assert environment(PYTORCH_ALLOC_CONF=kept) == {}
    both = f"expandable_segments:True,{kept}"
    assert environment(PYTORCH_CUDA_ALLOC_CONF=both) == {"PYTORCH_CUDA_ALLOC_CONF": kept}
    off = {"PYTORCH_ALLOC_CONF": "expandable_segments:False"}
    assert environment(PYTORCH_ALLOC_CONF=" expandable_segments : True") == off


def test_variables_of_the_users_mps_do_not_reach_a_process(monkeypatch):
    users = (
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
        "CUDA_MPS_CLIENT_PRIORITY",
        "CUDA_MPS_SM_PARTITION",
    )
    for name in users:
        monkeypatch.setenv(name, "0=1G")  # as each process inherits it
    for name, value in gpu.gpu_environment(SPECS[0], SPECS[0].device_uuid).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(gpu, "take_cores", lambda *_: None)
    for backend in ("direct", "mps", "mig"):
        backend_of(backend).enter(SPECS[0], TWO.devices[0])
    assert not users & os.environ.keys()
    assert os.environ["CUDA_MPS_PIPE_DIRECTORY"] == "/proc/sys"
