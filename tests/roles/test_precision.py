"""What bf16 costs in accuracy, and that the config alone decides on TF32."""

import subprocess
import sys

import pytest
import torch

from batches import row_layout_of
from gmi_drl.placement import PPOConfig
from gmi_drl.roles.algorithms.ppo import ppo_loss
from gmi_drl.roles.policies.actor_critic import ActorCritic
from gmi_drl.roles.policies.distributions import Normal
from gmi_drl.roles.policies.trunk import set_matmul_precision

OBS, ROWS = 24, 512
CPU, GPU = torch.device("cpu"), torch.device("cuda")


def a_policy(precision):
    generator = torch.Generator().manual_seed(0)
    policy = ActorCritic(OBS, Normal(6), [64, 64], "elu", -0.5, generator, precision)
    with torch.no_grad():
        policy.head.weight.normal_(0, 0.3, generator=generator)
    return policy


def gradient_of(policy):
    """Loss parts and gradient on rows that a policy of fp32 had sampled."""
    g, row_layout = torch.Generator().manual_seed(1), row_layout_of(OBS, Normal(6))
    rows = torch.randn(ROWS, row_layout.width, generator=g)
    sampler, dist = a_policy("fp32"), policy.distribution
    with torch.no_grad():
        rows[:, row_layout.head] = sampler(rows[:, row_layout.observation])
        noise = torch.randn(ROWS, 6, generator=g) * sampler.log_std.exp()
        rows[:, row_layout.action] = rows[:, row_layout.parameters] + noise
        rows[:, row_layout.log_prob] = dist.log_prob(
            rows[:, row_layout.parameters], sampler.log_std, rows[:, row_layout.action]
        )
    parts = ppo_loss(policy, rows, row_layout, sampler.log_std.detach(), PPOConfig())
    parts.total.backward()
    return parts, torch.cat([p.grad.flatten() for _, p in sorted(policy.named_parameters())])


def test_bf16_is_near_fp32_and_keeps_everything_else_in_fp32():
    (exact, gradient), (rounded, its) = (gradient_of(a_policy(p)) for p in ("fp32", "bf16"))
    assert its.dtype == rounded.total.dtype == torch.float32
    assert rounded.total.item() != exact.total.item()  # it is not fp32 under another name
    assert rounded.total.item() == pytest.approx(exact.total.item(), rel=1e-2)
    assert rounded.stats["kl"].item() < 1e-3  # what rounding alone looks like to the KL schedule
    # bfloat16 keeps 8 bits: 0.4 % a product, in each of two layers, there and back.
    assert torch.linalg.vector_norm(its - gradient) < 0.02 * torch.linalg.vector_norm(gradient)
    assert all(p.dtype == torch.float32 for p in a_policy("bf16").parameters())


def test_tf32_on_the_cpu_computes_as_fp32():
    try:
        set_matmul_precision("tf32", CPU)
        assert torch.get_float32_matmul_precision() == "highest"
        exact, rounded = (a_policy(p)(torch.ones(4, OBS)) for p in ("fp32", "tf32"))
        assert torch.equal(exact, rounded)
        set_matmul_precision("tf32", GPU)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        set_matmul_precision("fp32", CPU)


_SHOW = """
import torch
from gmi_drl.roles.policies.trunk import set_matmul_precision
before = torch.backends.cuda.matmul.fp32_precision
set_matmul_precision("fp32", torch.device("cuda"))
print(before, torch.backends.cuda.matmul.fp32_precision, torch.backends.cuda.matmul.allow_tf32)
"""


def test_fp32_is_fp32_whatever_the_environment_says():
    done = subprocess.run(
        [sys.executable, "-c", _SHOW], capture_output=True, text=True, timeout=60, check=True,
        env={"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1", "PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    assert done.stdout.split() == ["tf32", "ieee", "False"]
