"""Lets in requests with the token of this start that come from this page itself, and no others.

A page on 127.0.0.1 is open to other users of the machine, to every website in the user's browser,
and to names that a website makes point here (DNS rebinding). So: a Host that is not ours is
answered 421; an Origin or a Sec-Fetch-Site of others 403; no token 401; and what changes anything
needs a header that a form of another site cannot send.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CUSTOM_HEADER: Final = "x-gmi-drl"  # of requests that change something
LOGIN: Final = "/login"
_MOST_HEADER: Final = 4096  # bytes of a cookie or a token that are looked at
_SAFE: Final = ("GET", "HEAD")
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


def _secret() -> str:
    return secrets.token_urlsafe(32)  # 256 bits


@dataclass(frozen=True)
class Access:
    """Says under which names the page is called, and holds the secrets of one start."""

    hosts: frozenset[str]  # "127.0.0.1:8686", as browsers send them
    port: int
    tls: bool = False
    token: str = field(default_factory=_secret, repr=False)
    session: str = field(default_factory=_secret, repr=False)  # what the cookie holds

    @property
    def cookie(self) -> str:
        """Names the cookie by the port, because browsers send cookies to every port of a host."""
        return f"gmi_drl_page_{self.port}"

    @property
    def origins(self) -> frozenset[str]:
        """Lists the origins that pages of ours have."""
        return frozenset(f"{'https' if self.tls else 'http'}://{host}" for host in self.hosts)


def hosts_of(names: Iterable[str], port: int, tls: bool = False) -> frozenset[str]:
    """Returns what browsers send as Host for these names.

    An IPv6 address is in brackets, and the port of the scheme itself is left out.
    """
    suffix = "" if port == (443 if tls else 80) else f":{port}"
    hosts = (f"[{name}]" if ":" in name else name for name in map(str.lower, names))
    return frozenset(host + suffix for host in hosts)


class Guard:
    """Wraps an app: nothing reaches it that may not."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or hands it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        if scope["type"] != "http":  # there are no websockets here
            await send({"type": "websocket.close", "code": 1008})
            return
        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """Returns the answer to a request that is refused, or that logs in; None: it may pass."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self._access.hosts:
            names = " or ".join(sorted(self._access.hosts))
            return _reply(421, f"This page is {names}, and no other. A tunnel keeps the port.")
        origins = headers.getlist("origin")
        if any(origin.lower() not in self._access.origins for origin in origins):
            return _reply(403, "This page answers no other site.")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return _reply(403, "This page answers no other site.")
        if scope["path"] == LOGIN:
            return self._login(scope)
        if not self._is_logged_in(headers):
            return _reply(401, "Open the link that gmi-drl page has printed.")
        if scope["method"] not in _SAFE and headers.get(CUSTOM_HEADER) != "1":
            return _reply(403, f"What changes something needs the header {CUSTOM_HEADER}: 1.")
        return None

    def _login(self, scope: Scope) -> Response:
        query = scope["query_string"].decode("latin-1")
        if scope["method"] != "GET" or not _equal(query, f"token={self._access.token}"):
            return _reply(
                401, "This link is not of this start. Open the one that was printed last."
            )
        response = RedirectResponse("/", 303)  # so that the token leaves the address bar
        response.set_cookie(
            self._access.cookie,
            self._access.session,
            path="/",
            secure=self._access.tls,
            httponly=True,
            samesite="strict",
        )
        return response

    def _is_logged_in(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return _equal(token, self._access.token)
        return any(_equal(cookie, self._access.session) for cookie in self._cookies(headers))

    def _cookies(self, headers: Headers) -> Iterable[str]:
        for line in headers.getlist("cookie"):
            cookies: SimpleCookie = SimpleCookie()
            try:
                cookies.load(line[:_MOST_HEADER])
            except CookieError:
                continue
            if self._access.cookie in cookies:
                yield cookies[self._access.cookie].value


def _equal(given: str, secret: str) -> bool:
    """Compares in a time that does not depend on how many characters are right."""
    return hmac.compare_digest(given[:_MOST_HEADER].encode(), secret.encode())


def _reply(status: int, text: str) -> Response:
    return PlainTextResponse(f"{text}\n", status)
