"""Writes the policy of a run as a file that other programs run, and tries that file first.

    pt2           torch.export: torch.export.load(file).module()(observation)
    onnx          for ONNX Runtime and what reads ONNX
    safetensors   the parameters and the normaliser's numbers alone

The function in pt2 and onnx is `action = f(observation)`, or `action, state = f(observation,
state)` for a policy that remembers. The observation's normaliser and the action's bounds are in it.
B = observations at once, any number of them.
"""

from __future__ import annotations

import copy
import importlib.util
import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from torch import Tensor, nn

from gmi_drl.launcher.plan.planning import importable

from .policy import PolicyModule, PolicyNotLoaded, TrainedPolicy

Format: TypeAlias = Literal["pt2", "onnx", "safetensors"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)
OBSERVATIONS: Final = 1000  # that a file is tried on
_AT_ONCE: Final = 8
_NEEDS: Final[dict[Format, tuple[str, ...]]] = {
    "pt2": (),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "safetensors": ("safetensors",),
}
_TOLERANCE: Final = 1e-5  # of actions by ONNX Runtime; torch's own file gives the same bits


class ExportedPolicy(nn.Module):
    """Is a policy as it is written: observations and actions have their spaces' shapes.

    An observation is [B, *shape] of a Box, and the vector [B, D] that any other becomes (see
    docs/writing-a-role.md). An action is [B, *shape] of a Box, a MultiDiscrete or a MultiBinary,
    [B] of a Discrete, counted from the space's start; of Dict and Tuple the rows [B, A] of their
    parts, one behind the other, choices counted from 0.
    """

    def __init__(self, policy: TrainedPolicy) -> None:
        super().__init__()
        self.policy: PolicyModule = policy.module
        space = policy.action_space
        self._kind, self._start, self._shape = type(space), 0, tuple(space.shape or ())
        if isinstance(space, Discrete):
            self._start = int(space.start)
        self.register_buffer("starts", None, persistent=False)
        if isinstance(space, MultiDiscrete):
            self.starts = torch.as_tensor(space.start)

    def forward(self, observation: Tensor) -> Tensor:
        rows = observation.flatten(1)
        action, _ = self.policy(rows, rows.new_zeros(rows.shape[0], 0))
        return self._shaped(action)

    def _shaped(self, action: Tensor) -> Tensor:
        if self._kind is Discrete:
            return action + self._start
        if self._kind is Box:
            return action.reshape(-1, *self._shape)
        if self._kind is MultiDiscrete:
            return action.long().reshape(-1, *self._shape) + self.starts
        if self._kind is MultiBinary:
            return action.long().reshape(-1, *self._shape)
        return action


class ExportedRecurrentPolicy(ExportedPolicy):
    """Is one that remembers: the state [B, S] goes in and comes out; zero begins an episode."""

    def forward(self, observation: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        action, after = self.policy(observation.flatten(1), state)
        return self._shaped(action), after


def export_policy(policy: TrainedPolicy, form: Format, file: Path) -> str:
    """Writes `file`, whole or not at all; returns what it was held against, in words.

    PolicyNotLoaded if packages are missing, or if the file does not act as the policy does.
    """
    missing = [name for name in _NEEDS[form] if importlib.util.find_spec(name) is None]
    if missing:
        raise PolicyNotLoaded(
            f"--format {form}: not installed: {', '.join(missing)}. pip install "
            "'gmi-drl[export]', or take --format pt2, which needs nothing."
        )
    module = exported(policy)
    examples = observed(policy)
    with torch.no_grad():
        expected = module(*examples)
    partial = file.with_name(f".{file.name}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with _quiet():
            said = _WRITERS[form](policy, module, examples, expected, partial)
        os.replace(partial, file)
    except OSError as error:
        raise PolicyNotLoaded(
            f"{file} cannot be written ({error.strerror}). Give another path: -o FILE."
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    return said


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the exporters of torch from telling of their own insides; what fails still raises."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def exported(policy: TrainedPolicy) -> ExportedPolicy:
    """Returns the function that a file holds."""
    remembers = policy.module.state_columns > 0
    return (ExportedRecurrentPolicy if remembers else ExportedPolicy)(policy).eval()


@torch.no_grad()
def observed(policy: TrainedPolicy) -> tuple[Tensor, ...]:
    """Returns observations [B, ...] that the policy meets, and the states [B, S] before them."""
    seen, states = [], []
    with importable(policy.origin.import_path), closing(policy.make_env(_AT_ONCE)) as env:
        observation = env.reset()
        state = torch.zeros(_AT_ONCE, policy.module.state_columns)
        for _ in range(-(-OBSERVATIONS // _AT_ONCE)):
            seen.append(observation.clone())
            states.append(state)
            action, state = policy.module(observation, state)
            step = env.step(action)
            began = step.terminated | step.truncated
            state = state.masked_fill(began[:, None], 0.0)
            observation = step.observation
    space = policy.observation_space
    shape = space.shape if isinstance(space, Box) else None
    rows = torch.cat(seen)[:OBSERVATIONS]
    rows = rows if shape is None else rows.reshape(-1, *shape)
    remembered = (torch.cat(states)[:OBSERVATIONS],) if policy.module.state_columns else ()
    return (rows, *remembered)


def _write_pt2(
    policy: TrainedPolicy,
    module: nn.Module,
    examples: tuple[Tensor, ...],
    expected: Any,
    file: Path,
) -> str:
    program = torch.export.export(module, _some(examples), dynamic_shapes=_any_number(examples))
    buffer = io.BytesIO()  # as torch wants its own suffix in the name of a file
    torch.export.save(program, buffer)
    file.write_bytes(buffer.getvalue())
    given = torch.export.load(io.BytesIO(file.read_bytes())).module()(*examples)
    for mine, its in zip(_tuple(expected), _tuple(given), strict=True):
        if not torch.equal(mine, its):
            raise _differs(file, float((mine - its).abs().max()))
    return f"equal, bit for bit, on {len(examples[0]):,} observations"


def _write_onnx(
    policy: TrainedPolicy,
    module: nn.Module,
    examples: tuple[Tensor, ...],
    expected: Any,
    file: Path,
) -> str:
    import onnxruntime  # type: ignore[import-untyped]

    names = ["observation", "state"][: len(examples)]
    torch.onnx.export(
        module,
        _some(examples),
        file,
        dynamo=True,
        external_data=False,
        verbose=False,
        input_names=names,
        output_names=["action", "next_state"][: len(examples)],
        dynamic_shapes=_any_number(examples),
    )
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    given = session.run(None, dict(zip(names, (one.numpy() for one in examples), strict=True)))
    most = 0.0
    for mine, its in zip(_tuple(expected), given, strict=True):
        most = max(most, float(np.abs(mine.numpy().astype(np.float64) - its).max()))
    if most > _TOLERANCE:
        raise _differs(file, most)
    return f"within {most:.1e} on {len(examples[0]):,} observations, by ONNX Runtime"


def _write_safetensors(
    policy: TrainedPolicy,
    module: nn.Module,
    examples: tuple[Tensor, ...],
    expected: Any,
    file: Path,
) -> str:
    from safetensors.torch import load_file, save_file

    tensors = {f"network.{n}": p.detach() for n, p in policy.module.network.named_parameters()}
    normalizer = policy.normalizer
    if normalizer is not None:
        tensors |= {"observation.mean": normalizer.mean, "observation.inv_std": normalizer.inv_std}
    metadata = {name: json.dumps(value) for name, value in policy.description.items()}
    save_file({n: t.contiguous().clone() for n, t in tensors.items()}, file, metadata)
    read, other = load_file(file), copy.deepcopy(module)
    with torch.no_grad():
        for name, parameter in other.policy.network.named_parameters():  # type: ignore[union-attr]
            parameter.fill_(torch.nan)
            parameter.copy_(read[f"network.{name}"])
        given = other(*examples)
    if not all(map(torch.equal, _tuple(expected), _tuple(given))):
        raise _differs(file, float("nan"))
    return f"read again, and equal on {len(examples[0]):,} observations"


_WRITERS: Final[dict[Format, Callable[..., str]]] = {
    "pt2": _write_pt2,
    "onnx": _write_onnx,
    "safetensors": _write_safetensors,
}


def _some(examples: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(one[:2] for one in examples)


def _any_number(examples: tuple[Tensor, ...]) -> tuple[dict[int, Any], ...]:
    """Says that the first axis of every input is as long as it is."""
    batch = torch.export.Dim("batch")
    return tuple({0: batch} for _ in examples)


def _tuple(value: Any) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def _differs(file: Path, most: float) -> PolicyNotLoaded:
    return PolicyNotLoaded(
        f"{file}: what was written acts otherwise than the policy, by up to {most:g}, and was "
        "removed. Take another --format, and tell us of it."
    )
