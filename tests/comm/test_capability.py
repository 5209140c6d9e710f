"""Which strategies can run on which hardware, and what is said of the others."""

import re

import pytest

from gmi_drl.comm import capability
from gmi_drl.comm.capability import LinkFacts, link_facts, why_not
from gmi_drl.comm.errors import CommError
from gmi_drl.comm.plan import facts_of
from gmi_drl.placement import Device, Topology, tcg_ex

CORES = LinkFacts("cpu")
TWO = LinkFacts("gpu", (2, 28, 9), False, (False, False), True)
ONE = TWO._replace(nccl=None, mig=(False,))
PAIRS, STACK = [[0, 1], [2, 3]], [[0, 1, 2]]


@pytest.mark.parametrize(
    ("strategy", "mpl", "facts", "words"),
    [
        ("mpr", PAIRS, TWO._replace(nccl=None, mig=(True, True)), None),
        ("mrr", PAIRS, CORES, None),
        ("mrr", PAIRS, TWO, None),
        ("har", [[0], [1, 2]], TWO, None),
        ("ipc", STACK, ONE, None),
        ("local", [[0]], ONE, None),
        ("local", PAIRS, CORES, "4 GMIs, which would drift apart; use mpr"),
        ("mrr", [[0], [1, 2]], TWO, r"numbers of GMIs \(1, 2\).*; use har"),
        ("mrr", PAIRS, TWO._replace(nccl=None), "no NCCL.*; use mpr.*built for CUDA"),
        ("har", PAIRS, TWO._replace(mig=(False, True)), "GPU 1 is cut into MIG.*NCCL 2.28.9"),
        ("ipc", STACK, ONE._replace(mig=(True,)), "GPU 0 is cut into MIG.*CUDA IPC.*MIG off"),
        ("ipc", STACK, ONE._replace(cupy=False), r"cupy is not installed; use pip install"),
        ("ipc", STACK, CORES, "there is no GPU"),
        ("ipc", PAIRS, TWO, "the GMIs are on 2 devices"),
        ("har", STACK, ONE, "all GMIs are on one device"),
    ],
)
def test_what_can_run_and_why_not(strategy, mpl, facts, words):
    found = why_not(strategy, mpl, facts)
    if words is None:
        assert found is None
    else:
        assert re.search(words, found)


@pytest.mark.parametrize(
    ("nccl", "asked", "words"),
    [
        ((2, 28, 9), True, "NCCL 2.28.9 refuses two ranks on one GPU"),
        ((2, 30, 3), False, "NCCL 2.30.3 refuses"),
        ((2, 30, 3), True, "as an experiment that can hang"),
    ],
)
def test_two_ends_of_rings_on_one_gpu(nccl, asked, words):
    facts = TWO._replace(nccl=nccl, multi_rank_opt_in=asked)
    assert words in why_not("mrr", [[0, 1, 2], [3, 4, 5]], facts)
    assert "NCCL" not in why_not("mrr", [[0, 1, 2], [3, 4, 5]], CORES)


def test_har_reduces_inside_a_gpu_where_its_memory_can_be_shared():
    assert TWO.inside == "ipc"
    assert TWO._replace(mig=(True, False)).inside == TWO._replace(cupy=False).inside == "host"
    assert CORES.inside == "host"


def gpus(mig, first=0):
    """Two of them; `mig`: which are cut."""
    return Topology(
        tuple(
            Device(first + place, "gpu", "H200", (), f"GPU-{place}", mig_mode=cut)
            for place, cut in enumerate(mig)
        )
    )


def test_facts_of_gpus_are_of_the_topology_and_of_torch(monkeypatch):
    monkeypatch.setattr(capability, "_nccl", lambda deadline: (2, 30, 3))
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    facts = link_facts(gpus([None, True]))
    assert facts.mig == (False, True)
    assert facts.several_ranks_a_gpu
    assert link_facts(gpus([False])).nccl is None  # nobody to ring with


def test_a_gpu_is_called_what_the_topology_calls_it():
    second = gpus([True], first=1)  # where the trainers are
    assert "GPU 1 is cut into MIG" in why_not("ipc", [[0, 1]], link_facts(second))


def test_a_gpu_that_a_layout_will_cut_counts_as_cut():
    found = [facts_of(tcg_ex(gpus([False]), 2, 8, backend)).mig for backend in ("mig", "mps")]
    assert found == [(True,), (False,)]


def test_cores_ask_nobody(monkeypatch):
    monkeypatch.setattr(capability, "_nccl", None)
    assert link_facts(Topology.from_cores([0, 1], 2)) == CORES


@pytest.mark.parametrize(
    ("code", "answer"),
    [("print('noise'); print('[2, 28, 9]')", (2, 28, 9)), ("print('null')", None)],
)
def test_nccl_is_asked_of_torch_in_another_process(monkeypatch, code, answer):
    monkeypatch.setattr(capability, "_ASK_NCCL", code)
    assert capability._nccl.__wrapped__(capability._DEADLINE) == answer


def test_a_torch_that_does_not_import_is_told(monkeypatch):
    monkeypatch.setattr(capability, "_ASK_NCCL", "raise ImportError('libcudart')")
    with pytest.raises(CommError, match=r"ImportError: libcudart.*Reinstall it"):
        capability._nccl.__wrapped__(capability._DEADLINE)


@pytest.mark.slow
def test_the_torch_that_is_here_answers():
    torch = pytest.importorskip("torch")
    here = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else None
    assert capability._nccl.__wrapped__(capability._DEADLINE) == here
