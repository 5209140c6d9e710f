"""How many threads torch has, and a runtime for evaluators that are actors."""

import gc

import pytest
import torch

from gmi_drl import runtime
from gmi_drl.launcher.start.preload import PRELOAD


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def _begin():
    runtime.init((*PRELOAD, "gmi_drl.rl"))


@pytest.fixture(scope="module")
def _rl_runtime():
    _begin()
    yield
    runtime.shutdown()


@pytest.fixture
def rl_runtime(_rl_runtime):
    """A runtime, one for all tests of a file: importing torch takes seconds.

    Evaluators end with their handles, and so with the test.
    """
    if not runtime.is_initialized():  # a test before this one has ended it
        _begin()
    yield
    gc.collect()
