"""Joins and leaves a Ray cluster, and describes its hosts."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gmi_drl.runtime.driver.unretrieved_errors import NOBODY
from gmi_drl.runtime.errors import ActorRuntimeError, OutOfResources

from .probe import probe

_CONNECT_S: Final = 10.0  # for a cluster's address to answer
_UNSUBSCRIBE_S: Final = 1.0  # for the head to answer that this program unsubscribes
# Environment variables set for the cluster that this process has started, with old values.
_token: dict[str, str | None] = {}
_folder = ""  # of the cluster that this process has started for itself


def join(address: str, *, trusted: bool, capacity: Mapping[str, Any] | None = None) -> None:
    """Joins the cluster at `address`, or starts one on this host for `address="local"`.

    `capacity` is for the latter: `num_cpus`, `num_gpus`, `resources` and `object_store_bytes`.
    """
    if ray.is_initialized():
        raise ActorRuntimeError("ray.init() was called before init(). Call ray.shutdown() first.")
    if address == "local":
        _start(trusted, capacity or {})
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise ValueError(
            f"address={address!r}: it must be host:port, as `ray start --head` prints it, or "
            '"local" for a cluster of this process\'s own.'
        )
    if not trusted and os.environ.get("RAY_AUTH_MODE") != "token":
        raise ActorRuntimeError(
            f"address={address!r}: a Ray cluster without token authentication runs the code of "
            "whoever reaches its port. Start it and this program with RAY_AUTH_MODE=token and a "
            "token (RAY_AUTH_TOKEN_PATH), or give trusted=True where only you reach it."
        )
    try:
        probe(address, _CONNECT_S)  # Ray waits for minutes where it hangs
    except OSError as error:
        raise ActorRuntimeError(
            f"address={address!r}: nothing answers there within {_CONNECT_S:g} s ({error}). Start "
            "the cluster, or give the address that `ray start --head` has printed."
        ) from None
    _init(address=address)


def _init(**options: Any) -> None:
    """Has this process join or start a cluster, in a namespace of its own, without Ray's logs."""
    with _keep_sigterm_handler(), warnings.catch_warnings():
        # That a later Ray leaves CUDA_VISIBLE_DEVICES to actors that ask for no GPU.
        warnings.filterwarnings("ignore", "Tip: In future versions of Ray", FutureWarning)
        ray.init(
            log_to_driver=False, configure_logging=False,
            namespace=f"gmi-drl-{secrets.token_hex(8)}", **options,
        )  # fmt: skip


@contextmanager
def _keep_sigterm_handler() -> Iterator[None]:
    """Restores this program's handler of SIGTERM, which Ray replaces by one that just exits."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if handler is None else handler)


def _start(trusted: bool, capacity: Mapping[str, Any]) -> None:
    global _folder
    # Its head listens on all interfaces, and by itself Ray would leave a token in the home.
    mode = os.environ.get("RAY_AUTH_MODE")
    if mode is None or (mode != "token" and not trusted):
        _set_token({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)})
    _folder = tempfile.mkdtemp(prefix="gmi-drl-ray-", dir="/tmp")  # its sockets' paths are long
    try:
        _init(
            address="local", include_dashboard=False, _temp_dir=_folder,
            num_cpus=capacity.get("num_cpus"), num_gpus=capacity.get("num_gpus", 0),
            resources=dict(capacity.get("resources") or {}) or None,
            object_store_memory=capacity.get("object_store_bytes"),
        )  # fmt: skip
    except BaseException:
        leave()
        raise


def leave() -> None:
    """Leaves the cluster; ends it, and removes its files, if this process has started it."""
    global _folder
    _unsubscribe()
    ray.shutdown()
    _set_token({})
    if _folder:
        shutil.rmtree(_folder, ignore_errors=True)
        _folder = ""


def _unsubscribe() -> None:
    """Unsubscribes this program from what the head of the cluster publishes.

    `ray.shutdown` does so, too, but waits without a deadline for the answer of a head that hangs.
    A subscriber is closed as soon as `close` is called, and a second call returns at once.
    """
    if not ray.is_initialized():
        return
    worker: Any = ray._private.worker.global_worker
    for name in ("gcs_error_subscriber", "gcs_log_subscriber"):
        if (subscriber := getattr(worker, name, None)) is not None:
            closing = threading.Thread(target=subscriber.close, name=name, daemon=True)
            closing.start()
            closing.join(_UNSUBSCRIBE_S)


def _set_token(variables: dict[str, str]) -> None:
    """Has Ray use the token in these variables, instead of one that was set here before."""
    internal: Any = ray._raylet
    if not variables and not _token:
        return
    for name, value in _token.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _token.clear()
    _token.update({name: os.environ.get(name) for name in variables})
    os.environ.update(variables)
    internal.Config.initialize("")  # Ray has read the environment when it was imported
    internal.AuthenticationTokenLoader.instance().reset_cache()


def address() -> str:
    """Returns the address of this host in the cluster."""
    return str(ray.util.get_node_ip_address())


def hosts() -> list[Mapping[str, Any]]:
    """Lists what Ray knows of the hosts that live."""
    return [node for node in ray.nodes() if node["Alive"]]


def strategy(host: str) -> Any:
    """Returns Ray's scheduling strategy for a call or an actor with this `host`."""
    if not host:
        return "DEFAULT"
    return NodeAffinitySchedulingStrategy(_hosts_of(host)[0]["NodeID"], soft=False)


def _hosts_of(host: str) -> list[Mapping[str, Any]]:
    """Lists the hosts of this address or name (empty: all); ValueError if there is none."""
    alive = hosts()
    nodes = [node for node in alive
             if host in ("", node["NodeManagerAddress"], node["NodeManagerHostname"])]  # fmt: skip
    if not nodes:
        addresses = ", ".join(sorted(node["NodeManagerAddress"] for node in alive))
        raise ValueError(f"host={host!r}: the cluster has {addresses}. Give one of these.")
    return nodes


def infeasible(name: str, demand: Mapping[str, float], host: str) -> OutOfResources | None:
    """Returns the error of a demand that no host could meet even when idle; else None.

    ValueError for a host that is not there.
    """
    nodes = _hosts_of(host)
    for node in nodes:
        resources = node["Resources"]
        if all(resources.get(resource, 0.0) >= amount for resource, amount in demand.items()):
            return None
    wants = ", ".join(f"{n:g} {key}" for key, n in demand.items())
    have = "; ".join(
        f"{node['NodeManagerAddress']}: "
        + ", ".join(f"{n:g} {key}" for key, n in countable(node["Resources"]).items())
        for node in nodes
    )
    return OutOfResources(
        f"{name} wants {wants}; the hosts of the cluster have {have}. Ask for less, or add a host."
    )


def countable(resources: Mapping[str, float]) -> dict[str, float]:
    """Returns the resources that calls can ask for, without Ray's internal ones."""
    return {
        name: amount
        for name, amount in resources.items()
        if amount and name not in ("memory", "object_store_memory") and not name.startswith("node:")
    }


def actor_row(id: str) -> Mapping[str, Any]:
    """Returns what Ray's control store has of an actor.

    The state API of ray.util asks the dashboard, which need not run.
    """
    from ray._private import state

    row: Mapping[str, Any] = state.actors(id)
    return row


def is_dead_for_good(row: Mapping[str, Any], restarts: bool) -> bool:
    """Tells whether an actor is dead and Ray does not start it again.

    It may be started again, if it `restarts`, for a result that was lost, when nobody has a handle
    of it any more.
    """
    return row.get("State") == "DEAD" and not (restarts and _has_died_of(row, "OUT_OF_SCOPE"))


def death_text(row: Mapping[str, Any], text: str) -> str:
    """Returns why an actor has died, in Ray's words, such as `text`, unless nobody needed it."""
    if _has_died_of(row, "OUT_OF_SCOPE", "REF_DELETED"):
        return NOBODY
    cause = row.get("DeathCause")
    field = cause.WhichOneof("context") if cause is not None else None
    context = getattr(cause, field) if field else None
    return text or str(getattr(context, "error_message", "")) or "Ray does not say why"


def _has_died_of(row: Mapping[str, Any], *reasons: str) -> bool:
    """Tells whether an actor is dead for one of these reasons, as Ray names them."""
    from ray.core.generated.common_pb2 import ActorDiedErrorContext

    if row.get("State") != "DEAD":
        return False
    number = row["DeathCause"].actor_died_error_context.reason
    return number in [getattr(ActorDiedErrorContext, reason) for reason in reasons]


def is_running(pid: int) -> bool:
    """Tells whether a process of this host lives."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
