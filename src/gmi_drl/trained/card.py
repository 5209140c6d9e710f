"""Writes the folder that model hubs take: a card with its metadata, the policy, config, results."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import yaml

from gmi_drl import __version__

from .evaluation import FILE as EVALUATION
from .evaluation import Evaluation
from .filming import FILE as VIDEO
from .policy import TrainedPolicy


def write_card(policy: TrainedPolicy, file: Path, evaluation: Evaluation) -> Path:
    """Writes README.md, config.yaml, results.json and replay.mp4 beside an exported file.

    The film is there if the run has one. Returns the card; nothing is uploaded.
    """
    folder, run = file.parent, policy.origin.folder.path
    shutil.copyfile(run / "config.yaml", folder / "config.yaml")
    shutil.copyfile(run / EVALUATION, folder / "results.json")
    filmed = (run / VIDEO).is_file()
    if filmed:
        shutil.copyfile(run / VIDEO, folder / "replay.mp4")
    card = folder / "README.md"
    card.write_text(_card(policy, file.name, evaluation, filmed), encoding="utf-8")
    return card


def _card(policy: TrainedPolicy, file: str, evaluation: Evaluation, filmed: bool) -> str:
    origin = policy.origin
    algorithm, env_id = origin.config.algorithm.name, origin.env_id
    name = f"{algorithm}-{env_id.replace('/', '-').replace(':', '-')}"
    metadata = yaml.safe_dump(_metadata(algorithm, env_id, name, evaluation), sort_keys=False)
    spaces = {"observation": str(policy.observation_space), "action": str(policy.action_space)}
    film = "\n![The policy at work](replay.mp4)\n" if filmed else ""
    return f"""---
{metadata}---

# {algorithm.upper()} on {env_id}

Trained by gmi-drl {__version__} for {origin.steps:,} environment steps. Mean return of
{len(evaluation.returns)} episodes: {evaluation.mean:,.2f} ± {evaluation.std:,.2f}; interquartile
mean: {evaluation.iqm:,.2f}. All returns are in `results.json`, all settings in `config.yaml`.
{film}
{_use(policy, Path(file))}
What goes in and what comes out:

```json
{json.dumps(spaces, indent=1)}
```
"""


def _use(policy: TrainedPolicy, file: Path) -> str:
    """Returns how the file is used, or nothing where its suffix does not say what it is."""
    remembers = policy.module.state_columns > 0
    return _USE.get((file.suffix, remembers), _USE.get((file.suffix, False), "")).format(
        file=file.name, state=policy.module.state_columns
    )


def _metadata(algorithm: str, env_id: str, name: str, evaluation: Evaluation) -> dict[str, Any]:
    result = {
        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
        "dataset": {"name": env_id, "type": env_id},
        "metrics": [
            {
                "type": "mean_reward",
                "value": f"{evaluation.mean:.2f} +/- {evaluation.std:.2f}",
                "name": "mean_reward",
                "verified": False,
            }
        ],
    }
    return {
        "library_name": "gmi-drl",
        "tags": [env_id, "deep-reinforcement-learning", "reinforcement-learning", algorithm],
        "model-index": [{"name": name, "results": [result]}],
    }


_USE = {
    (".pt2", False): """```python
import torch

policy = torch.export.load("{file}").module()
action = policy(torch.zeros(1, ...))  # observations [B, ...]
```
""",
    (".pt2", True): """```python
import torch

policy = torch.export.load("{file}").module()
state = torch.zeros(1, {state})  # zero where an episode begins
action, state = policy(torch.zeros(1, ...), state)  # observations [B, ...]
```
""",
    (".onnx", True): """```python
import numpy
import onnxruntime

policy = onnxruntime.InferenceSession("{file}")
state = numpy.zeros((1, {state}), numpy.float32)  # zero where an episode begins
action, state = policy.run(None, {{"observation": ..., "state": state}})  # float32 [B, ...]
```
""",
    (".onnx", False): """```python
import onnxruntime

policy = onnxruntime.InferenceSession("{file}")
(action,) = policy.run(None, {{"observation": ...}})  # float32 [B, ...]
```
""",
    (".safetensors", False): """```python
from safetensors.torch import load_file

tensors = load_file("{file}")  # network.*, and observation.mean and .inv_std
```
""",
}
