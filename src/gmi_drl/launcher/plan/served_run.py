"""`launch RUN --set mode=serving`: the config that serves the policy of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gmi_drl.launcher.folder.run_folder import RunFolder
from gmi_drl.placement import ConfigError, Fault, load_config


def config_of_run(run: Path, overrides: list[str]) -> tuple[dict[str, Any], Path]:
    """The config that serves the policy of a run, or of one of its checkpoints.

    With the run's environment, algorithm and devices; and the folder where its modules lie.
    """
    folder = RunFolder.existing(run)
    its = load_config(folder.path / "config.yaml").model_dump(mode="json")
    of_run = {key: its["run"][key] for key in ("name", "folder", "seed", "policy")}
    if its["mode"] != "serving":  # one that served has no policy of its own
        of_run["policy"] = str(run.resolve())
    config = {
        **{key: its[key] for key in ("version", "mode", "env", "algorithm", "hardware")},
        "run": of_run,
    }
    if load_config(config, overrides).mode != "serving":
        rule, remedy = "is a run's folder, and no config", (
            f"Serve its policy with --set mode=serving, or go on with it: --resume {run}."
        )  # fmt: skip
        raise ConfigError([Fault("config", str(run), rule, remedy)])
    return config, Path(str(folder.state().get("config_folder", Path.cwd())))
