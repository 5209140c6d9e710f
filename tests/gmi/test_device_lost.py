"""A process leaves when its device is lost, and on no other error, whatever its words."""

import os
from types import SimpleNamespace

import pytest

import fake_gpus
from gmi_drl.gmi.discover import Machine
from gmi_drl.gmi.faults import DEVICE_FAULT, DEVICE_LOST, LostDevices, leave_if_faulted
from gmi_drl.runtime import ActorDiedError


class Left(Exception):
    """Instead of the end of this process."""


@pytest.fixture
def device(monkeypatch):
    """A device as torch shows it: `lost` by a fatal fault, `started` by this process."""
    illegal = "CUDA error: an illegal memory access was encountered"
    its = SimpleNamespace(lost=True, started=True, says=illegal)

    def query():
        if its.lost:
            raise RuntimeError(its.says)
        return False  # it is at work

    def leave(code):
        raise Left(code)

    monkeypatch.setattr("torch.cuda.is_initialized", lambda: its.started)
    monkeypatch.setattr("torch.cuda.current_stream", lambda: SimpleNamespace(query=query))
    monkeypatch.setattr(os, "_exit", leave)
    return its


@pytest.mark.parametrize(
    "text",
    [
        "cudaErrorIllegalAddress: an illegal memory access was encountered",  # cupy
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "CUDA error: invalid configuration argument",  # a wrong call: CUDA goes on
        "CUDA error: out of memory",
        "gmi 3 did not answer",  # the fault shows where nobody speaks of CUDA
    ],
)
def test_the_device_says_whether_it_is_lost(device, text, capsys):
    error = RuntimeError(text)
    with pytest.raises(Left, match=str(DEVICE_FAULT)):
        leave_if_faulted(error)
    assert f"RuntimeError: {text}" in capsys.readouterr().err
    device.lost = False
    leave_if_faulted(error)


@pytest.mark.parametrize("what", ["ECC error encountered", "NVLink error detected during the run"])
def test_an_error_of_the_device_itself_is_told_from_one_of_the_process(device, what):
    device.says = f"CUDA error: uncorrectable {what}"
    with pytest.raises(Left, match=str(DEVICE_LOST)):
        leave_if_faulted(RuntimeError("gmi 3 did not answer"))


def test_devices_are_lost_by_what_cuda_says_and_by_what_the_driver_does_not(monkeypatch):
    two = fake_gpus.topology(2)
    codes = {0: [], 1: [], 2: [], 3: [1, DEVICE_FAULT]}
    lost = LostDevices(
        fake_gpus.specs("mps", two, 2), two,
        lambda gmi_id: [ActorDiedError("a", exit_code=code) for code in codes[gmi_id]],
    )  # fmt: skip
    listed = Machine(devices=two.devices)
    monkeypatch.setattr("gmi_drl.gmi.faults.look", lambda: listed)
    assert lost.look() == {}
    codes[2].append(DEVICE_FAULT)
    listed = Machine(devices=two.devices[:1])
    assert list(lost.look()) == [1]
    assert "does not list it" in lost.look()[1]
    codes[0].append(DEVICE_LOST)
    assert list(lost.look()) == [1, 0]


def test_a_device_that_was_never_started_is_not_asked(device):
    device.started = False
    leave_if_faulted(RuntimeError("CUDA error: an illegal memory access was encountered"))
