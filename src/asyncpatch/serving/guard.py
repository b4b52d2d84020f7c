"""What stands before the page and the HTTP interface: who may come in, and with how much.

- On loopback a request must be addressed to loopback: a page elsewhere that has its own name point here is refused.
- With a token all that comes without it is refused: as ``Authorization: Bearer TOKEN``, or once as ``?token=TOKEN`` in
  a browser, which then keeps a cookie.
- A page of another origin may not send anything here.
- A body that is too large is refused, by what it says of itself and again by counting.
- The browser is told to load nothing from elsewhere.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qs, urlsplit

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "asyncpatch-token"
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; worker-src 'self' blob:; frame-ancestors 'none'; form-action 'self'; base-uri 'self'"
)
_HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
_LOGIN = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>AsyncPatch</title><style>body{font:1rem system-ui,sans-serif;max-width:24rem;margin:20vh auto;padding:1rem;
color-scheme:light dark}input,button{font:inherit;padding:.5rem;width:100%;box-sizing:border-box;margin:.3rem 0}</style>
<h1>AsyncPatch</h1><form><label>The token that the server printed when it started
<input name="token" type="password" autofocus required></label><button>Go on</button></form></html>"""


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """Around an application. ``token`` None: none is asked for, and only loopback is answered."""

    def __init__(self, app: App, *, token: str | None, most: int) -> None:
        self.app, self.token, self.most = app, token, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # there is nothing else here
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refused = self._refused(scope, headers)
        if refused is not None:
            await _answer(send, *refused)
            return
        came, began, cookie = 0, False, self._cookie(scope)

        async def counted() -> MutableMapping[str, Any]:
            nonlocal came
            message = await receive()
            came += len(message.get("body", b""))
            if came > self.most:
                raise _TooLarge
            return message

        async def headed(message: MutableMapping[str, Any]) -> None:
            nonlocal began
            if came > self.most and not began:  # whatever the application has made of it
                raise _TooLarge
            if message["type"] == "http.response.start":
                began = True
                own = {name for name, _ in _HEADERS}
                kept = [(name, value) for name, value in message["headers"] if name.lower() not in own]
                message = {**message, "headers": [*kept, *_HEADERS, *cookie]}
            await send(message)

        try:
            await self.app(scope, counted, headed)
        except _TooLarge:
            if not began:
                await _answer(send, *self._too_large())

    def _refused(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str, str] | None:
        """Why nothing is answered: a status, what is said, and of which kind."""
        host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
        if self.token is None and not is_loopback(host):
            return 403, '{"detail": "this server answers on this machine alone"}', "application/json"
        if self.token is not None and not self._knows(scope, headers):
            if "text/html" in headers.get("accept", ""):
                return 401, _LOGIN, "text/html; charset=utf-8"
            return 401, '{"detail": "a token is needed: Authorization: Bearer TOKEN"}', "application/json"
        origin = headers.get("origin", "")
        if scope["method"] not in ("GET", "HEAD") and origin and urlsplit(origin).netloc != headers.get("host"):
            return 403, '{"detail": "a page of another origin may not do this"}', "application/json"
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self.most:
            return self._too_large()
        return None

    def _too_large(self) -> tuple[int, str, str]:
        said = f'{{"detail": "an upload may have {self.most >> 20} megabytes: use a smaller picture"}}'
        return 413, said, "application/json"

    def _knows(self, scope: Scope, headers: dict[str, str]) -> bool:
        assert self.token is not None
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        given = [bearer.strip()] if kind.lower() == "bearer" else []
        given += _in_query(scope)
        try:
            kept = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            kept = None
        given += [kept.value] if kept is not None else []
        return any(secrets.compare_digest(each.encode(), self.token.encode()) for each in given)

    def _cookie(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        """For a browser that has just shown the token."""
        if self.token is None or not _in_query(scope):
            return []
        return [(b"set-cookie", f"{COOKIE}={self.token}; Path=/; HttpOnly; SameSite=Strict".encode())]


class _TooLarge(Exception):
    pass


def _in_query(scope: Scope) -> list[str]:
    return parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [])


async def _answer(send: Send, status: int, said: str, kind: str) -> None:
    headers = [(b"content-type", kind.encode()), *_HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": said.encode()})
