"""Who may ask: a token on every route but health and the static files, and no page of another origin.

The checks stand before every route, /ws included. A name that a stranger's DNS points at this machine (DNS rebinding)
shows in Host; a stranger's page in Origin, which browsers send with every WebSocket and every POST.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN_PATHS = frozenset({"/api/health"})
JSON_BYTES_LIMIT = 2 << 20
UPLOAD_PATH = "/api/traces"
ARTIFACT_PATHS = "/api/artifacts/"

SECURITY_HEADERS: Mapping[str, str] = {
    # No inline script and no other host: what a trace's file says can never run in the page.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self';"
        " connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """ASGI: refuses strangers before anything else runs, and puts the security headers on every answer."""

    def __init__(self, app: ASGIApp, *, token: str, hosts: frozenset[str], is_open_bind: bool, port: int) -> None:
        self._app = app
        self._token = token
        self._hosts = hosts
        self._is_open_bind = is_open_bind
        # Cookies are shared by all ports of a host, so the name has the port, and the value is not the token.
        self.cookie_name = f"cascade_{port}"
        self._cookie = hmac.new(token.encode(), b"cascade cookie", hashlib.sha256).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        if scope["type"] == "websocket":
            if refusal is not None:
                await receive()  # the connect message; a close before accepting is an HTTP 403
                await send({"type": "websocket.close", "code": 1008, "reason": "refused"})
                return
            await self._app(scope, receive, send)
            return
        send = _with_security_headers(send, is_api=scope["path"].startswith("/api"))
        if refusal is None:
            refusal = self._exchange(scope)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        await self._app(scope, _bounded(scope, receive), send)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """None where the caller may go on."""
        host = headers.get("host", "")
        if not is_known_host(host, self._hosts, is_open_bind=self._is_open_bind):
            return error(
                421, f"Host {host[:100]!r} is not this server; open it by the address that `cascade serve` prints"
            )
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return error(403, f"pages of {origin[:100]!r} may not ask this server")
        path = scope["path"]
        is_page = scope["type"] == "http" and not path.startswith("/api") and path != "/ws"
        if is_page or path in OPEN_PATHS or self.is_known(headers):
            return None
        return error(401, "the token is missing or wrong; open the address that `cascade serve` prints")

    def is_known(self, headers: Headers) -> bool:
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return hmac.compare_digest(token.strip().encode(), self._token.encode())
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(self.cookie_name)
        except CookieError:
            return False
        return morsel is not None and hmac.compare_digest(morsel.value.encode(), self._cookie.encode())

    def _exchange(self, scope: Scope) -> Response | None:
        """`?token=` on a page becomes a cookie, and the address loses it."""
        path = scope["path"]
        if scope["method"] != "GET" or path.startswith("/api"):
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        tokens = [value for name, value in query if name == "token"]
        if not tokens:
            return None
        if not hmac.compare_digest(tokens[0].encode(), self._token.encode()):
            return HTMLResponse(_WRONG, 401)
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        # One slash: `//host` would leave this server.
        address = "/" + path.lstrip("/\\") + (f"?{rest}" if rest else "")
        response = RedirectResponse(address, 303)
        response.set_cookie(self.cookie_name, self._cookie, httponly=True, samesite="strict", path="/")
        return response


def is_known_host(host: str, hosts: frozenset[str], *, is_open_bind: bool) -> bool:
    """Any port: a tunnel's differs. Bound to all addresses, an address is as good as a name: no DNS is asked for it."""
    name, _, port = host.rpartition(":") if not host.endswith("]") and ":" in host else (host, "", "")
    if port and not (port.isascii() and port.isdecimal()):
        return False
    name = name.lower().strip("[]")
    if name in hosts:
        return True
    if not is_open_bind:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def known_hosts(bind_host: str) -> tuple[frozenset[str], bool]:
    """The names this server answers to, and whether it is bound to all addresses."""
    is_open_bind = bind_host in {"0.0.0.0", "::", ""}  # noqa: S104 - recognised, not bound here
    own = {socket.gethostname().lower()} if is_open_bind else {bind_host.lower()}
    return frozenset({"localhost", "127.0.0.1", "::1"} | own), is_open_bind


def error(status: int, sentence: str) -> JSONResponse:
    return JSONResponse({"error": sentence}, status)


def _with_security_headers(send: Send, *, is_api: bool) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = {**SECURITY_HEADERS, **({"cache-control": "no-store"} if is_api else {})}
            message["headers"] = [
                *message["headers"],
                *((name.encode(), value.encode()) for name, value in headers.items()),
            ]
        await send(message)

    return wrapped


def _bounded(scope: Scope, receive: Receive) -> Receive:
    """A body that is not an upload has a size that fits in memory."""
    if scope["path"] == UPLOAD_PATH or scope["path"].startswith(ARTIFACT_PATHS):
        return receive
    seen = 0

    async def wrapped() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > JSON_BYTES_LIMIT:
            raise HTTPException(413, f"the body is larger than {JSON_BYTES_LIMIT} bytes")
        return message

    return wrapped


_WRONG = """<!doctype html><html lang="en"><meta charset="utf-8"><link rel="icon" href="data:,">
<title>Cascade: wrong token</title>
<h1>This token is not the server's</h1>
<p>Open the address that <code>cascade serve</code> printed last; each start makes a new token.</p>"""
