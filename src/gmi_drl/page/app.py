"""Answers the page's requests: its files, what happens, what a run recorded, and control."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from importlib import resources
from pathlib import Path
from typing import Any, Final

import anyio
from anyio import to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from gmi_drl.errors import GmiDrlError
from gmi_drl.launcher.view.tables import cut, printable_lines
from gmi_drl.report import run_state
from gmi_drl.report.lineage import LineageReader, as_text
from gmi_drl.report.policy_lineage import PREFIX, PolicyReader
from gmi_drl.report.policy_lines import tree_of
from gmi_drl.report.vendor import uplot

from .control import ask_for_checkpoint, stop
from .guard import Access, Guard
from .live import LOOK_S, Live, Viewer, number_in_query
from .safe_files import open_inside, read_inside

_MOST_VIEWERS: Final = 32
_ALIVE_S: Final = 15.0  # between two signs of life
_BEHIND_S: Final = 0.02  # between two looks while a long file is read
_DEPTH: Final = 8  # steps back of a lineage
_MOST_LINES: Final = 500
_MOST_ID: Final = 64  # characters
_BESIDE: Final = ("-wal", "-shm", "-journal")  # files that SQLite has beside a database
_STATIC: Final = {
    "page.html": "text/html",
    "page.css": "text/css",
    "favicon.svg": "image/svg+xml",
    **dict.fromkeys(
        ("page.js", "dom.js", "runs.js", "head.js", "layout.js", "curves.js", "time.js",
         "log.js", "trials.js", "recorded.js"),
        "text/javascript",
    ),
}  # fmt: skip

_AT: Final = {"/": "page.html", "/favicon.ico": "favicon.svg"}

_Ask = Callable[[Path, dict[str, Any]], int]  # of a run's folder and run.json: the launcher's pid


def app_of(live: Live, access: Access) -> ASGIApp:
    """Returns the page as an ASGI app: behind its guard."""
    page = _Page(live)
    routes = [
        Route("/", page.file),
        Route("/favicon.ico", page.file),
        Route("/static/{name}", page.file),
        Route("/events", page.events),
        Route("/runs/{id}/state", page.state),
        Route("/runs/{id}/lineage", page.lineage),
        Route("/runs/{id}/stop", page.stop, methods=["POST"]),
        Route("/runs/{id}/checkpoint", page.checkpoint, methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes), access)


class _Page:
    """Has a method for each route."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._files = _static_files()
        self._viewers = 0
        self._reading = anyio.Semaphore(2)  # of control stores, which may be large

    async def file(self, request: Request) -> Response:
        """Returns a file of the page's own; the name is looked up, and is never a path."""
        name = request.path_params.get("name") or _AT[request.url.path]
        if name not in self._files:
            return PlainTextResponse("no such file\n", 404)
        kind, content = self._files[name]
        return Response(content, media_type=kind)

    async def events(self, request: Request) -> Response:
        """Streams what changes: of all runs, and of one that is asked for."""
        run = request.query_params.get("run")
        gmi = number_in_query(request.query_params.get("gmi", ""))
        if run is not None and await self._folder(run) is None:
            return PlainTextResponse("no such run\n", 404)
        if self._viewers >= _MOST_VIEWERS:
            return PlainTextResponse(f"{_MOST_VIEWERS} viewers look on already\n", 503)
        return StreamingResponse(
            self._stream(request, Viewer(run, gmi)), media_type="text/event-stream"
        )

    async def _stream(self, request: Request, viewer: Viewer) -> AsyncIterator[str]:
        self._viewers += 1
        sent_s = time.monotonic()
        try:
            while not await request.is_disconnected():
                events = await to_thread.run_sync(self._live.changes, viewer)
                if text := "".join(f"event: {name}\ndata: {data}\n\n" for name, data in events):
                    yield text
                    sent_s = time.monotonic()
                elif time.monotonic() - sent_s > _ALIVE_S:
                    yield ":\n\n"
                    sent_s = time.monotonic()
                behind = await to_thread.run_sync(self._live.is_behind, viewer)
                await anyio.sleep(_BEHIND_S if behind else LOOK_S)
        finally:
            self._viewers -= 1

    async def state(self, request: Request) -> Response:
        """Returns tasks, actors, objects and events that a run recorded."""
        return await self._from_store(request, _state)

    async def lineage(self, request: Request) -> Response:
        """Returns what an id was computed from, as lines of a tree."""
        id = request.query_params.get("of", "")[:_MOST_ID]
        return await self._from_store(request, lambda store: _lineage(store, id))

    async def _from_store(self, request: Request, read: Any) -> Response:
        folder = await self._folder(request.path_params["id"])
        if folder is None:
            return PlainTextResponse("no such run\n", 404)
        async with self._reading:
            try:
                return JSONResponse(await to_thread.run_sync(_from_store, folder, read))
            except (OSError, GmiDrlError) as error:
                return JSONResponse({"error": printable_lines(cut(str(error), 2000))})

    async def stop(self, request: Request) -> Response:
        """Asks a run to stop, where the page may."""
        return await self._ask(request, stop)

    async def checkpoint(self, request: Request) -> Response:
        """Asks a run for a checkpoint, where the page may."""
        return await self._ask(request, ask_for_checkpoint)

    async def _ask(self, request: Request, ask: _Ask) -> Response:
        if not self._live.control:
            text = "This page only shows. `gmi-drl page --control` may ask runs."
            return JSONResponse({"error": text}, 403)
        folder = await self._folder(request.path_params["id"])
        if folder is None:
            return PlainTextResponse("no such run\n", 404)
        try:
            pid = await to_thread.run_sync(_ask_launcher, ask, folder)
        except (OSError, ValueError, GmiDrlError) as error:
            return JSONResponse({"error": printable_lines(cut(str(error), 2000))}, 409)
        return JSONResponse({"asked": pid})

    async def _folder(self, id: str) -> Path | None:
        return await to_thread.run_sync(self._live.find, id)


def _ask_launcher(ask: _Ask, folder: Path) -> int:
    written = json.loads(read_inside(folder, "run.json"))
    return ask(folder, written if isinstance(written, dict) else {})


def _from_store(folder: Path, read: Any) -> Any:
    for suffix in ("", *_BESIDE):  # SQLite opens them by itself
        if not suffix or os.path.lexists(folder / (run_state.FILE_NAME + suffix)):
            with open_inside(folder, run_state.FILE_NAME + suffix):
                pass
    return read(folder / run_state.FILE_NAME)


def _state(store: Path) -> dict[str, Any]:
    state = dataclasses.asdict(run_state.read_state(store))
    del state["path"]
    return {name: rows[:_MOST_LINES] for name, rows in state.items()}


def _lineage(store: Path, id: str) -> dict[str, Any]:
    with run_state.opened(store) as opened:
        if id.startswith(PREFIX):
            policies = PolicyReader(opened)
            tree = tree_of(policies, policies.find(id), _DEPTH)
        else:
            lineages = LineageReader(opened)
            tree = lineages.tree(lineages.resolve(id), _DEPTH)
        lines = as_text(tree)
    return {"lines": lines[:_MOST_LINES], "more": max(0, len(lines) - _MOST_LINES)}


def _static_files() -> dict[str, tuple[str, bytes]]:
    folder = resources.files(__package__) / "static"
    files = {name: (kind, (folder / name).read_bytes()) for name, kind in _STATIC.items()}
    files[uplot.SCRIPT.name] = "text/javascript", uplot.SCRIPT.read_bytes()
    files[uplot.STYLE.name] = "text/css", uplot.STYLE.read_bytes()
    return files
