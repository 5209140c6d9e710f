"""Writes the folder that model hubs take: a card with metadata, policy, config, results, film."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import yaml

from gmi_drl import __version__
from gmi_drl.launcher.folder.run_folder import LAYOUT
from gmi_drl.placement.config.yaml_text import read_yaml, write_yaml

from .evaluation import Evaluation
from .exporting import Format
from .filming import record_video
from .policy import PolicyNotLoaded, TrainedPolicy

_CARD: Final = "README.md"
_FILM: Final = "replay.mp4"
_FILES: Final = (_CARD, "config.yaml", LAYOUT, "results.json", _FILM)
_OURS: Final = "library_name: gmi-drl"  # a line of every card


def refuse_other_files(file: Path) -> None:
    """Raises PolicyNotLoaded where a card beside `file` would replace what is no card's."""
    folder = file.parent
    taken = [name for name in _FILES if (folder / name).exists()]
    card = folder / _CARD
    is_card = card.is_file() and _OURS in card.read_text("utf-8", errors="replace").splitlines()
    if file.name in _FILES or (taken and not is_card):
        raise PolicyNotLoaded(
            f"{file}: --card writes {', '.join(_FILES)} beside it, and {folder} has "
            f"{', '.join(taken) or 'one of these names for the policy'} already. Give a path in a "
            "folder of its own: -o FILE."
        )


def write_card(
    policy: TrainedPolicy,
    file: Path,
    form: Format,
    evaluation: Evaluation,
    *,
    overrides: Iterable[str] = (),
    progress: Callable[[str], None] | None = None,
) -> Path:
    """Writes README.md, config.yaml, results.json and replay.mp4 beside an exported file.

    And layout.yaml, if the run's config names it.

    `overrides` and `progress` are for the film, of one episode; where none can be made, a warning
    says why. Returns the card; nothing is uploaded.
    """
    folder, run = file.parent, policy.origin.folder.path
    config = run / "config.yaml"
    settings, _, _ = read_yaml(config.read_text(encoding="utf-8"), str(config))
    settings["run"].pop("folder", None)  # others are not told where it lies here
    (folder / "config.yaml").write_text(write_yaml(settings), encoding="utf-8")
    (folder / LAYOUT).unlink(missing_ok=True)  # of another card
    if (run / LAYOUT).is_file():
        shutil.copyfile(run / LAYOUT, folder / LAYOUT)
    results = evaluation.as_json() | {"run": "/".join(run.parts[-2:])}
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    film, filmed = folder / _FILM, True
    try:
        record_video(policy.origin.checkpoint, file=film, overrides=overrides, progress=progress)
    except PolicyNotLoaded as error:
        filmed = False
        film.unlink(missing_ok=True)  # of another card
        warnings.warn(f"the card has no film: {error}", stacklevel=2)
    card = folder / _CARD
    usage = _usage(policy, file.name, form)
    card.write_text(_card(policy, usage, evaluation, filmed), encoding="utf-8")
    return card


def _card(policy: TrainedPolicy, usage: str, evaluation: Evaluation, filmed: bool) -> str:
    origin = policy.origin
    algorithm, env_id = origin.config.algorithm.name, origin.env_id
    name = f"{algorithm}-{env_id.replace('/', '-').replace(':', '-')}"
    metadata = yaml.safe_dump(_metadata(algorithm, env_id, name, evaluation), sort_keys=False)
    spaces = {"observation": str(policy.observation_space), "action": str(policy.action_space)}
    film = f"\n![The policy at work]({_FILM})\n" if filmed else ""
    return f"""---
{metadata}---

# {algorithm.upper()} on {env_id}

Trained by gmi-drl {__version__} for {origin.steps:,} environment steps. Mean return of
{len(evaluation.returns)} episodes: {evaluation.mean:,.2f} ± {evaluation.std:,.2f}; interquartile
mean: {evaluation.iqm:,.2f}. All returns are in `results.json`, all settings in `config.yaml`.
{film}
{usage}
What goes in and what comes out:

```json
{json.dumps(spaces, indent=1)}
```
"""


def _usage(policy: TrainedPolicy, file: str, form: Format) -> str:
    """Returns how the file is used."""
    columns = policy.module.state_columns
    template = _USAGES.get((form, columns > 0)) or _USAGES[form, False]
    return template.format(file=file, state=columns)


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


_USAGES: Final[dict[tuple[Format, bool], str]] = {  # by format, and whether it remembers
    ("pt2", False): """```python
import torch

policy = torch.export.load("{file}").module()
action = policy(torch.zeros(1, ...))  # observations [B, ...]
```
""",
    ("pt2", True): """```python
import torch

policy = torch.export.load("{file}").module()
state = torch.zeros(1, {state})  # zero where an episode begins
action, state = policy(torch.zeros(1, ...), state)  # observations [B, ...]
```
""",
    ("onnx", True): """```python
import numpy
import onnxruntime

policy = onnxruntime.InferenceSession("{file}")
state = numpy.zeros((1, {state}), numpy.float32)  # zero where an episode begins
action, state = policy.run(None, {{"observation": ..., "state": state}})  # float32 [B, ...]
```
""",
    ("onnx", False): """```python
import onnxruntime

policy = onnxruntime.InferenceSession("{file}")
(action,) = policy.run(None, {{"observation": ...}})  # float32 [B, ...]
```
""",
    ("safetensors", False): """```python
from safetensors.torch import load_file

tensors = load_file("{file}")  # network.*, and observation.mean and .inv_std
```
""",
}
