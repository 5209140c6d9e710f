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
import secrets
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from torch import Tensor, nn

from gmi_drl.placement import AlphaZeroConfig
from gmi_drl.placement.faults import install
from gmi_drl.roles.envs.spaces import action_columns, leaves

from .policy import PolicyFailed, PolicyModule, PolicyNotLoaded, TrainedPolicy

Format: TypeAlias = Literal["pt2", "onnx", "safetensors"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)
OBSERVATIONS: Final = 1000  # that a file is tried on
Examples: TypeAlias = tuple[Tensor, ...]  # observations [B, ...], and states [B, S] if there are


class ExportedPolicy(nn.Module):
    """Is a policy as it is written: observations and actions have their spaces' shapes.

    An observation is [B, *shape] of a Box, and the vector [B, D] that any other becomes (see
    docs/writing-a-role.md). An action is [B, *shape] of a Box, a MultiDiscrete or a MultiBinary,
    [B] of a Discrete, counted from the space's start; of Dict and Tuple the rows [B, A] of their
    parts, one behind the other, choices counted from 0. Numbers of an integer Box are whole.
    """

    whole: Tensor | None  # columns [A] of an action row that are an integer Box's

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
        whole = [
            isinstance(leaf, Box) and leaf.dtype is not None and leaf.dtype.kind in "iu"
            for _, leaf in leaves(space)
            for _ in range(action_columns(leaf))
        ]
        self.register_buffer("whole", torch.tensor(whole) if any(whole) else None, persistent=False)

    def forward(self, observation: Tensor) -> Tensor:
        rows = observation.reshape(observation.shape[0], -1)  # of numbers, too
        action, _ = self.policy(rows, rows.new_zeros(rows.shape[0], 0))
        return self._shaped(action)

    def _shaped(self, action: Tensor) -> Tensor:
        if self.whole is not None:
            action = torch.where(self.whole, action.round(), action)
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
        rows = observation.reshape(observation.shape[0], -1)
        action, next_state = self.policy(rows, state)
        return self._shaped(action), next_state


def export_policy(policy: TrainedPolicy, form: Format, file: Path) -> str:
    """Writes `file`, whole or not at all; returns what it was held against, in words.

    `policy` is one, of those of a run that has several. PolicyNotLoaded if packages are missing, if
    its name says another format, or if it does not act as the policy does.
    """
    searches = isinstance(policy.origin.config.algorithm, AlphaZeroConfig)
    if searches and form != "safetensors":
        raise PolicyNotLoaded(
            f"--format {form}: the policy of {policy.origin.folder.path} searches games, which is "
            "no function of tensors. Act by gmi_drl.load_policy(run), or take --format "
            "safetensors, which holds its network."
        )
    kind, suffix = _KINDS[form], file.suffix.lstrip(".")
    if suffix in FORMATS and suffix != form:
        raise PolicyNotLoaded(
            f"{file}: its name says {suffix}, and --format {form}. Give it another, or --format "
            f"{suffix}."
        )
    missing = [name for name in kind.needs if importlib.util.find_spec(name) is None]
    if missing:
        raise PolicyNotLoaded(
            f"--format {form}: not installed: {', '.join(missing)}. {install('export')}, or take "
            "--format pt2, which needs nothing."
        )
    module, examples = exported(policy), observed(policy)
    partial = file.with_name(f".{file.name}.{secrets.token_hex(4)}.part")
    try:
        with torch.no_grad():
            expected = _tuple(module(*examples))
        file.parent.mkdir(parents=True, exist_ok=True)
        with _quiet():
            outputs = kind.write(policy, module, examples, partial)
        gaps = [_distance(*pair) for pair in zip(expected, outputs, strict=True)]
        gap = float(np.max(gaps))  # NaN if any is, unlike Python's max
        if not gap <= kind.tolerance:  # NaN is not
            raise PolicyFailed(
                f"{file}: what was written acts otherwise than the policy, by up to {gap:g}, and "
                "was removed. Take another --format, and tell us of it."
            )
        os.replace(partial, file)
    except OSError as error:
        raise PolicyNotLoaded(
            f"{file} cannot be written ({error.strerror}). Give another path: -o FILE."
        ) from error
    except PolicyNotLoaded:
        raise
    except Exception as error:  # of torch's exporter or ONNX Runtime, which take not every module
        message = next(iter(str(error).strip().splitlines()), "")
        raise PolicyNotLoaded(
            f"--format {form}: the network of {policy.origin.folder.path} cannot be written so "
            f"({type(error).__name__}: {message}). Take another --format; safetensors holds its "
            "parameters whatever it does."
        ) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
    agreement = "equal, bit for bit," if gap == 0.0 else f"within {gap:.1e}"
    return f"{agreement} on {len(examples[0]):,} observations, by {kind.tried_by}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences the logs and warnings of torch's exporters; errors are still raised."""
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


def observed(policy: TrainedPolicy) -> Examples:
    """Returns observations [B, ...] that the policy meets, and the states [B, S] before them."""
    rows, states = policy.seen(OBSERVATIONS)
    space = policy.observation_space
    if isinstance(space, Box):
        rows = rows.reshape(-1, *space.shape)
    return (rows, states) if policy.module.state_columns else (rows,)


def _write_pt2(
    policy: TrainedPolicy, module: ExportedPolicy, examples: Examples, file: Path
) -> Examples:
    program = torch.export.export(module, _some(examples), dynamic_shapes=_any_number(examples))
    buffer = io.BytesIO()  # as torch wants its own suffix in the name of a file
    torch.export.save(program, buffer)
    file.write_bytes(buffer.getvalue())
    return _tuple(torch.export.load(io.BytesIO(file.read_bytes())).module()(*examples))


def _write_onnx(
    policy: TrainedPolicy, module: ExportedPolicy, examples: Examples, file: Path
) -> Examples:
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
    outputs = session.run(None, dict(zip(names, (t.numpy() for t in examples), strict=True)))
    return tuple(map(torch.from_numpy, outputs))


def _write_safetensors(
    policy: TrainedPolicy, module: ExportedPolicy, examples: Examples, file: Path
) -> Examples:
    from safetensors.torch import load_file, save_file

    tensors = {f"network.{n}": p.detach() for n, p in policy.module.network.named_parameters()}
    normalizer = policy.normalizer
    if normalizer is not None:
        tensors |= {"observation.mean": normalizer.mean, "observation.inv_std": normalizer.inv_std}
    metadata = {name: json.dumps(value) for name, value in policy.description.items()}
    save_file({n: t.contiguous().clone() for n, t in tensors.items()}, file, metadata)
    loaded, copied = load_file(file), copy.deepcopy(module)
    with torch.no_grad():
        for name, parameter in copied.policy.network.named_parameters():
            parameter.copy_(loaded[f"network.{name}"])
        return _tuple(copied(*examples))


@dataclass(frozen=True)
class _Kind:
    """Says how a kind of file is written; `write` returns the file's outputs for the examples."""

    write: Callable[[TrainedPolicy, ExportedPolicy, Examples, Path], Examples]
    needs: tuple[str, ...]  # packages
    tolerance: float  # of actions
    tried_by: str


_KINDS: Final[dict[Format, _Kind]] = {
    "pt2": _Kind(_write_pt2, (), 0.0, "torch"),
    "onnx": _Kind(_write_onnx, ("onnx", "onnxscript", "onnxruntime"), 1e-5, "ONNX Runtime"),
    "safetensors": _Kind(_write_safetensors, ("safetensors",), 0.0, "torch, from the file"),
}


def _distance(expected: Tensor, actual: Tensor) -> float:
    return float((expected.detach().double() - actual.detach().double()).abs().max())


def _some(examples: Examples) -> Examples:
    return tuple(tensor[:2] for tensor in examples)


def _any_number(examples: Examples) -> tuple[dict[int, Any], ...]:
    """Says that the first axis of every input is as long as it is."""
    batch = torch.export.Dim("batch")
    return tuple({0: batch} for _ in examples)


def _tuple(value: Any) -> Examples:
    return value if isinstance(value, tuple) else (value,)
