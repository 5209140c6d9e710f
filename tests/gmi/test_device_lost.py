"""A process leaves when its device is lost, and on no other error, whatever its words."""

import os
from types import SimpleNamespace

import pytest

from gmi_drl.gmi.faults import DEVICE_FAULT, leave_if_faulted


class Left(Exception):
    """Instead of the end of this process."""


@pytest.fixture
def device(monkeypatch):
    """A device as torch shows it: `lost` by a fatal fault, `started` by this process."""
    its = SimpleNamespace(lost=True, started=True)

    def query():
        if its.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
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


def test_a_device_that_was_never_started_is_not_asked(device):
    device.started = False
    leave_if_faulted(RuntimeError("CUDA error: an illegal memory access was encountered"))
