"""What stands before the page and the HTTP interface: who may come in, and with how much.

- On loopback a request must be addressed to loopback: a page elsewhere that has its own name point here is refused.
- With a token all that comes without it is refused: as ``Authorization: Bearer TOKEN``, or once as ``?token=TOKEN`` in
  a browser, which then keeps a cookie.
- A page of another origin may not send anything here.
- Of gradio's own doors those are open that the page goes through: none that writes a file, fetches one by its path, or
  tells of other visitors.
- A body that is too large is refused, by what it says of itself and again by counting.
- The browser is told to load nothing from elsewhere.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "asyncpatch-token"
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; worker-src 'self' blob:; frame-ancestors 'none'; form-action 'self'; base-uri 'self'"
)
OPEN = re.compile(
    r"/|/api(/.*)?|/asyncpatch/[^/]+|/(assets|static)/.+|/(theme\.css|manifest\.json|config|robots\.txt|favicon\.ico)"
    r"|/gradio_api/(queue/(join|data)|heartbeat/\w+|cancel|reset|startup-events)"
)
"""The paths that are answered."""
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
        shown = self.token is not None and bool(_in_query(scope))
        if shown and "text/html" in headers.get("accept", ""):
            await _answer(send, 303, "", "text/plain", *self._without_token(scope))
            return
        came, began, ended, cookie = 0, False, False, self._cookie() if shown else ()

        async def counted() -> MutableMapping[str, Any]:
            nonlocal came
            message = await receive()
            came += len(message.get("body", b""))
            if came > self.most:
                raise _TooLarge
            return message

        async def headed(message: MutableMapping[str, Any]) -> None:
            nonlocal began, ended
            if came > self.most and not began:  # whatever the application has made of it
                raise _TooLarge
            if message["type"] == "http.response.start":
                began = True
                own = {name for name, _ in _HEADERS}
                kept = [(name, value) for name, value in message["headers"] if name.lower() not in own]
                message = {**message, "headers": [*kept, *_HEADERS, *cookie]}
            ended = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        try:
            await self.app(scope, counted, headed)
        except _TooLarge:
            if not began:
                await _answer(send, *self._too_large())
        except asyncio.CancelledError:  # the server stops: a stream ends here
            if began and not ended:
                await send({"type": "http.response.body"})

    def _refused(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str, str] | None:
        """Why nothing is answered: a status, what is said, and of which kind."""
        if self.token is None and not is_loopback(_host(headers)):
            return 403, '{"detail": "this server answers on this machine alone"}', "application/json"
        if self.token is not None and not self._knows(scope, headers):
            if "text/html" in headers.get("accept", ""):
                return 401, _LOGIN, "text/html; charset=utf-8"
            return 401, '{"detail": "a token is needed: Authorization: Bearer TOKEN"}', "application/json"
        origin = headers.get("origin", "")
        if scope["method"] not in ("GET", "HEAD") and origin and origin.partition("://")[2] != headers.get("host"):
            return 403, '{"detail": "a page of another origin may not do this"}', "application/json"
        if not OPEN.fullmatch(scope["path"]):
            return 404, '{"detail": "there is nothing here"}', "application/json"
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
        cookies = (each.strip().partition("=") for each in headers.get("cookie", "").split(";"))
        given += [unquote(value) for name, _, value in cookies if name == COOKIE]
        return any(secrets.compare_digest(each.encode(), self.token.encode()) for each in given)

    def _cookie(self) -> tuple[Header, ...]:
        """For a browser that has just shown the token."""
        kept = f"{COOKIE}={quote(self.token or '', safe='')}; Path=/; HttpOnly; SameSite=Strict"
        return ((b"set-cookie", kept.encode()),)

    def _without_token(self, scope: Scope) -> tuple[Header, ...]:
        """To the same page, so that the token does not stay in the address bar."""
        rest = urlencode([(name, value) for name, value in _query(scope) if name != "token"])
        here = "./" + quote(scope["path"].rpartition("/")[2]) + (f"?{rest}" if rest else "")
        return ((b"location", here.encode()), *self._cookie())


class _TooLarge(Exception):
    pass


def _host(headers: dict[str, str]) -> str:
    """Without the port."""
    try:
        return urlsplit(f"//{headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def _query(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope.get("query_string", b"").decode("latin-1"))


def _in_query(scope: Scope) -> list[str]:
    return [value for name, value in _query(scope) if name == "token"]


async def _answer(send: Send, status: int, said: str, kind: str, *more: Header) -> None:
    headers = [(b"content-type", kind.encode()), *_HEADERS, *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": said.encode()})
