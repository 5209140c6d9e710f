"""Serves the page on one address until it is ended."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gmi_drl.errors import GmiDrlError
from gmi_drl.placement.faults import install

from .catalog import Catalog

DEFAULT_PORT: Final = 8686
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_EVERYWHERE: Final = ("0.0.0.0", "::")


class PageError(GmiDrlError):
    """The page cannot be served as it was asked for."""

    command_exit_code = 2


@dataclass(frozen=True)
class Address:
    """Says where the page listens, and with which certificate."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT  # 0: any that is free
    certificate: Path | None = None
    key: Path | None = None

    @property
    def tls(self) -> bool:
        """Says whether it speaks HTTPS."""
        return self.certificate is not None

    @property
    def is_local(self) -> bool:
        """Says whether nobody but this machine can reach it."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def names(self) -> list[str]:
        """Lists what the page may be called, beginning with what its link says."""
        names = [self.host, *(_LOOPBACK if self.is_local else ())]
        if self.host in _EVERYWHERE:
            names += [*_LOOPBACK, socket.gethostname(), socket.getfqdn()]
        return list(dict.fromkeys(name for name in names if name not in _EVERYWHERE))


def serve(
    catalog: Catalog, address: Address, control: bool, say: Callable[[str], object] = print
) -> None:
    """Serves until a signal ends it; `say` is told the login link. PageError if it cannot."""
    try:
        import anyio.to_thread
        import uvicorn

        from .app import app_of
    except ImportError as error:
        raise PageError(
            f"the page needs {error.name}, which is not installed: {install('page')}"
        ) from None
    from .guard import LOGIN, Access, hosts_of
    from .live import Live, Viewer

    _check(address)
    live = Live(catalog, control=control)
    # Looks once as later looks do, in a thread of anyio's: imports are done and runs are read
    # before the first viewer comes.
    anyio.run(anyio.to_thread.run_sync, live.changes, Viewer(None, None))
    with _listener(address) as listener:
        port = listener.getsockname()[1]
        access = Access(hosts_of(address.names, port, address.tls), port, tls=address.tls)
        files: dict[str, Any] = {}
        if address.tls:
            files = {"ssl_certfile": address.certificate, "ssl_keyfile": address.key}
        config = uvicorn.Config(
            app_of(live, access),
            http="h11",
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,  # the login link would be in it
            server_header=False,
            proxy_headers=False,
            limit_concurrency=100,
            timeout_graceful_shutdown=1,
            **files,
        )
        (host,) = hosts_of(address.names[:1], port, address.tls)
        scheme = "https" if address.tls else "http"
        say(f"{scheme}://{host}{LOGIN}?token={access.token}")
        uvicorn.Server(config).run(sockets=[listener])


def _check(address: Address) -> None:
    """Raises PageError for an address that is open to others without encryption."""
    option = f"--host {address.host}"
    if (address.certificate is None) != (address.key is None):
        raise PageError("--certificate and --key belong together. Give both.")
    if not address.is_local and not address.tls:
        port = address.port or DEFAULT_PORT
        raise PageError(
            f"{option}: others could read the page and its token on the way. Leave --host out and "
            f"use a tunnel (ssh -L {port}:127.0.0.1:{port} THIS-MACHINE), or give "
            "--certificate FILE and --key FILE."
        )
    if address.tls:
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(str(address.certificate), str(address.key))
        except OSError as error:  # ssl.SSLError is one
            reason = error.strerror or str(error)
            raise PageError(
                f"--certificate {address.certificate} --key {address.key}: no certificate with "
                f"its key ({reason}). Give two PEM files that belong together."
            ) from None


def _listener(address: Address) -> socket.socket:
    """Returns a socket that listens there; PageError says why none can."""
    try:
        (family, kind, protocol, _, sockaddr), *_ = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise PageError(f"--host {address.host}: {error.strerror}. Give another.") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(sockaddr)
        listener.listen(64)
        listener.set_inheritable(False)
    except OSError as error:
        listener.close()
        raise PageError(
            f"--port {address.port}: {error.strerror} on {address.host}. Another page may be open "
            "there. Give another port, or --port 0 for any that is free."
        ) from None
    return listener
