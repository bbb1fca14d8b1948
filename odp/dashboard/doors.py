"""Who may see the page, and from where: the token, the folder, the cookie, the Host header, forms, bodies, headers.

The token is in the address that the terminal prints, as with Jupyter. It is exchanged for a cookie at once, so that it
stays in no history. Browsers send a cookie to every port of a host, for the paths that it was set for: so all pages lie
in a folder, whose name is a secret that the programs at other ports never see. A page of another site can neither read
(SameSite=Strict, Host, no CORS) nor post (Origin, a token in each form). What is wrong is answered in the same words
whatever it was.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from odp.dashboard import pages

#: Bytes of a form: of a task file in URL encoding, and of any other one.
LARGEST_TASK, LARGEST_FORM = 256 * 2**10, 4096
#: Wrong tokens in ``_WINDOW`` seconds, from everybody together, before further ones are told to wait.
MOST_WRONG = 10
_WINDOW, _BODY_SECONDS = 60.0, 10.0
_MOST_FIELDS = 8

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()",
    # Without any referrer a browser gives the forms of a page the origin "null", as it does a stranger's.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-DNS-Prefetch-Control": "off",
}


class TooMany(Exception):
    """Too many wrong tokens: try again later."""


class Doors:
    """The secrets of one run of the program. The folder, the cookie and the forms' token follow from a key that it
    forgets.
    """

    def __init__(
        self,
        token: str,
        *,
        origins: frozenset[str],
        clock: Callable[[], float] = time.monotonic,
        key: bytes | None = None,
    ) -> None:
        self._token = token
        self.origins = origins
        self._clock = clock
        key = secrets.token_bytes(32) if key is None else key
        self._session = hmac.new(key, b"session", hashlib.sha256).hexdigest()
        self.folder = "/" + hmac.new(key, b"folder", hashlib.sha256).hexdigest()
        self.csrf = hmac.new(key, b"form", hashlib.sha256).hexdigest()
        self.secure = all(origin.startswith("https:") for origin in origins)
        self.cookie = "odp-control-room"
        self._wrong: list[float] = []

    def is_signed_in(self, request: Request) -> bool:
        """Whether the request has the cookie of this run, and is for a page in its folder."""
        inside = _same(request.url.path[: len(self.folder) + 1], f"{self.folder}/")
        return inside and _same(request.cookies.get(self.cookie, ""), self._session)

    def accepts(self, token: str) -> bool:
        """Whether this is the token, which is too long to guess. Raises TooMany for one of too many wrong ones.

        Any web page can have the person's browser send wrong tokens: the right one is admitted all the same.
        """
        if _same(token, self._token):
            return True
        now = self._clock()
        self._wrong = [at for at in self._wrong if now - at < _WINDOW]
        if len(self._wrong) >= MOST_WRONG:
            raise TooMany
        self._wrong.append(now)
        return False

    def sign_in(self, response: Response) -> Response:
        """Gives the browser the cookie."""
        response.set_cookie(
            self.cookie, self._session, httponly=True, samesite="strict", secure=self.secure, path=self.folder
        )
        return response

    def is_own_form(self, request: Request, form: Mapping[str, str]) -> bool:
        """Whether a page of this run sent the form."""
        return request.headers.get("origin") in self.origins and _same(form.get("csrf", ""), self.csrf)


def _same(left: str, other: str) -> bool:
    return hmac.compare_digest(left.encode(), other.encode())


async def form_of(request: Request, *, largest: int) -> dict[str, str] | None:
    """The fields of a URL-encoded form; None if it is malformed, too long, or too slow."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        return None
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > largest:
                    return None
        fields = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=_MOST_FIELDS,
            errors="strict",
        )  # fmt: skip
    except (TimeoutError, ValueError):
        return None
    return dict(fields) if len({name for name, _ in fields}) == len(fields) else None


class Guard:
    """Outermost: refuses other hosts, limits bodies, and gives every answer the headers."""

    def __init__(self, app: ASGIApp, doors: Doors) -> None:
        self._app = app
        self._hosts = frozenset(origin.partition("://")[2] for origin in doors.origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, as ASGI has it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        headers = Headers(scope=scope)
        # A foreign name that resolves to this machine (DNS rebinding) is not this server.
        if headers.getlist("host") and set(headers.getlist("host")) <= self._hosts:
            length = headers.get("content-length", "0")
            if length.isascii() and length.isdigit() and len(length) < 10 and int(length) <= LARGEST_TASK:
                await self._app(scope, receive, with_headers)
                return
            await _refusal(413, "Too long", "The request is longer than any form.")(scope, receive, with_headers)
            return
        await _refusal(421, "Not found", "This name is not that of the control room.")(scope, receive, with_headers)


def _refusal(status: int, title: str, why: str) -> HTMLResponse:
    content = pages.problem(pages.NOBODY, title, why)
    return HTMLResponse(content, status_code=status, headers={"Connection": "close"})
