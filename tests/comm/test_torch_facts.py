"""What torch is asked, in a process of its own; a double of torch stands before the real one."""

from datetime import timedelta

import pytest

from gmi_drl.comm.errors import CommError
from gmi_drl.comm.plan.torch_facts import DEADLINE, TorchFacts, ask_torch

# As torch: GPUs are counted by NVML, without CUDA, which is started by what is computed.
_TORCH = """
class _Sum:
    def item(self): return 2.0

class _Ones:
    def __add__(self, other): return _Sum()

class version: cuda = {cuda!r}
class distributed: is_nccl_available = staticmethod(lambda: {nccl!r} is not None)
class cuda:
    device_count = staticmethod(lambda: 1)
    class nccl: version = staticmethod(lambda: {nccl!r})

def ones(size, device):
    assert device == "cuda"
    if {error!r}:
        raise RuntimeError({error!r})
    return _Ones()

__version__ = "2.13.0"
print("noise")
"""
_NO_KERNEL = "CUDA error: no kernel image is available for execution on the device"


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Puts a torch of this source in the way of the real one."""
    ask_torch.cache_clear()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def write(source=_TORCH, cuda="13.0", nccl=(2, 28, 9), error=""):
        text = source.format(cuda=cuda, nccl=nccl, error=error) if source is _TORCH else source
        (tmp_path / "torch.py").write_text(text)

    yield write
    ask_torch.cache_clear()


@pytest.mark.parametrize(
    ("fields", "compute", "facts"),
    [
        ({}, True, TorchFacts("2.13.0", "13.0", (2, 28, 9), 1)),
        ({"nccl": None}, False, TorchFacts("2.13.0", "13.0", None, 1)),
        (
            {"error": f"{_NO_KERNEL}\nCUDA kernel errors might be reported later"},
            True,
            TorchFacts("2.13.0", "13.0", (2, 28, 9), 1, _NO_KERNEL),
        ),
        ({"error": "not asked for"}, False, TorchFacts("2.13.0", "13.0", (2, 28, 9), 1)),
        ({"cuda": None, "error": "without"}, True, TorchFacts("2.13.0", None, (2, 28, 9), 1)),
    ],
)
def test_a_gpu_is_computed_on_and_not_only_counted(installed, fields, compute, facts):
    installed(**fields)
    assert ask_torch(compute) == facts


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise ImportError('libcudart')", "ImportError: libcudart.*Install it anew"),
        ("import os; os.abort()", "exit code -6"),
        ("import time; time.sleep(60)", "has not answered after 0.5 s"),
    ],
)
def test_a_torch_that_does_not_answer_is_told(installed, source, words):
    installed(source)
    with pytest.raises(CommError, match=words):
        ask_torch(deadline=timedelta(seconds=0.5) if "sleep" in source else DEADLINE)


@pytest.mark.slow
def test_the_torch_that_is_here_answers():
    import torch

    ask_torch.cache_clear()
    facts = ask_torch(compute=True)
    assert facts[:2] == (torch.__version__, torch.version.cuda)
    assert (facts.num_gpus, facts.error) == (torch.cuda.device_count(), "")
