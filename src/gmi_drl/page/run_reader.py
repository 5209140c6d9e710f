"""Reads what the page shows of one run: how it stands, its layout, its GMIs, their logs."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from gmi_drl.launcher.folder.run_folder import METRICS, resume_command
from gmi_drl.launcher.view.tables import cut, printable, printable_lines
from gmi_drl.launcher.view.view import bytes_text, duration
from gmi_drl.placement import Layout
from gmi_drl.placement.faults import device_name
from gmi_drl.placement.slicing import memory_share
from gmi_drl.report.layout_picture import device_text, memory_text, share_text, spans_of
from gmi_drl.report.run_list import RunSummary, summarize
from gmi_drl.roles.state.request import is_requested

from .curves import MetricsReader, number_of
from .safe_files import OutsideFolder, open_inside, read_inside, signature

WAITING: Final = frozenset({"wait", "reduce", "send"})  # phases in which a GMI does not compute
_LOG_BYTES: Final = 32 * 1024
_MOST_TEXT: Final = 4000  # characters of an alarm
_MOST_ALARMS: Final = 20
_QUIET_S: Final = 60.0  # so long without an iteration is an alarm, or ten iterations if longer
_START_S: Final = 300.0  # the same before the first one
_MOST_ENTRIES: Final = 1000  # of restarts that are counted
_FULL: Final = 0.95  # of a GMI's share of memory
_DAMAGED: Final = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
_CHECKPOINT: Final = re.compile(r"iteration_([0-9]{6,12})")  # the name of one's folder
_ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")  # colours of a terminal


class RunReader:
    """Follows one run's folder. Reads what has changed since the last look, and no more."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metrics = MetricsReader(folder)
        self.layout: Layout | None = None
        self._written: dict[str, Any] = {}  # run.json
        self._config: dict[str, Any] = {}
        self._troubles: dict[str, str] = {}  # by file: why it is not shown
        self._saved: int | None = None  # the iteration of the newest checkpoint
        self._seen: dict[str, Any] = {}  # signatures of files as they were read
        self._devices: list[dict[str, Any]] = []

    def poll(self) -> None:
        """Looks at the folder once."""
        for name, take in _FILES.items():
            current = signature(self.folder, name)
            if current != self._seen.get(name, ()):
                self._seen[name] = current
                self._read(name, take)
        try:
            self.metrics.poll()
        except OutsideFolder as error:
            self._troubles[METRICS] = str(error)

    def _read(self, name: str, take: Callable[[RunReader, str], None]) -> None:
        self._troubles.pop(name, None)
        try:
            take(self, read_inside(self.folder, name).decode("utf-8"))
        except (OSError, *_DAMAGED, yaml.YAMLError) as error:
            if isinstance(error, FileNotFoundError):
                error = FileNotFoundError("there is none")
            self._troubles[name] = f"{name} cannot be shown: {error}"

    def _take_state(self, text: str) -> None:
        self._written = {}
        written = json.loads(text)
        if not isinstance(written, dict):
            raise ValueError("it holds no object")
        self._written = written

    def _take_config(self, text: str) -> None:
        self._config = {}
        config = yaml.load(text, Loader=_LOADER)
        if not isinstance(config, dict):
            raise ValueError("it holds no mapping")
        self._config = config

    def _take_layout(self, text: str) -> None:
        self.layout, self._devices = None, []
        layout = Layout.from_json(text)
        self._devices = devices_of(layout)
        self.layout = layout

    @property
    def mode(self) -> str | None:
        """Returns the mode of the run's config; None if that is not known."""
        return self._word("mode")

    def summary(self) -> RunSummary:
        """Sums the run up as `gmi-drl runs` does."""
        return summarize(self.folder, self._written, self.metrics.last)

    def head(self, now_s: float) -> dict[str, Any]:
        """Returns how the run stands at the Unix time `now_s`."""
        summary, last = self.summary(), self.metrics.last
        running = summary.state == "running"
        total = number_of(self._setting("run", "total_steps"))
        speed = self.metrics.steps_per_s if running else None
        speed = summary.steps_per_s if speed is None else speed
        left_s = None
        if running and total is not None and summary.steps is not None and speed:
            left_s = _figure(max(0.0, (total - summary.steps) / speed))
        trained_s = number_of(last.get("time_s"))
        spread = number_of(self._written.get("eval_std"))
        command = "" if running else resume_command(self.folder)
        return {
            "name": summary.name,
            "folder": str(self.folder),
            "state": summary.state,
            "env": summary.env,
            "algorithm": self._word("algorithm", "name"),
            "mode": self.mode,
            "seed": summary.seed,
            "started": summary.started,
            "iteration": summary.iteration,
            "steps": summary.steps,
            "total_steps": total,
            "steps_per_s": _figure(speed),
            "return": figure_text(summary.return_mean),
            "evaluation": figure_text(summary.eval_return)
            + (
                "" if spread is None or summary.eval_return is None else f" ± {figure_text(spread)}"
            ),
            "trained": None if trained_s is None else duration(trained_s),
            "left": None if left_s is None else duration(left_s),
            "checkpoint": self._checkpoint(running),
            "resume": command if summary.state in ("failed", "stopped") else "",
            "unread_bytes": self.metrics.unread_bytes,
            "alarms": list(self._alarms(summary, now_s))[:_MOST_ALARMS],
        }

    def _setting(self, *keys: str) -> Any:
        value: Any = self._config
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def _word(self, *keys: str) -> str | None:
        value = self._setting(*keys)
        return cut(printable(value), 100) if isinstance(value, str) else None

    def _checkpoint(self, running: bool) -> str:
        """Names the newest checkpoint, and says whether another one is asked for."""
        folder = self.folder / "checkpoints"
        current = signature(folder)
        if current != self._seen.get("checkpoints", ()):
            self._seen["checkpoints"], self._saved = current, _newest_iteration(folder)
        requested = ["asked for"] if running and is_requested(self.folder) else []
        saved = [] if self._saved is None else [f"iteration {self._saved:,}"]
        return ", another ".join([*saved, *requested])

    def _alarms(self, summary: RunSummary, now_s: float) -> Iterator[dict[str, Any]]:
        error_text = self._written.get("error")
        if summary.state == "failed" and self._written.get("state") == "running":
            yield _alarm("error", "its launcher was killed before it could say how the run ended")
        elif error_text and summary.state != "finished":
            yield _alarm("error" if summary.state == "failed" else "note", str(error_text))
        for text in self._troubles.values():
            yield _alarm("warning", text)
        if summary.state == "running" and (quiet := self._quiet(now_s)):
            yield _alarm("warning", quiet)
        mean = summary.return_mean
        if mean is not None and not math.isfinite(mean):
            yield _alarm("error", f"the return is {mean}: the policy has diverged")
        for gmi_id, held, share in self._nearly_full():
            text = f"GMI {gmi_id} has held {bytes_text(held)} of {bytes_text(share)} of memory"
            yield _alarm("warning", text)
        if self.metrics.damaged:
            yield _alarm("warning", f"{METRICS}: {self.metrics.damaged:,} damaged lines left out")
        for entry in reversed(_entries(self._written.get("restarts"))):
            text = f"GMI {entry.get('gmi_id')} {entry.get('how')}; it was restarted"
            yield _alarm("warning", text, entry.get("time"))
        for entry in reversed(_entries(self._written.get("noise_notes"))):
            yield _alarm("note", str(entry.get("text", "")), entry.get("time"))

    def _quiet(self, now_s: float) -> str:
        """Says for how long there has been no iteration, if that is longer than it should be."""
        metrics_file = signature(self.folder, METRICS)
        started_s = number_of(self._written.get("started"))
        since_s = started_s if metrics_file is None else metrics_file[2] / 1e9
        allowed_s = _START_S if metrics_file is None else _QUIET_S
        allowed_s = max(allowed_s, 10 * (self.metrics.seconds_per_iteration or 0.0))
        if since_s is None or now_s - since_s < allowed_s:
            return ""
        return f"no iteration has ended for {duration(now_s - since_s)}"

    def _nearly_full(self) -> Iterator[tuple[int, int, int]]:
        for gmi in self.gmis():
            held, share = gmi["held_bytes"], gmi["share_bytes"]
            if held is not None and share and held >= _FULL * share:
                yield gmi["id"], held, share

    def gmis(self) -> list[dict[str, Any]]:
        """Returns what each GMI does: its use of its slice, its phases, memory and restarts."""
        if self.layout is None:
            return []
        last, count = self.metrics.last, len(self.layout.gmis)
        seconds = self.metrics.recent_seconds()
        peaks = last.get("gmi_mem_peak_bytes") or self._written.get("mem_peak_bytes")
        peaks = peaks if isinstance(peaks, list) and len(peaks) == count else [None] * count
        restarts = Counter(e.get("gmi_id") for e in _entries(self._written.get("restarts"))
                           if isinstance(e.get("gmi_id"), int))  # fmt: skip
        rows = []
        for gmi, nbytes in zip(self.layout.gmis, peaks, strict=True):
            share = memory_share(self.layout, gmi.gmi_id)
            phases = seconds[gmi.gmi_id] if gmi.gmi_id < len(seconds) else {}
            total = sum(phases.values())
            computed = sum(s for name, s in phases.items() if name not in WAITING)
            nbytes = nbytes if type(nbytes) is int and 0 <= nbytes < 2**63 else None
            rows.append(
                {
                    "id": gmi.gmi_id,
                    "use": round(computed / total, 3) if total > 0 else None,
                    "phases": {printable(name): round(s / total, 3) for name, s in phases.items()}
                    if total > 0
                    else {},
                    "held_bytes": nbytes,
                    "held": "" if nbytes is None else bytes_text(nbytes),
                    "share_bytes": None if share is None else share.nbytes,
                    "share": "" if share is None else bytes_text(share.nbytes),
                    "restarts": restarts[gmi.gmi_id],
                }
            )
        return rows

    def picture(self) -> dict[str, Any]:
        """Returns the layout: each device, and where on it each GMI lies, from 0 to 1."""
        name = None if self.layout is None else self.layout.template
        return {"template": name, "devices": self._devices}

    def log(self, gmi_id: int) -> dict[str, Any]:
        """Returns the end of a GMI's log, whose file is named by its id in the layout."""
        exists = self.layout is not None and 0 <= gmi_id < len(self.layout.gmis)
        if not exists:
            return {"gmi": gmi_id, "text": "", "note": f"this run has no GMI {gmi_id}"}
        try:
            with open_inside(self.folder, "logs", f"gmi{gmi_id:d}.log") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - _LOG_BYTES))
                content = file.read(_LOG_BYTES)
        except FileNotFoundError:
            return {"gmi": gmi_id, "text": "", "note": f"GMI {gmi_id} has no log of its own"}
        except OSError as error:
            return {"gmi": gmi_id, "text": "", "note": cut(printable(error), _MOST_TEXT)}
        if size > _LOG_BYTES:
            content = content.partition(b"\n")[2]
        text = printable_lines(_ANSI.sub("", content.decode("utf-8", "replace")))
        note = "" if text else "it is empty"
        return {"gmi": gmi_id, "text": text, "note": note, "cut": size > _LOG_BYTES}


_FILES: Final = {
    "run.json": RunReader._take_state,
    "config.yaml": RunReader._take_config,
    "layout.json": RunReader._take_layout,
}
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _newest_iteration(checkpoints: Path) -> int | None:
    """Returns the iteration of the newest checkpoint in a folder; None without one."""
    if checkpoints.is_symlink():
        return None
    try:
        names = map(_CHECKPOINT.fullmatch, os.listdir(checkpoints))
    except OSError:
        return None
    return max((int(name[1]) for name in names if name), default=None)


def devices_of(layout: Layout) -> list[dict[str, Any]]:
    """Returns the devices of a layout with their GMIs, as the page draws them."""
    spans = spans_of(layout)
    return [
        {
            "name": device_name(device),
            "what": printable(", ".join(filter(None, (device.name, device_text(device))))),
            "gmis": [
                {
                    "id": i,
                    "roles": [printable(role) for role in layout.gmi(i).roles],
                    "backend": printable(layout.gmi(i).backend),
                    "share": share_text(layout.gmi(i), device),
                    "memory": memory_text(layout.gmi(i), device),
                    "num_env": layout.gmi(i).num_env,
                    "begin": round(spans[i].begin, 4),
                    "width": round(spans[i].width, 4),
                    "shared": spans[i].shared,
                }
                for i in ids
            ],
        }
        for device, ids in zip(layout.topology.devices, layout.mpl, strict=True)
    ]


def _alarm(level: str, text: str, when_s: Any = None) -> dict[str, Any]:
    return {
        "level": level,
        "text": printable_lines(cut(text, _MOST_TEXT)),
        "when": number_of(when_s),
    }


def _entries(written: Any) -> list[dict[str, Any]]:
    """Returns the entries of a list in run.json, without what is none."""
    if not isinstance(written, list):
        return []
    return [entry for entry in written[-_MOST_ENTRIES:] if isinstance(entry, dict)]


def _figure(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def figure_text(value: float | None) -> str:
    """Words a figure of a run, which may be any number; "" for none."""
    if value is None:
        return ""
    return f"{value:,.1f}" if abs(value) < 1e12 else f"{value:.3g}"
