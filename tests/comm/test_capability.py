"""Which strategies can run on which hardware, and what is said of the others."""

import re

import pytest

from gmi_drl.comm.plan import capability
from gmi_drl.comm.plan.capability import LinkFacts, link_facts, why_not
from gmi_drl.comm.plan.plan import facts_of
from gmi_drl.comm.plan.torch_facts import TorchFacts
from gmi_drl.placement import Device, Topology, tcg_ex

CORES = LinkFacts("cpu")
TWO = LinkFacts("gpu", (2, 28, 9), (False, False), True)
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


def test_two_ends_of_rings_on_one_gpu():
    three = [[0, 1, 2], [3, 4, 5]]
    assert "NCCL refuses two ranks on one GPU (2.30.3 and later take" in why_not("mrr", three, TWO)
    assert "NCCL" not in why_not("mrr", three, CORES)


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
    torch = TorchFacts("2.13.0", "13.0", (2, 30, 3), 2)
    monkeypatch.setattr(capability, "ask_torch", lambda: torch)
    facts = link_facts(gpus([None, True]))
    assert (facts.mig, facts.nccl) == ((False, True), (2, 30, 3))
    assert link_facts(gpus([False])).nccl is None  # nobody to ring with


def test_a_gpu_is_called_what_the_topology_calls_it():
    second = gpus([True], first=1)  # where the trainers are
    assert "GPU 1 is cut into MIG" in why_not("ipc", [[0, 1]], link_facts(second))


def test_a_gpu_that_a_layout_will_cut_counts_as_cut():
    found = [facts_of(tcg_ex(gpus([False]), 2, 8, backend)).mig for backend in ("mig", "mps")]
    assert found == [(True,), (False,)]


def test_cores_ask_nobody(monkeypatch):
    monkeypatch.setattr(capability, "ask_torch", None)
    assert link_facts(Topology.from_cores([0, 1], 2)) == CORES
