"""Tables 3 to 5: the paper's four numbers, and what must hold for any workload."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gmi_drl.placement import costs
from gmi_drl.placement.costs import PAPER, Need, Workload

POSITIVE = st.floats(1e-3, 1e3)
NEED = st.builds(Need, POSITIVE, POSITIVE)
WORKLOADS = st.builds(
    Workload, POSITIVE, POSITIVE, POSITIVE, POSITIVE, POSITIVE, POSITIVE,
    alpha=st.floats(0, 1), beta=st.floats(0, 1), state_bytes=POSITIVE, action_bytes=POSITIVE,
    reward_bytes=POSITIVE, policy_bytes=POSITIVE, m=st.integers(1, 64), bandwidth=POSITIVE,
)  # fmt: skip


def test_the_papers_constants_give_the_papers_numbers():
    # Rounded in the paper to 0.16 and 0.5, and to 2.5 and 5 times.
    assert costs.penalty("tcg", "tdg", PAPER) == pytest.approx(0.163, abs=5e-4)
    assert costs.penalty("tcg_ex", "tdg_ex", PAPER) == pytest.approx(0.466, abs=5e-4)
    assert costs.ratio("tcg", "tdg", PAPER) == pytest.approx(2.58, abs=5e-3)
    assert costs.ratio("tcg_ex", "tdg_ex", PAPER) == pytest.approx(5.46, abs=5e-3)


def test_bytes_are_those_of_tables_4_and_5():
    w = dataclasses.replace(
        PAPER, state_bytes=100, action_bytes=10, reward_bytes=1, policy_bytes=1000, m=3,
        bandwidth=50.0, tdg_com_s=None, tdg_ex_com_s=None,
    )  # fmt: skip
    assert costs.com_bytes("tdg", w) == 211
    assert costs.com_bytes("tcg", w) == 0
    assert costs.com_bytes("tdg_ex", w, 4) == 333 + 1000 + 1500
    assert costs.com_bytes("tcg_ex", w, 4) == 1500
    assert costs.com_s("tdg", w) == 211 / 50
    with pytest.raises(ValueError, match="tdg, tdg_ex, tcg, tcg_ex"):
        costs.com_bytes("decoupled", w)
    with pytest.raises(ValueError, match="n=0"):
        costs.com_bytes("tcg_ex", w, 0)


@settings(deadline=None)
@given(WORKLOADS, st.integers(1, 64))
def test_roles_together_occupy_no_less_and_send_no_more_than_split(w, n):
    for together, split in (("tcg", "tdg"), ("tcg_ex", "tdg_ex")):
        assert costs.penalty(together, split, w) >= -1e-9
        assert costs.com_bytes(together, w, n) <= costs.com_bytes(split, w, n)


@settings(deadline=None)
@given(
    st.sampled_from(costs.TABLES), WORKLOADS, st.tuples(NEED, NEED, NEED), POSITIVE, POSITIVE,
    st.floats(1, 10), st.floats(1, 10),
)  # fmt: skip
def test_more_sms_and_more_memory_never_project_slower(template, w, needs, sms, memory, up, wider):
    before, _ = costs.project(template, w, needs, sms, memory)
    after, _ = costs.project(template, w, needs, up * sms, wider * memory)
    assert after >= before * (1 - 1e-9)
    assert costs.project(template, w, needs, sms, memory, 2)[0] == pytest.approx(2 * before)


def test_what_runs_out_first_limits():
    needs = (Need(10, 1), Need(1, 1), Need(2, 8))
    assert costs.project("tcg_ex", PAPER, needs, 100, 1000)[1] == "SM"
    assert costs.project("tcg_ex", PAPER, needs, 1000, 100)[1] == "memory"
