"""Several hosts on one machine: a group's ranks by host, who hands round rosters, and a network.

A host is a namespace of the network with an address of its own, joined to the others by a bridge,
where this process may make any; else all have an address of the loopback device.
"""

import collections
import contextlib
import ctypes
import fcntl
import os
import select
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

from fork_context import CONTEXT
from gmi_drl.comm import create_group
from gmi_drl.comm.hosts import (
    HostSpec,
    next_roster,
    read_endpoint,
    read_outcome,
    write_outcome,
    write_roster,
)
from ranks import Ranks

_NEWNET = 0x40000000
_ALL_FRAMES = 3  # ETH_P_ALL
_RCVBUFFORCE = 33
_SIOCETHTOOL = 0x8946
_OFFLOADS = (0x17, 0x1F, 0x24, 0x2C)  # of sent checksums, TSO, GSO, GRO


def _ip(*args):
    subprocess.run(["ip", *map(str, args)], check=True, capture_output=True, timeout=20)


class Network:
    """Namespaces `names` by host, and their `addresses`. Use it as a context manager.

    `delay_s`: what each frame takes from one host to another, by netem, or where the kernel has
    none by a process that relays frames instead of the bridge.
    """

    def __init__(self, hosts, delay_s=0.0):
        self.delay_s, self._relay = delay_s, None
        stem = f"gmi{os.getpid()}"
        self.switch = f"{stem}s"
        self.names = [f"{stem}h{host}" for host in range(hosts)]
        self.addresses = [f"10.77.0.{host + 1}" for host in range(hosts)]

    def __enter__(self):
        try:
            _ip("netns", "add", self.switch)
            self._join_bridge()
            for host, name in enumerate(self.names):
                _ip("netns", "add", name)
                _ip("-n", name, "link", "add", "eth0", "type", "veth",
                    "peer", "name", f"v{host}", "netns", self.switch)  # fmt: skip
                _ip("-n", name, "addr", "add", f"{self.addresses[host]}/24", "dev", "eth0")
                for device in ("eth0", "lo"):
                    _ip("-n", name, "link", "set", device, "up")
                self._join_port(f"v{host}")
                _ip("-n", self.switch, "link", "set", f"v{host}", "up")
            if self.delay_s and not self._by_netem():
                self._by_relay()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _join_bridge(self):
        _ip("-n", self.switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", self.switch, "link", "set", "br0", "up")

    def _join_port(self, port):
        _ip("-n", self.switch, "link", "set", port, "master", "br0")

    def _by_netem(self):
        try:
            for host in range(len(self.names)):
                subprocess.run(
                    ["tc", "-n", self.switch, "qdisc", "add", "dev", f"v{host}", "root", "netem",
                     "delay", f"{self.delay_s * 1e6:.0f}us"],
                    check=True, capture_output=True, timeout=20,
                )  # fmt: skip
        except (OSError, subprocess.CalledProcessError):
            return False
        return True

    def _by_relay(self):
        """Takes the ports from the bridge, and joins them by a process."""
        ports = [f"v{host}" for host in range(len(self.names))]
        for port in ports:
            _ip("-n", self.switch, "link", "set", port, "nomaster")
        for name, device in [
            *((name, "eth0") for name in self.names), *((self.switch, port) for port in ports)
        ]:  # fmt: skip
            _ip("-n", name, "link", "set", device, "mtu", 60000)
            thread = threading.Thread(target=_without_offloads, args=(name, device))
            thread.start()
            thread.join()
        self._relay = CONTEXT.Process(target=relay, args=(self.switch, ports, self.delay_s))
        self._relay.start()

    def __exit__(self, *_):
        if self._relay is not None:
            self._relay.kill()
            self._relay.join()
        for name in (*self.names, self.switch):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", name)

    def cut(self, host):
        """Pulls the cable of a host: nothing is told to either end."""
        _ip("-n", self.switch, "link", "set", f"v{host}", "down")

    def mend(self, host):
        """Puts it in again."""
        _ip("-n", self.switch, "link", "set", f"v{host}", "up")


def why_no_network():
    """Why this process can make no network; None if it can."""
    if not shutil.which("ip"):
        return "there is no `ip`"
    try:
        with Network(1):
            return None
    except (OSError, subprocess.SubprocessError) as error:
        return f"no namespaces of the network here: {error}"


def enter(namespace):
    """Moves this thread, and those it starts, into a namespace of the network."""
    with open(f"/run/netns/{namespace}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {namespace}")


def _without_offloads(namespace, device):
    """Has frames sent as they are on a cable: whole, with checksums (what `ethtool -K` does)."""
    enter(namespace)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for command in _OFFLOADS:
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            request = struct.pack("16sQ16x", device.encode(), ctypes.addressof(value))
            with contextlib.suppress(OSError):  # one that the driver cannot switch
                fcntl.ioctl(any_socket, _SIOCETHTOOL, request)


def relay(namespace, ports, delay_s):
    """Passes each frame on after `delay_s`: to the port that its address is known to be at."""
    enter(namespace)
    sockets = []
    for port in ports:
        one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_FRAMES))
        one.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, 64 << 20)
        one.bind((port, 0))
        one.setblocking(False)
        sockets.append(one)
    ports_of, due = {}, collections.deque()
    while True:
        wait_s = max(0.0, due[0][0] - time.monotonic()) if due else None
        for one in select.select(sockets, [], [], wait_s)[0]:
            with contextlib.suppress(BlockingIOError):
                while True:
                    frame, (_, _, kind, *_) = one.recvfrom(65536)
                    if kind == socket.PACKET_OUTGOING:
                        continue
                    ports_of[frame[6:12]] = one
                    due.append((time.monotonic() + delay_s, frame, one))
        while due and due[0][0] <= time.monotonic():
            _, frame, source = due.popleft()
            known = ports_of.get(frame[:6])
            for one in [known] if known else [other for other in sockets if other is not source]:
                with contextlib.suppress(OSError):  # a cable that was pulled, or no room
                    one.send(frame)


def _inside(group, namespace, body, *args):
    """The body of a rank, in the namespace of its host."""
    if namespace is not None:
        enter(namespace)
    return body(group, *args)


class Driver:
    """Hands round rosters when an endpoint has changed, and the outcome of who has finished."""

    def __init__(self, folders):
        self.folders, self.roster, self.away = folders, None, set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while not self._stop.wait(0.01):
            outcomes = [read_outcome(folder) for folder in self.folders]
            for outcome in filter(None, outcomes[:] if None in outcomes else ()):
                for folder in self.folders:
                    write_outcome(folder, outcome)
            ends = [read_endpoint(folder) for folder in self.folders]
            if self.roster is None and None in ends:
                continue
            ends = [None if host in self.away else end for host, end in enumerate(ends)]
            if roster := next_roster(self.roster, ends):
                self.roster = roster
                for host, folder in enumerate(self.folders):
                    if host not in self.away:
                        write_roster(folder, roster)

    def close(self):
        self._stop.set()
        self._thread.join()


class Cluster:
    """The ranks of one group over hosts of `sizes` GMIs, which all run `body(group, *args)`.

    `args_of` has what each GMI is given beside, by rank in the group. `options` is what
    create_group is told for each host, and `spec` its HostSpec. `network`: their namespaces.
    """

    def __init__(
        self, body, sizes, *args, args_of=None, network=None, timeout_s=40.0, wait_s=60.0, spec=(),
        **options,
    ):  # fmt: skip
        self.base = Path(tempfile.mkdtemp(prefix="gdt-hosts-", dir="/tmp"))
        self.folders = folders = [self.base / f"host{host}" for host in range(len(sizes))]
        numbers = iter(range(sum(sizes)))
        members = tuple(tuple(f"gmi {next(numbers)}" for _ in range(size)) for size in sizes)
        self.sizes, self.hosts = sizes, []
        for host, folder in enumerate(folders):
            folder.mkdir(mode=0o700)
            address = network.addresses[host] if network else f"127.0.0.{host + 1}"
            own = HostSpec(host, members, address, folder, timedelta(seconds=wait_s), **dict(spec))
            per_host = {
                name: value[host] if isinstance(value, list) else value
                for name, value in options.items()
            }
            group = create_group(members[host], directory=folder, hosts=own, **per_host)
            namespace = network.names[host] if network else None
            own_args = args_of[sum(sizes[:host]) :] if args_of else [()] * sizes[host]
            self.hosts.append(
                Ranks(
                    _inside, sizes[host], namespace, body, *args,
                    timeout_s=timeout_s, args_of=own_args.__getitem__, spec=group,
                )
            )  # fmt: skip
        self.driver = Driver(folders)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.driver.close()
        for ranks in self.hosts:
            ranks.__exit__()
        shutil.rmtree(self.base)

    def outcomes(self, within_s=100.0):
        """The outcome of each GMI, by rank in the group."""
        return [
            ranks.outcome(rank, within_s)
            for ranks, size in zip(self.hosts, self.sizes, strict=True)
            for rank in range(size)
        ]

    def until_reduced(self, generation, within_s=60.0):
        """Returns when all GMIs have reduced in `generation`, as files in their folders say."""
        deadline_s = time.monotonic() + within_s
        while (found := [path.read_text() for path in self.base.glob("*/reduced*")]) != [
            str(generation)
        ] * sum(self.sizes):
            assert time.monotonic() < deadline_s, f"not all in generation {generation}: {found}"
            time.sleep(0.005)  # between two looks
