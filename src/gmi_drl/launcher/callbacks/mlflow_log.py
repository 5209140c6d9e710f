"""Sends a run to an MLflow server, or to its store in a file (MLFLOW_TRACKING_URI)."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, ClassVar, Final

from gmi_drl.launcher.folder.run_folder import RunFolder

from .callback import Callback, EndedRun, StartedRun, scalars

_ID: Final = "mlflow_id"  # in run.json: a run that goes on is the same one there
_MOST_PARAMS: Final = 100  # of a call, as MLflow takes them
_MOST_TEXT: Final = 500  # characters of a value
_STATES: Final = {"finished": "FINISHED", "stopped": "KILLED"}


class MlflowLog(Callback):
    """Logs config and metrics to MLflow; an experiment has the runs of one name.

    Where is as MLflow's own environment variables say (MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME,
    and those for logging in), unless it is given. Nothing else of the run's folder is sent.
    """

    only_logged: ClassVar[bool] = True

    def __init__(self, tracking_uri: str | None = None, experiment: str | None = None) -> None:
        self._uri, self._experiment = tracking_uri, experiment
        self._client: Any = None
        self._id = ""

    def on_start(self, run: StartedRun) -> None:
        mlflow: Any = import_module("mlflow")
        folder, config = RunFolder(run.folder), run.config
        name = self._experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or config.run.name
        client = mlflow.MlflowClient(tracking_uri=self._uri)
        run_id = folder.state().get(_ID) if run.is_resumed else None
        if isinstance(run_id, str):
            client.update_run(run_id, status="RUNNING")
            self._client, self._id = client, run_id
            return
        experiment = client.get_experiment_by_name(name)
        exp_id = client.create_experiment(name) if experiment is None else experiment.experiment_id
        new_run = client.create_run(exp_id, run_name=f"{config.run.name}-{config.run.seed}")
        self._client, self._id = client, new_run.info.run_id
        folder.update(**{_ID: self._id})
        entities = mlflow.entities
        labels = {"gmi_drl.folder": str(run.folder), "gmi_drl.env": config.env.id}
        tags = [entities.RunTag(key, value) for key, value in labels.items()]
        settings = _flat(config.model_dump(mode="json"))
        params = [entities.Param(key, text[:_MOST_TEXT]) for key, text in settings]
        for start in range(0, len(params), _MOST_PARAMS):
            part = params[start : start + _MOST_PARAMS]
            client.log_batch(self._id, params=part, tags=[] if start else tags)

    def on_iteration(self, iteration: int, metrics: Mapping[str, Any]) -> None:
        metric: Any = import_module("mlflow.entities").Metric
        now_ms = int(time.time() * 1000)
        values = [
            metric(key, float(value), now_ms, iteration)
            for key, value in scalars(metrics).items()
            if math.isfinite(value)
        ]
        self._client.log_batch(self._id, metrics=values)

    def on_end(self, end: EndedRun) -> None:
        if self._client is None:
            return
        if end.result is not None and end.result.eval_return is not None:
            self._client.log_metric(self._id, "eval_return", end.result.eval_return)
        if end.error:
            self._client.set_tag(self._id, "gmi_drl.error", end.error[:_MOST_TEXT])
        self._client.set_terminated(self._id, status=_STATES.get(end.state, "FAILED"))


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yields the dotted keys of a config and their values, as MLflow takes names."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _flat(inner, f"{key}.{name}" if key else str(name))
    else:
        safe = "".join(c if c.isalnum() or c in "_-. /" else "_" for c in key)
        yield safe, str(value)
