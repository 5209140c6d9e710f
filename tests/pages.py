"""What tests of the page share: folders of runs, made by hand, and a page that is served."""

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass

from gmi_drl.page.catalog import Catalog
from gmi_drl.page.guard import Access, hosts_of
from gmi_drl.page.live import Live
from gmi_drl.placement import Topology, tcg_ex
from gmi_drl.runtime.gcs.database import Database
from gmi_drl.runtime.gcs.tables import TaskRow

PORT = 8686
BASE = f"http://127.0.0.1:{PORT}"


def make_run(folder, name="ant", stamp="t0", *, iterations=3, gmis=2, state=None, **written):
    """A run's folder as a launch leaves it, without checkpoints and control store."""
    path = folder / name / stamp
    (path / "logs").mkdir(parents=True)
    (path / "config.yaml").write_text(
        f"version: 1\nrun: {{name: {name}, total_steps: 10000}}\nenv: {{id: Ant-v5}}\n"
        "algorithm: {name: ppo}\nmode: sync\n"
    )
    layout = tcg_ex(Topology.from_cores(range(gmis)), gmis, 8)
    (path / "layout.json").write_text(layout.to_json())
    known = {"env": "Ant-v5", "seed": 1, "state": state or "finished", "started": 1.7e9}
    (path / "run.json").write_text(json.dumps(known | written))
    (path / "metrics.jsonl").write_text("".join(line(i, gmis) for i in range(1, iterations + 1)))
    for gmi_id in range(gmis):
        (path / "logs" / f"gmi{gmi_id}.log").write_text(f"this is GMI {gmi_id}\n")
    return path


def line(iteration, gmis=2, **more):
    """A line of metrics.jsonl."""
    seconds = [{"simulate": 0.02, "train": 0.05, "reduce": 0.01 * (i + 1)} for i in range(gmis)]
    metrics = {
        "iteration": iteration, "steps": 100 * iteration, "time_s": 0.1 * iteration,
        "steps_per_s": 1000.0, "return_mean": float(iteration), "simulate_s": 0.02, "train_s": 0.05,
        "kl": 0.01, "gmi_seconds": seconds, "mem_peak_bytes": 2**28,
        "gmi_mem_peak_bytes": [2**28] * gmis,
    }  # fmt: skip
    return json.dumps(metrics | more) + "\n"


def live_of(folder, control=False):
    live = Live(Catalog(folder), control=control)
    live.catalog.scan()
    return live


def access():
    return Access(hosts_of(["127.0.0.1", "localhost", "::1"], PORT), PORT)


@dataclass
class Answer:
    """What an app answered; of headers that are there twice, the last."""

    status: int
    headers: dict[str, str]
    text: str

    def json(self):
        return json.loads(self.text)


class Browser:
    """Asks an ASGI app as it is told to, paths and headers as they are; keeps its cookie."""

    def __init__(self, app, base=BASE):
        self._app, self._base = app, base
        self.cookie = ""

    def get(self, path, headers=()):
        return self.ask("GET", path, headers)

    def post(self, path, headers=()):
        return self.ask("POST", path, headers)

    def ask(self, method, path, headers=()):
        """Sends headers instead of its own; a value that is a list as several of that name."""
        scheme, _, host = self._base.partition("://")
        sent = {"Host": host, "Cookie": self.cookie} | dict(headers)
        pairs = [
            (name.lower().encode(), each.encode("latin-1"))
            for name, value in sent.items()
            for each in (value if isinstance(value, list) else [value])
        ]
        raw, _, query = path.partition("?")
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "scheme": scheme,
            "http_version": "1.1", "method": method, "path": urllib.parse.unquote(raw),
            "raw_path": raw.encode(), "root_path": "", "query_string": query.encode(),
            "headers": pairs, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", PORT),
        }  # fmt: skip
        answer = asyncio.run(self._call(scope))
        if "set-cookie" in answer.headers:
            self.cookie = answer.headers["set-cookie"].partition(";")[0]
        return answer

    async def _call(self, scope):
        said, body = {}, b""
        waits = asyncio.Event()

        async def receive():
            if not waits.is_set():
                waits.set()
                return {"type": "http.request", "body": b"", "more_body": False}
            return {"type": "http.disconnect"}

        async def send(message):
            nonlocal body
            said.update(message)
            body += message.get("body", b"")

        await asyncio.wait_for(self._app(scope, receive, send), 20)
        headers = {name.decode(): value.decode() for name, value in said["headers"]}
        return Answer(said["status"], headers, body.decode())


@contextlib.contextmanager
def served(*arguments, cwd=None, env=None):
    """`gmi-drl page` in a process of its own; yields its login link."""
    command = [sys.executable, "-m", "gmi_drl", "page", "--port", "0", *map(str, arguments)]
    process = subprocess.Popen(
        command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        said = process.stdout.readline()
        link = re.fullmatch(r"page: (\S+/login\?token=\S+)\n", said)
        assert link, said + process.stdout.read()
        yield link[1]
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


def events(link, query="", seconds=10.0):
    """Reads the stream of a page: yields the name and the content of each event."""
    base, _, token = link.partition("/login?token=")
    request = urllib.request.Request(
        f"{base}/events{query}", headers={"Authorization": f"Bearer {token}"}
    )
    deadline_s = time.monotonic() + seconds
    with urllib.request.urlopen(request, timeout=seconds) as stream:
        name = ""
        for text in stream:
            assert time.monotonic() < deadline_s, "the stream has not had what was waited for"
            kind, _, value = text.decode().rstrip("\n").partition(": ")
            if kind == "event":
                name = value
            elif kind == "data":
                yield name, json.loads(value)


def make_store(path):
    """A control store in which one task has run."""
    database = Database(path)
    now_s = time.time()
    task = TaskRow(id=b"\x07" * 16, kind="task", name="square", state="finished", pid=7,
                   submitted_s=now_s, started_s=now_s, finished_s=now_s + 0.5)  # fmt: skip
    database.write({TaskRow: [task]})
    database.close()
