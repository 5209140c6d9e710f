#!/usr/bin/env python3
"""Measures a policy served by an actor of the runtime beside the same policy behind HTTP.

Claim: a policy inside the graph serves more states a second than one behind a web server. Table 3
of Ray's paper (Moritz et al., 2018) compares a Ray actor with Clipper over REST, clients and server
on one p3.8xlarge, batches of 64 states: 6,200 and 4,400 states/s for states of 4 KB and a residual
network of 10 ms (1.4 times), 6,900 and 290 for states of 100 KB and a small fully connected network
of 5 ms (24 times). Here a client sends a batch of 64 states, waits for the 64 answers, and sends
the next; client and server are processes of one machine, and the policy has one thread.

    small   states of 4 KB, a residual network, some 12 ms a batch
    large   states of 100 KB, a fully connected network, some 2 ms a batch

Rows, each ours over the other:

    <size>/http_json   uvicorn (its faster loop and parser), a bare ASGI application, a connection
                       that is kept, a client on a bare socket; states and answers as JSON, as REST
                       has them: the paper's comparison
    <size>/http        the same with bodies of raw bytes, which no REST interface takes
    <size>/floor       the same policy called in the client's own process: no server at all
    <size>/call        calls of a policy that answers without computing, beside http's: what is
                       left is the call

    bench/rl/serving_http.py --rounds 5
    bench/rl/serving_http.py --seconds 0.5 --rounds 1      # a smoke test
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from modes import Rates, column, in_turn
from report import emit_pairs, parser
from torch import nn

from gmi_drl import runtime

BATCH: Final = 64
START_S: Final = 60.0  # the longest time until a server answers
ANSWER_S: Final = 120.0
JSON: Final = b"application/json"
RAW: Final = b"application/octet-stream"
PAPER: Final = {"small": (6200, 4400), "large": (6900, 290)}  # states/s: Ray, Clipper over REST

States = np.ndarray[Any, Any]


class ResidualBlock(nn.Module):
    """Two convolutions, whose input is added to their output."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.second(torch.relu(self.first(x))))


def _residual() -> nn.Module:
    """Returns a network for 4 KB: four planes of 16 x 16."""
    blocks = [ResidualBlock(16) for _ in range(4)]
    first = nn.Conv2d(4, 16, 3, padding=1)
    return nn.Sequential(
        nn.Unflatten(1, (4, 16, 16)), first, nn.ReLU(), *blocks, nn.Flatten(), nn.Linear(4096, 8)
    )


def _fully_connected() -> nn.Module:
    """Returns a network for 100 KB."""
    layers = [nn.Linear(25_600, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8)]
    return nn.Sequential(*layers)


SIZES: Final[dict[str, tuple[int, Callable[[], nn.Module]]]] = {
    "small": (1_024, _residual),
    "large": (25_600, _fully_connected),
}  # float32 numbers of a state, network


class Policy:
    """A network that answers batches of states; it is the same in every process."""

    def __init__(self, size: str) -> None:
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nobody does
        torch.set_num_threads(1)
        torch.manual_seed(0)
        _, make = SIZES[size]
        self._network = make().eval()

    @torch.inference_mode()
    def evaluate(self, states: States) -> States:
        """Returns [64, 8] logits of [64, n] states."""
        return self._network(torch.from_numpy(states)).numpy()

    def skip(self, states: States) -> States:
        """Returns as many numbers without computing them."""
        return np.zeros((len(states), 8), np.float32)


# The web server.


def application(policy: Policy, width: int) -> Callable[..., Any]:
    """Returns an ASGI application that answers a POST of states."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        pieces, has_more = [], True
        while has_more:
            message = await receive()
            pieces.append(message.get("body", b""))
            has_more = message.get("more_body", False)
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        kind = dict(scope["headers"])[b"content-type"]
        evaluate = policy.skip if scope["path"] == "/skip" else policy.evaluate
        if kind == JSON:
            states = np.asarray(json.loads(body)["input_batch"], np.float32)
            reply = json.dumps({"output_batch": evaluate(states).tolist()}).encode()
        else:
            states = np.frombuffer(body, np.float32).reshape(-1, width)
            reply = evaluate(states).tobytes()
        headers = [(b"content-type", kind), (b"content-length", str(len(reply)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": reply})

    return answer


def serve(size: str, path: Path) -> None:
    """Serves a policy until this process is ended; writes its port to `path`."""
    import uvicorn

    listening = socket.create_server(("127.0.0.1", 0))
    path.write_text(str(listening.getsockname()[1]))
    config = uvicorn.Config(
        application(Policy(size), SIZES[size][0]), access_log=False,
        timeout_keep_alive=600,  # other sides have their turn between two requests
    )  # fmt: skip
    uvicorn.Server(config).run([listening])


@contextlib.contextmanager
def web_server(size: str) -> Iterator[int]:
    """Runs `serve` in a process of its own, and yields its port."""
    with tempfile.TemporaryDirectory(prefix="gmi-bench-") as folder:
        path, log = Path(folder, "port"), Path(folder, "log")
        with log.open("w") as stream:
            child = subprocess.Popen(
                [sys.executable, __file__, "--serve", size, "--out", str(path)],
                stdout=stream, stderr=stream,
            )  # fmt: skip
        try:
            deadline = time.monotonic() + START_S
            while not path.exists() or not path.read_text():
                if child.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"the web server did not start:\n{log.read_text()[-2000:]}")
                time.sleep(0.02)
            yield int(path.read_text())
        finally:
            child.terminate()
            child.wait(20)


class Client:
    """A kept-alive HTTP connection on a bare socket."""

    def __init__(self, port: int, kind: bytes, path: bytes = b"/") -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._kind, self._path = kind, path

    def evaluate(self, states: States) -> States:
        """Returns what the server answers."""
        if self._kind == JSON:
            body: Any = json.dumps({"input_batch": states.tolist()}).encode()
            return np.asarray(json.loads(self._post(body))["output_batch"], np.float32)
        return np.frombuffer(self._post(memoryview(states).cast("B")), np.float32).reshape(-1, 8)

    def _post(self, body: Any) -> bytes:
        head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
        head %= self._path, self._kind, len(body)
        sent = self._socket.sendmsg([head, body])
        if sent < len(head) + len(body):
            self._socket.sendall(memoryview(body)[sent - len(head) :])
        reply = b""
        while b"\r\n\r\n" not in reply:
            reply += self._receive()
        start, _, content = reply.partition(b"\r\n\r\n")
        status, *fields = start.lower().split(b"\r\n")
        if b" 200" not in status:
            raise RuntimeError(f"the web server answered {start.decode()}")
        length = next(int(field[15:]) for field in fields if field.startswith(b"content-length:"))
        while len(content) < length:
            content += self._receive()
        return content

    def _receive(self) -> bytes:
        if not (piece := self._socket.recv(1 << 16)):
            raise RuntimeError("the web server has closed the connection")
        return piece

    def close(self) -> None:
        self._socket.close()


# The measurement.


def rate(evaluate: Callable[[States], States], states: States, seconds: float) -> Rates:
    """Returns states a second, one call after the other, after calls that are not counted."""
    until = time.perf_counter() + seconds / 4
    while time.perf_counter() < until:
        evaluate(states)
    begun, number = time.perf_counter(), 0
    while number < 3 or time.perf_counter() < begun + seconds:
        evaluate(states)
        number += 1
    return {"states_per_s": number * BATCH / (time.perf_counter() - begun)}


def measure(size: str, options: argparse.Namespace) -> None:
    """Asks all servers of a size in turn, round after round, and emits the rows."""
    width, _ = SIZES[size]
    states = np.random.default_rng(0).standard_normal((BATCH, width)).astype(np.float32)
    local_policy = Policy(size)
    actor = runtime.remote(num_threads=1)(Policy).remote(size)
    with web_server(size) as port:
        raw, text = Client(port, RAW), Client(port, JSON)
        raw_skip = Client(port, RAW, b"/skip")
        contestants: dict[str, Callable[[States], States]] = {
            "actor": lambda states: runtime.get(actor.evaluate.remote(states), ANSWER_S),
            "http": raw.evaluate,
            "http_json": text.evaluate,
            "floor": local_policy.evaluate,
        }
        calls: dict[str, Callable[[States], States]] = {
            "actor_call": lambda states: runtime.get(actor.skip.remote(states), ANSWER_S),
            "http_call": raw_skip.evaluate,
        }
        for name, evaluate in contestants.items():
            np.testing.assert_allclose(
                evaluate(states), local_policy.evaluate(states), 1e-4, 1e-4, err_msg=name
            )
        results = in_turn(
            {
                name: lambda evaluate=evaluate: rate(evaluate, states, options.seconds)
                for name, evaluate in (contestants | calls).items()
            },
            options.rounds,
        )
        for client in (raw, text, raw_skip):
            client.close()
    runtime.kill(actor)
    rates = column(results, "states_per_s")
    ray, clipper = PAPER[size]
    for name in ("http", "http_json", "floor"):
        paper = {"paper_ratio": round(ray / clipper, 2)} if name == "http_json" else {}
        emit_pairs(
            "serving_http", f"{size}/{name}", "states/s", rates["actor"], rates[name],
            state_bytes=4 * width, batch=BATCH, **paper,
        )  # fmt: skip
    calls_per_s = ([rate / BATCH for rate in rates[name]] for name in calls)
    emit_pairs("serving_http", f"{size}/call", "calls/s", *calls_per_s, state_bytes=4 * width,
               batch=BATCH)  # fmt: skip


def main() -> None:
    options_of = parser(__doc__, rounds=5)
    options_of.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    options_of.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    options_of.add_argument("--serve", choices=SIZES, help="serves it; the port is in --out")
    options_of.add_argument("--out", type=Path)
    options = options_of.parse_args()
    if options.serve:
        serve(options.serve, options.out)
        return
    runtime.init(["torch"])
    for size in options.sizes:
        measure(size, options)
    runtime.shutdown()


if __name__ == "__main__":
    main()
