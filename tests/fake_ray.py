"""A cluster of hosts that are all this one, behind what our launch uses of Ray's interface.

Agents are objects of this process, and start real launchers. What a host says of itself is given.
"""

import contextlib
import socket
import socketserver
import sys
import threading
import types
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

_heads = {}  # what listens at the address of each cluster


@dataclass
class FakeHost:
    """One host; `versions` and `clock_off_s` are where it differs from this program.

    It is lost while `is_lost`, and when `lost_at` is called there. `asked`: how often each method
    was called.
    """

    address: str
    cpus: float = 1.0
    gpus: float = 0.0
    versions: dict = field(default_factory=dict)
    clock_off_s: float = 0.0
    is_lost: bool = False
    is_drained: bool = False
    lost_at: str = ""
    asked: Counter = field(default_factory=Counter)

    def ask(self, name):
        """Raises if it is lost."""
        self.asked[name] += 1
        self.is_lost = self.is_lost or name == self.lost_at
        if self.is_lost:
            raise RayError(f"{self.address} is lost")

    @property
    def node(self):
        """What the head tells of it."""
        snapshot = types.SimpleNamespace(state=3 if self.is_drained else 2)
        node_id = types.SimpleNamespace(hex=lambda: self.address)
        return types.SimpleNamespace(state=0, node_id=node_id, state_snapshot=snapshot)

    @property
    def row(self):
        """What ray.nodes has of it."""
        return {
            "Alive": True, "NodeID": self.address, "NodeManagerAddress": self.address,
            "NodeManagerHostname": self.address, "Resources": {"CPU": self.cpus, "GPU": self.gpus},
        }  # fmt: skip


class GetTimeoutError(Exception):
    """Ray's."""


class RayError(Exception):
    """Ray's."""


class Ref:
    """The result of a call, which was made when it was asked for."""

    def __init__(self, call):
        self.error = self.value = None
        try:
            self.value = call()
        except Exception as error:
            self.error = error

    def get(self):
        """The value, or what was raised."""
        if self.error is not None:
            raise RayError(str(self.error))
        return self.value


class Handle:
    """An actor's: `handle.method.remote(...)`."""

    def __init__(self, ray, cls, host, args):
        self._ray, self._host = ray, host
        self._object = cls(*args)
        self._object.leave = sys.exit  # of its thread: the process is that of the tests

    def __getattr__(self, name):
        def call(*args):
            self._host.ask(name)
            self._ray.here.host = self._host
            value = getattr(self._object, name)(*args)
            if name == "facts":
                value = replace(value, versions={**value.versions, **self._host.versions})
            return value + self._host.clock_off_s if name == "clock" else value

        return types.SimpleNamespace(remote=lambda *args: Ref(lambda: call(*args)))

    def kill(self):
        """Ends what it has started."""
        self._object.end()


class GcsClient:
    """Asks the head, and waits for one that is gone."""

    def __init__(self, head, hosts):
        self._head, self._hosts = head, hosts

    def get_all_node_info(self, timeout=None):
        """What it tells of each host."""
        if self._head.is_silent:
            self._head.is_over.wait(timeout)
            raise RayError("timed out")
        return {host.address: host.node for host in self._hosts}


class Group:
    """A placement group: ready when there are as many hosts as bundles."""

    def __init__(self, head, hosts, bundles):
        head.ask("placement_group")
        self.is_ready = len(bundles) <= len(hosts)

    def wait(self, timeout_seconds):
        """Tells at once."""
        return self.is_ready


def modules_of(head, hosts):
    """What is imported of Ray, by name."""
    ray = types.ModuleType("ray")
    ray.here = threading.local()  # whose method this thread calls

    def remote(cls):
        def options(scheduling_strategy, **_):
            host = hosts[scheduling_strategy.placement_group_bundle_index]

            def versions():
                host.ask("versions")
                ray.here.host = host
                node, versions = cls()
                return node, {**versions, **host.versions}

            def begin(*args):
                head.ask("remote")  # it is told the code
                return Handle(ray, cls, host, args) if isinstance(cls, type) else Ref(versions)

            return types.SimpleNamespace(remote=begin)

        return types.SimpleNamespace(options=options)

    def get(refs, timeout=None):
        return refs.get() if isinstance(refs, Ref) else [ref.get() for ref in refs]

    def nodes():
        head.ask("nodes")
        return [host.row for host in hosts]

    def free():
        head.ask("free")
        return {host.address: {"CPU": host.cpus} for host in hosts}

    nothing = lambda *_, **__: None  # noqa: E731
    context = types.SimpleNamespace(get_node_id=lambda: ray.here.host.address)
    ray.remote, ray.get, ray.init, ray.shutdown = remote, get, nothing, nothing
    ray.kill = Handle.kill
    ray.wait = lambda refs, **_: (list(refs), [])
    ray.is_initialized = lambda: False
    ray.nodes = nodes
    ray.get_runtime_context = lambda: context
    ray.exceptions = types.SimpleNamespace(GetTimeoutError=GetTimeoutError, RayError=RayError)
    ray._raylet = None
    ray.util = types.ModuleType("ray.util")
    ray.util.get_node_ip_address = lambda: ray.here.host.address
    placement = types.ModuleType("ray.util.placement_group")
    placement.placement_group = lambda bundles, strategy: Group(head, hosts, bundles)
    placement.remove_placement_group = nothing
    strategies = types.ModuleType("ray.util.scheduling_strategies")
    strategies.PlacementGroupSchedulingStrategy = types.SimpleNamespace
    strategies.NodeAffinitySchedulingStrategy = types.SimpleNamespace
    private = types.ModuleType("ray._private")
    private.state = types.SimpleNamespace(available_resources_per_node=free)
    raylet = types.ModuleType("ray._raylet")
    raylet.GcsClient = lambda address: GcsClient(_heads[address], hosts)
    protobuf = types.ModuleType("ray.core.generated.gcs_pb2")
    protobuf.GcsNodeInfo = types.SimpleNamespace(ALIVE=0)
    protobuf.NodeSnapshot = types.SimpleNamespace(DRAINING=3)
    common = types.ModuleType("ray.core.generated.common_pb2")
    common.ActorDiedErrorContext = types.SimpleNamespace(OUT_OF_SCOPE=5)
    each = (ray, ray.util, placement, strategies, private, raylet, protobuf, common)
    return {module.__name__: module for module in each}


class _Answer(socketserver.BaseRequestHandler):
    """Says something, and hangs up; nothing for a head that hangs."""

    def handle(self):
        if self.server.hangs:
            self.server.is_over.wait()
        else:
            self.request.sendall(b"\0")


class Head(socketserver.TCPServer):
    """What answers at an address of this host, until it is closed.

    It hangs while `hangs`, and when Ray asks it what `hangs_at` names. `forgets`: it answers there
    all the same, but not what Ray asks.
    """

    request_queue_size = 4096
    is_gone = hangs = forgets = False
    hangs_at = ""

    def __init__(self, host="127.0.0.1", port=0):
        self.is_over = threading.Event()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.allow_reuse_address = True
        super().__init__((host, port), _Answer)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def is_silent(self):
        """Whether it does not answer Ray."""
        return self.is_gone or self.hangs or self.forgets

    def ask(self, what):
        """Returns when it has answered Ray, which waits for ever."""
        self.hangs = self.hangs or what == self.hangs_at
        if self.is_silent:
            self.is_over.wait()
            raise RayError("the test is over")

    def close(self):
        """Answers no more; returns when it is over."""
        self.is_gone = True
        if self.hangs:
            self.is_over.set()
        self.shutdown()
        self._thread.join()
        self.server_close()

    def __exit__(self, *_):
        self.close()


def lose_head(address):
    """Has nobody answer at the address of a cluster any more."""
    _heads[address].close()


def head():
    """The head of the cluster that there is."""
    (head,) = _heads.values()
    return head


@contextlib.contextmanager
def cluster(*hosts):
    """Yields the address of one; in this block `import ray` gives what knows its hosts."""
    ours = [name for name in sys.modules if name.startswith("gmi_drl.runtime.engines.ray")]
    with pytest.MonkeyPatch.context() as patch, Head() as head:
        for name, module in modules_of(head, hosts).items():
            patch.setitem(sys.modules, name, module)
        for name in ours:  # they have imported another one
            patch.delitem(sys.modules, name)
        try:
            address = f"127.0.0.1:{head.server_address[1]}"
            _heads[address] = head
            yield address
        finally:
            head.is_over.set()
            _heads.clear()
            for name in [n for n in sys.modules if n.startswith("gmi_drl.runtime.engines.ray.")]:
                del sys.modules[name]
