"""Several hosts on one machine: a group's ranks by host, who hands round rosters, and a network.

A host is a namespace of the network with an address of its own, joined to the others by a bridge,
where this process may make any; else all have an address of the loopback device.
"""

import contextlib
import ctypes
import os
import shutil
import subprocess
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

from gmi_drl.comm import create_group
from gmi_drl.comm.hosts import HostSpec, next_roster, read_endpoint, write_roster
from ranks import Ranks

_NEWNET = 0x40000000


def _ip(*args):
    subprocess.run(["ip", *map(str, args)], check=True, capture_output=True, timeout=20)


class Network:
    """Namespaces `names` by host, and their `addresses`. Use it as a context manager."""

    def __init__(self, hosts):
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
        except BaseException:
            self.__exit__()
            raise
        return self

    def _join_bridge(self):
        _ip("-n", self.switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", self.switch, "link", "set", "br0", "up")

    def _join_port(self, port):
        _ip("-n", self.switch, "link", "set", port, "master", "br0")

    def __exit__(self, *_):
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


def _inside(group, namespace, body, *args):
    """The body of a rank, in the namespace of its host."""
    if namespace is not None:
        enter(namespace)
    return body(group, *args)


class Driver:
    """Hands round rosters: that of all endpoints there are, whenever one has changed."""

    def __init__(self, folders):
        self.folders, self.roster, self.away = folders, None, set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while not self._stop.wait(0.01):
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
    create_group is told for each host. `network`: their namespaces.
    """

    def __init__(
        self, body, sizes, *args, args_of=None, network=None, timeout_s=40.0, wait_s=60.0, **options
    ):
        self.base = Path(tempfile.mkdtemp(prefix="gdt-hosts-", dir="/tmp"))
        self.folders = folders = [self.base / f"host{host}" for host in range(len(sizes))]
        numbers = iter(range(sum(sizes)))
        members = tuple(tuple(f"gmi {next(numbers)}" for _ in range(size)) for size in sizes)
        self.sizes, self.hosts = sizes, []
        for host, folder in enumerate(folders):
            folder.mkdir(mode=0o700)
            address = network.addresses[host] if network else f"127.0.0.{host + 1}"
            spec = HostSpec(host, members, address, folder, timedelta(seconds=wait_s))
            per_host = {
                name: value[host] if isinstance(value, list) else value
                for name, value in options.items()
            }
            group = create_group(members[host], directory=folder, hosts=spec, **per_host)
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

    def outcomes(self):
        """The outcome of each GMI, by rank in the group."""
        return [outcome for ranks in self.hosts for outcome in ranks.outcomes()]

    def until_reduced(self, generation, within_s=60.0):
        """Returns when all GMIs have reduced in `generation`, as files in their folders say."""
        deadline_s = time.monotonic() + within_s
        while (found := [path.read_text() for path in self.base.glob("*/reduced*")]) != [
            str(generation)
        ] * sum(self.sizes):
            assert time.monotonic() < deadline_s, f"not all in generation {generation}: {found}"
            time.sleep(0.005)  # between two looks
