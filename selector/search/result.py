"""What comes of a search: the best config, written so that it launches, and what is told of it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gmi_drl.placement import Config, counted
from gmi_drl.placement.config.yaml_text import write_yaml
from gmi_drl.runtime.cache_files import replace_file
from gmi_drl.selector.plots.search_picture import draw_search
from gmi_drl.selector.record.search_folder import SearchFolder
from gmi_drl.selector.record.search_record import SearchError, key_of, seconds_of

from .ranges import applied
from .stint import Key

_SCHEDULE: Final = "# These are the values it ended with; search.png shows those that led there.\n"


@dataclass(frozen=True)
class SearchResult:
    """How a search ended."""

    folder: Path
    best_config: Path  # launches as it is, with the best values
    values: dict[str, Any]  # the best, by key; of PBT those that the best member ended with
    return_mean: float | None  # of the last 100 episodes of the best stint
    steps: int  # that it had trained
    checkpoint: Path  # its policy, for run.policy
    seconds: float  # of all searching, those before a resume included
    lines: list[dict[str, Any]]  # of the record: every stint that ended or failed
    picture: Path | None
    resumed: bool  # an earlier search of this config was gone on with
    recalled: bool  # it was done already

    @property
    def failed(self) -> int:
        """Stints that failed."""
        return sum(line["kind"] == "failed" for line in self.lines)


def result_of(
    config: Config,
    source: Path | None,
    folder: SearchFolder,
    lines: list[dict[str, Any]],
    best: Key | None,
    *,
    resumed: bool,
    recalled: bool,
) -> SearchResult:
    """Writes the best config and the picture of what `lines` of the record say.

    `source` is the config's file, if there is one. SearchError when all trials failed.
    """
    if best is None:
        first = lines[0]
        raise SearchError(
            f"{counted(len(lines), 'trial')}, and all failed. The first, trial "
            f"{first['trial']}: {first['text']}. More is in "
            f"{folder.stint(key_of(first)) / 'error.txt'}. Mend what it names, and begin anew with "
            "--again."
        )
    line = next(line for line in lines if key_of(line) == best)
    picture = None
    with contextlib.suppress(OSError, ValueError):  # the search itself is done
        picture = draw_search(folder.path / "search.png", config, lines, best)
    return SearchResult(
        folder.path,
        _write_best(config, source, folder, line),
        dict(line["values"]),
        line["return_mean"],
        line["reached"],
        folder.path / str(line["checkpoint"]),
        seconds_of(lines),
        lines,
        picture,
        resumed,
        recalled,
    )


def _write_best(
    config: Config, source: Path | None, folder: SearchFolder, line: dict[str, Any]
) -> Path:
    """A config that trains once more as the best trial did; where role modules are found."""
    assert config.search is not None
    seed = (config.run.seed + line["trial"]) % 2**32
    best = applied(config, line["values"], seed=seed)
    hardware = best.hardware.model_copy(update={"num_gpus": 1})
    data = best.model_copy(update={"hardware": hardware}).model_dump(mode="json")
    mean = line["return_mean"]
    head = (
        f"# Trial {line['trial']} of {folder.path}\n"
        f"# return {'-' if mean is None else format(mean, '.4g')} after {line['reached']:,} "
        f"steps, by {config.search.algorithm}; a trial has one device, so num_gpus is 1\n"
        + _SCHEDULE * (config.search.algorithm == "pbt")
        + "".join(f"# {key}: {value}\n" for key, value in line["values"].items())
    )
    path = folder.path / "best.yaml"
    if config.roles and source is not None:
        path = source.with_name(f"{source.stem}.best.yaml").absolute()
    data = {key: value for key, value in data.items() if value is not None}
    try:
        replace_file(path, head + write_yaml(data))
    except OSError as error:
        raise SearchError(
            f"{path} cannot be written ({error.strerror}). Make room; the same command then "
            "writes it from the record."
        ) from error
    return path
