"""Checks, by name, that what a role's own `make_policy` has made is a policy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from gymnasium import spaces
from torch import nn

from gmi_drl.roles.envs.spaces import action_columns
from gmi_drl.roles.errors import PolicyError

from .distributions import Distribution

_METHODS: Final = ("noise", "sample", "mode", "log_prob", "entropy", "kl")
_COUNTS: Final = ("parameters", "action_columns", "noise_columns")
_ROWS: Final = 2  # observations that it is tried with


def check_policy(
    policy: Any, maker: str, observation_width: int, action: spaces.Space[Any]
) -> None:
    """Raises PolicyError with everything that `policy` lacks; `maker` names what made it.

    Its `forward` is called once, with zeros.
    """
    if faults := list(_faults(policy, observation_width, action)):
        base = "gmi_drl.roles.policies.ActorCritic"
        raise PolicyError(maker, type(policy).__name__, faults, base)


def _faults(policy: Any, width: int, action: spaces.Space[Any]) -> Iterator[str]:
    if not isinstance(policy, nn.Module):
        yield "it is no torch.nn.Module"
        return
    if dtypes := {str(p.dtype) for p in policy.parameters() if p.dtype != torch.float32}:
        yield f"its parameters are {', '.join(sorted(dtypes))}; must be torch.float32"
    if not callable(getattr(policy, "map_value", None)):
        yield "it has no map_value(scale, shift), which makes its value scale * value + shift"
    log_std = getattr(policy, "log_std", None)
    if not isinstance(log_std, torch.Tensor):
        yield "it has no log_std, a parameter of a number for each action (none for Discrete)"
    distribution = getattr(policy, "distribution", None)
    missing = [name for name in _METHODS if not callable(getattr(distribution, name, None))]
    missing += [name for name in _COUNTS if not isinstance(getattr(distribution, name, None), int)]
    if distribution is None or missing:
        fault = "it has no distribution" if distribution is None else "its distribution has no "
        yield f"{fault}{', '.join(missing) if distribution is not None else ''} (give it what " \
            "gmi_drl.roles.policies.distribution_for(env.action_space) makes)"  # fmt: skip
        return
    columns = action_columns(action)
    if distribution.action_columns != columns:
        yield (
            f"its distribution has {distribution.action_columns} action columns, and the action "
            f"space {action} takes {columns}"
        )
    if isinstance(log_std, torch.Tensor) and isinstance(distribution, Distribution):
        numbers = distribution.deviations
        if log_std.shape != (numbers,):
            yield f"its log_std has shape {list(log_std.shape)}; must be [{numbers}]"
    means = "distribution.parameters and then the value"
    yield from forward_faults(policy, width, distribution.parameters + 1, means)


def forward_faults(policy: nn.Module, width: int, columns: int, means: str) -> Iterator[str]:
    """Gives what is wrong with a network's `forward`, whose `columns` columns are `means`."""
    device = next((p.device for p in policy.parameters()), torch.device("cpu"))
    call = f"forward of observations [{_ROWS}, {width}]"
    rule = f"must give float32 [{_ROWS}, {columns}], {means}"
    try:
        with torch.no_grad():
            output = policy(torch.zeros(_ROWS, width, device=device))
    except Exception as error:  # whatever someone's network raises
        yield f"{call} raised {type(error).__name__}: {error}; it {rule}"
        return
    if not isinstance(output, torch.Tensor):
        yield f"{call} gives a {type(output).__name__}; it {rule}"
    elif output.shape != (_ROWS, columns) or output.dtype != torch.float32:
        dtype = str(output.dtype).removeprefix("torch.")
        yield f"{call} gives {dtype} {list(output.shape)}; it {rule}"
