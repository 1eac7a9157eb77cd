"""Who may see the page.

Without a token: whoever is on this machine. The Host header must name it, or another site's script
could have its own name point here and read along (DNS rebinding). With a token: whoever has it,
once in the address and from then on in a cookie, or in an Authorization header. Who guesses is
slowed down.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import time
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedoptima.core.errors import ConfigError
from fedoptima.core.hosts import is_loopback, names_this_machine

SHORTEST_TOKEN = 16
_COOKIE = "fedoptima"

_HEADERS = {
    # plotly writes style elements; pictures of plots are made from data and blob addresses.
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def check_access(host: str, token: str | None) -> None:
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise ConfigError(
            f"--token: {len(token)} characters are too few, at least {SHORTEST_TOKEN}; for example "
            "--token $(openssl rand -hex 16)"
        )
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"--host {host}: anyone who can reach this machine could watch; give a --token, "
            "or stay on 127.0.0.1 and come through 'ssh -L 8050:localhost:8050'"
        )


class Guesses:
    """Wrong tokens of each address: ten are forgiven, then one each second is looked at."""

    _FORGIVEN, _EVERY, _MOST_ADDRESSES = 10, 1.0, 1000

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._paid_until: dict[str, float] = {}  # the time that an address has used up

    def too_many(self, address: str) -> bool:
        ahead = self._paid_until.get(address, 0.0) - self._clock()
        return ahead > (self._FORGIVEN - 1) * self._EVERY

    def wrong(self, address: str) -> None:
        used = max(self._paid_until.pop(address, 0.0), self._clock())
        self._paid_until[address] = used + self._EVERY
        if len(self._paid_until) > self._MOST_ADDRESSES:
            del self._paid_until[next(iter(self._paid_until))]  # the one that guessed longest ago


class Guard:
    """Around the whole application: nothing is answered that is not let in."""

    def __init__(
        self, app: ASGIApp, token: str | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._app = app
        self._guesses = Guesses(clock)
        self._token = token
        # Not the token itself: who gets hold of the cookie does not know it.
        self._cookie = hmac.new((token or "").encode(), b"cookie", hashlib.sha256).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal, cookie = self._check(scope)
        app = self._app if refusal is None else refusal
        await app(scope, receive, _with_headers(send, cookie))

    def _check(self, scope: Scope) -> tuple[ASGIApp | None, str | None]:
        """Why it is refused, or the cookie to be set."""
        headers = Headers(scope=scope)
        if self._token is None:
            if not names_this_machine(headers.get("host", "")):
                return PlainTextResponse("Not a name of this machine.\n", 421), None
            return None, None
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        scheme, _, rest = headers.get("authorization", "").partition(" ")
        bearer, cookie = rest if scheme.lower() == "bearer" else "", _cookie(headers)
        address = _address(scope)
        if (given or bearer or cookie) and self._guesses.too_many(address):
            # Nothing is compared: a right token would be found among many as fast as before.
            slow = PlainTextResponse("Too many wrong tokens; wait a few seconds.\n", 429)
            slow.headers["Retry-After"] = "5"
            return slow, None
        if _equal(given, self._token):
            # Without Secure: there is no TLS here. Strict: no other site can make use of it.
            return None, f"{_COOKIE}={self._cookie}; Path=/; HttpOnly; SameSite=Strict"
        if _equal(bearer, self._token) or _equal(cookie, self._cookie):
            return None, None
        if given or bearer or cookie:
            self._guesses.wrong(address)
        return PlainTextResponse("Open the address with its ?token=...\n", 401), None


def _with_headers(send: Send, cookie: str | None) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(_HEADERS)
            # Asked for each time, sent only when it has changed: an update shows at once.
            headers.setdefault("Cache-Control", "no-cache")
            if cookie is not None:
                headers.append("Set-Cookie", cookie)
        await send(message)

    return wrapped


def _equal(given: str, wanted: str) -> bool:
    """In the same time, however much of it is right."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def _cookie(headers: Headers) -> str:
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(_COOKIE)
    except CookieError:
        return ""
    return morsel.value if morsel is not None else ""


def _address(scope: Scope) -> str:
    """Of who asks; with IPv6 the network, since one machine may have any address in it."""
    host = (scope.get("client") or ("", 0))[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return str(host)
    return host if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))
