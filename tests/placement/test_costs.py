"""Tables 3 to 5: the paper's four numbers, and what must hold for any workload."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmi_drl.placement import TEMPLATES
from gmi_drl.placement.costs import PAPER, Workload

TCG, TDG, TCG_EX, TDG_EX = (TEMPLATES[name].cost for name in ("tcg", "tdg", "tcg_ex", "tdg_ex"))
POSITIVE = st.floats(1e-3, 1e3)
WORKLOADS = st.builds(
    Workload, POSITIVE, POSITIVE, POSITIVE, POSITIVE, POSITIVE, POSITIVE,
    alpha=st.floats(0, 1), beta=st.floats(0, 1), state_bytes=POSITIVE, action_bytes=POSITIVE,
    reward_bytes=POSITIVE, policy_bytes=POSITIVE, m=st.integers(1, 64), bandwidth=POSITIVE,
)  # fmt: skip


def test_the_papers_constants_give_the_papers_numbers():
    # Rounded in the paper to 0.16 and 0.5, and to 2.5 and 5 times.
    assert TCG.penalty(TDG, PAPER) == pytest.approx(0.163, abs=5e-4)
    assert TCG_EX.penalty(TDG_EX, PAPER) == pytest.approx(0.466, abs=5e-4)
    assert TCG.ratio(TDG, PAPER) == pytest.approx(2.58, abs=5e-3)
    assert TCG_EX.ratio(TDG_EX, PAPER) == pytest.approx(5.46, abs=5e-3)


def test_bytes_are_those_of_tables_4_and_5():
    w = dataclasses.replace(
        PAPER, state_bytes=100, action_bytes=10, reward_bytes=1, policy_bytes=1000, m=3,
        bandwidth=50.0, tdg_com_s=None, tdg_ex_com_s=None,
    )  # fmt: skip
    assert TDG.com_bytes(w, 1) == 211
    assert TCG.com_bytes(w, 1) == 0
    assert TDG_EX.com_bytes(w, 4) == 333 + 1000 + 1500
    assert TCG_EX.com_bytes(w, 4) == 1500
    assert TDG.com_s(w) == 211 / 50


@given(WORKLOADS, st.integers(1, 64))
def test_roles_together_occupy_no_less_and_send_no_more_than_split(w, n):
    for together, split in ((TCG, TDG), (TCG_EX, TDG_EX)):
        assert together.penalty(split, w) >= -1e-9
        assert together.com_bytes(w, n) <= split.com_bytes(w, n)
