"""V-trace against the sum that defines it, against numbers worked by hand, and on-policy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gmi_drl.roles.returns import gae, vtrace


def by_definition(log_rhos, discounts, rewards, values, last, rho_clip, c_clip, lam):
    """Espeholt et al. 2018, eq. 1, as the double sum it is printed as; [T] float64."""
    steps = len(rewards)
    following = np.append(values[1:], last)
    ratio = np.exp(log_rhos)
    rho, c = np.minimum(rho_clip, ratio), lam * np.minimum(c_clip, ratio)
    delta = rho * (rewards + discounts * following - values)
    vs = values.copy()
    for s in range(steps):
        for t in range(s, steps):
            vs[s] += np.prod(discounts[s:t] * c[s:t]) * delta[t]
    return vs, rho, following


@st.composite
def segments(draw):
    steps, width = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    g = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (steps, width)
    discounts = draw(st.sampled_from([0.0, 0.9, 1.0])) * (g.random(shape) > 0.2)
    log_rhos = draw(st.sampled_from([0.0, 0.3, 3.0])) * g.standard_normal(shape)
    arrays = log_rhos, discounts, g.normal(size=shape), g.normal(size=shape), g.normal(size=width)
    return [torch.tensor(a, dtype=torch.float32) for a in arrays]


truncation = st.sampled_from([0.3, 1.0, 1.7])


@given(segments(), truncation, truncation, st.sampled_from([0.0, 0.5, 1.0]))
def test_vtrace_is_the_sum_that_defines_it(segment, rho_clip, c_clip, lam):
    found_vs, found_advantages = vtrace(*segment, rho_clip, c_clip, lam)
    for b in range(segment[0].shape[1]):
        column = [s[..., b].numpy().astype(np.float64) for s in segment]
        vs, rho, following = by_definition(*column, rho_clip, c_clip, lam)
        np.testing.assert_allclose(found_vs[:, b], vs, rtol=2e-4, atol=2e-4)
        ahead = np.append(lam * vs[1:] + (1 - lam) * following[:-1], following[-1])
        wanted = rho * (column[2] + column[1] * ahead - column[3])
        np.testing.assert_allclose(found_advantages[:, b], wanted, rtol=2e-4, atol=2e-4)


def test_a_case_worked_by_hand():
    # gamma 0.5; ratios 2 and 0.5. rho = 1, 0.5 and c = 1, 0.5.
    # delta_0 = 1 (1 + 0.5 * 2 - 1) = 1;  delta_1 = 0.5 (4 + 0.5 * 6 - 2) = 2.5
    # v_1 = 2 + 2.5 = 4.5;  v_0 = 1 + 1 + 0.5 * 1 * (4.5 - 2) = 3.25
    # advantages: 1 (1 + 0.5 * 4.5 - 1) = 2.25;  0.5 (4 + 0.5 * 6 - 2) = 2.5
    column = [torch.tensor(x)[:, None] for x in ([2.0, 0.5], [0.5, 0.5], [1.0, 4.0], [1.0, 2.0])]
    found_vs, found_advantages = vtrace(column[0].log(), *column[1:], torch.tensor([6.0]))
    assert found_vs[:, 0].tolist() == [3.25, 4.5]
    assert found_advantages[:, 0].tolist() == [2.25, 2.5]


@given(segments(), st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_on_policy_it_is_generalised_advantage_estimation(segment, lam):
    log_rhos, discounts, rewards, values, last = segment
    gamma = float(discounts.max())
    done = (discounts == 0).float()
    advantage = gae(rewards, values, done, last, gamma, lam, torch.empty_like(rewards))
    found_vs, found_advantages = vtrace(torch.zeros_like(log_rhos), *segment[1:], 1.0, 1.0, lam)
    torch.testing.assert_close(found_advantages, advantage, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found_vs, advantage + values, rtol=1e-4, atol=1e-4)


def test_nothing_passes_the_end_of_an_episode():
    segment = [torch.randn(6, 3) for _ in range(4)] + [torch.randn(3)]
    segment[1] = torch.full((6, 3), 0.9)
    segment[1][2] = 0.0
    before, _ = vtrace(*segment)
    for part in segment:
        part[-3:] += 100.0
    assert torch.equal(vtrace(*segment[:4], segment[4])[0][:3], before[:3])


def test_actions_the_policy_would_never_take_teach_nothing():
    segment = [torch.full((4, 2), -1e4), *(torch.rand(4, 2) for _ in range(3)), torch.rand(2)]
    found_vs, found_advantages = vtrace(*segment)
    assert torch.equal(found_vs, segment[3])
    assert not found_advantages.any()


@pytest.mark.parametrize("steps", [1, 5])
def test_ratios_beyond_any_number_are_truncated_too(steps):
    segment = [torch.full((steps, 2), 1e4), *(torch.rand(steps, 2) for _ in range(3))]
    assert torch.isfinite(vtrace(*segment, torch.rand(2))[0]).all()


def test_no_gradient_flows_and_no_argument_is_written():
    values = torch.rand(4, 2, requires_grad=True)
    others = [torch.rand(4, 2) for _ in range(3)]
    copies = [x.clone() for x in others]
    found_vs, found_advantages = vtrace(*others, values, torch.rand(2))
    assert not found_vs.requires_grad
    assert not found_advantages.requires_grad
    assert all(torch.equal(a, b) for a, b in zip(others, copies, strict=True))
