"""The view's web server: on loopback, for the person at this machine, behind an address that nobody else knows.

Every path starts with a random token; without it there is nothing, and the server says so in the same words for every
wrong path. A rendered page lies under a token of its own, so that it does not know the address of the person's pages.
``device_runtime.view.connections`` limits connections in number and time.

Two walls keep a page inside the browser. The rendered page's own policy fetches nothing, runs nothing, submits nothing.
The page around it, which the rendered one cannot change, holds it in a frame that may show one folder of this server
alone: a rendered page that leads its frame elsewhere (a link, a refresh) leads it nowhere.
"""

from __future__ import annotations

import hmac
import io
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from device_runtime.view import pages
from device_runtime.view.connections import REQUEST_SECONDS, Connections, RequestReader
from device_runtime.view.privacy_page import DeviceControls
from device_runtime.view.sanitizer import sanitized
from device_runtime.view.source import Recorder, ResultPage, Results
from odp import _validate
from odp._system.recent import Recent
from odp.errors import ConfigurationError, OdpError

HOST = "127.0.0.1"
_MOST_BODY = 2**12
_MOST_FIELDS = 16
_MOST_OPEN_PAGES = 256
_LENGTH = re.compile("[0-9]{1,9}")
_EVENT = re.compile(r"event/([a-z][a-z0-9_-]{0,63})")
_COMMON = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-DNS-Prefetch-Control": "off",
    # Pages of other origins can neither embed nor read these, whatever the browser thinks of loopback.
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()",
}

RENDERED_POLICY = (
    # default-src covers scripts, fetch, sockets, workers, frames, objects, media, fonts, manifests and prefetching.
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'self'; webrtc 'block'; sandbox"
)


def _harmless(html: str) -> str:
    """The page, or why there is none: the frame stays readable where the sanitizer is missing or the page too large."""
    try:
        return sanitized(html)
    except OdpError as error:
        return f"<p>This page cannot be shown: {escape(str(error))}</p>"


class View:
    """A running view. ``url`` contains the token: whoever knows it sees the pages, so give it to the person alone."""

    def __init__(self, server: _Server, url: str) -> None:
        self.url = url
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="view")
        self._thread.start()

    def stop(self) -> None:
        """Stops serving. Idempotent."""
        self._server.shutdown()
        self._thread.join()
        self._server.connections.close()
        self._server.server_close()


def start_view(
    *,
    controls: DeviceControls,
    results: Results,
    record: Recorder,
    port: int = 0,
    token: Callable[[], str] = lambda: secrets.token_urlsafe(24),
    clock: Callable[[], float] = time.time,
) -> View:
    """Serves the pages of one device on the loopback address.

    Args:
      controls: what the person sees of their device, and may decide.
      results: rendered results.
      record: receives events of rendered pages.
      port: 0 takes a free one.
      token: makes the unguessable parts of addresses.
      clock: seconds since the epoch, for how long ago things were.

    Raises:
      ConfigurationError: the port is taken, not allowed, or none.
    """
    _validate.integer(low=0, high=65535, port=port)
    site = _Site(controls, results, record, token, clock)

    class Handler(_Handler):
        pass

    Handler.site = site
    try:
        server = _Server((HOST, port), Handler)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {HOST}:{port}: {error.strerror}; take another port") from error
    site.origin = f"http://{HOST}:{server.server_address[1]}"
    return View(server, f"{site.origin}/{site.token}/")


class _Site:
    """Maps paths to answers, without any knowledge of sockets."""

    def __init__(
        self,
        controls: DeviceControls,
        results: Results,
        record: Recorder,
        token: Callable[[], str],
        clock: Callable[[], float],
    ) -> None:
        self.origin = ""
        self.token = token()
        self._controls, self._results, self._record = controls, results, record
        self._token, self._clock = token, clock
        # The token of an open rendered page, and its result.
        self._opened: Recent[str, str] = Recent(_MOST_OPEN_PAGES)

    def knows(self, path: str) -> bool:
        """Whether the path starts with a token that only the person's browser has."""
        first, _, rest = path.lstrip("/").partition("/")
        if first == "r":
            return self._opened.get(rest.partition("/")[0]) is not None
        return self._is_token(first)

    def get(self, path: str, query: Mapping[str, str]) -> tuple[HTTPStatus, dict[str, str], bytes] | None:
        """Answers a GET request; None if the path does not exist."""
        first, slash, rest = path.lstrip("/").partition("/")
        if self._is_token(first):
            # Links of the page are relative to its folder.
            return self._private_page(rest) if slash else None
        if first == "r":
            opened, _, rest = rest.partition("/")
            id = self._opened.get(opened)
            result = None if id is None else self._results.result(id)
            return None if result is None else self._rendered(result, rest, query)
        return None

    def post(self, path: str, form: Mapping[str, str]) -> bool:
        """Executes a decision of the person; False if the path does not exist."""
        first, _, rest = path.lstrip("/").partition("/")
        return self._is_token(first) and self._controls.decide(rest, form)

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self.token.encode())

    def _private_page(self, rest: str) -> tuple[HTTPStatus, dict[str, str], bytes] | None:
        if rest == "style.css":
            return HTTPStatus.OK, {**page_headers(), "Content-Type": "text/css; charset=utf-8"}, pages.STYLE.encode()
        if rest == "":
            page = pages.front(self._controls.page(), self._results.results(), self._clock())
            return HTTPStatus.OK, _html(page_headers()), page.encode()
        kind, _, id = rest.partition("/")
        result = self._results.result(id) if kind == "results" else None
        if result is None:
            return None
        opened = self._token()
        self._opened.put(opened, result.id)
        # The path ends with a slash: an event URL of the page is relative to it.
        folder = f"{self.origin}/r/{opened}/"
        return HTTPStatus.OK, _html(page_headers(frames=folder)), pages.around(result, folder, self._clock()).encode()

    def _rendered(
        self, result: ResultPage, rest: str, query: Mapping[str, str]
    ) -> tuple[HTTPStatus, dict[str, str], bytes] | None:
        if rest == "":
            return HTTPStatus.OK, _html(rendered_headers()), pages.inner(_harmless(result.html)).encode()
        if (event := _EVENT.fullmatch(rest)) is None:
            return None
        self._record(result, event[1], query)
        # Without content the frame stays on the page that it shows.
        return HTTPStatus.NO_CONTENT, rendered_headers(), b""


def _html(headers: dict[str, str]) -> dict[str, str]:
    return {**headers, "Content-Type": "text/html; charset=utf-8"}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, place: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.connections = Connections()
        super().__init__(place, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts a thread for an admitted connection."""
        if self.connections.admit(request):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """Closes a connection."""
        super().shutdown_request(request)
        self.connections.leave(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Writes no log: a browser that disconnects is no error, and a trace could show what the person looks at."""


class _Handler(BaseHTTPRequestHandler):
    """Reads requests within limits; any user of this machine may have sent each byte."""

    site: _Site
    server: _Server
    connection: socket.socket
    protocol_version = "HTTP/1.1"
    server_version = "odp"
    sys_version = ""

    def setup(self) -> None:
        """Installs the reader with its limits of time and length."""
        super().setup()
        self.rfile.close()
        self._reader = RequestReader(self.connection)
        self.rfile = io.BufferedReader(self._reader)

    def handle_one_request(self) -> None:
        """One request, or the end of the connection."""
        self.server.connections.rest(self.connection)
        self._reader.begin()
        super().handle_one_request()

    def do_GET(self) -> None:
        """A page."""
        path, query = self._address()
        if not self._for_us() or self._length() != 0 or path is None or query is None:
            self._nothing()
            return
        if path.startswith("/r/") and not self._in_a_frame():
            self._nothing()
            return
        try:
            answer = self.site.get(path, query)
        except OdpError as error:
            self._answer(HTTPStatus.CONFLICT, _html(page_headers()), pages.problem(str(error)).encode())
            return
        if answer is None:
            self._nothing()
        else:
            self._answer(*answer)

    def do_POST(self) -> None:
        """Executes a decision, and redirects to the person's page."""
        path, _ = self._address()
        length = self._length()
        # A foreign page may make a browser post here, though it does not know the token: its Origin reveals that.
        if not self._for_us() or self.headers.get("Origin") != self.site.origin:
            self._nothing()
            return
        if path is None or length is None or length > _MOST_BODY:
            self._nothing()
            return
        body = self.rfile.read(length)
        form = self._fields(body.decode("ascii", errors="replace")) if len(body) == length else None
        try:
            done = form is not None and self.site.post(path, form)
        except OdpError as error:
            self._answer(HTTPStatus.CONFLICT, _html(page_headers()), pages.problem(str(error), back=True).encode())
            return
        if not done:
            self._nothing()
            return
        self._answer(HTTPStatus.SEE_OTHER, {**page_headers(), "Location": f"/{self.site.token}/"}, b"")

    def _length(self) -> int | None:
        """Length of the body; None unless it is stated in the one form that browsers use."""
        lengths = self.headers.get_all("Content-Length", [])
        if (
            "Transfer-Encoding" in self.headers
            or len(lengths) > 1
            or not all(_LENGTH.fullmatch(text) for text in lengths)
        ):
            return None
        return int(lengths[0]) if lengths else 0

    def _for_us(self) -> bool:
        """Whether the request names this server: a foreign name that resolves to loopback is refused."""
        return f"http://{self.headers.get('Host', '')}" == self.site.origin

    def _in_a_frame(self) -> bool:
        """Whether the browser, if it says so, loads this into a frame for the person: not as a picture, not as a
        prefetch.

        So a rendered page is never shown without the frame around it, and an event is never recorded by loading one.
        """
        ahead = self.headers.get("Sec-Purpose") or self.headers.get("Purpose")
        return self.headers.get("Sec-Fetch-Dest", "iframe") == "iframe" and not ahead

    def _address(self) -> tuple[str | None, dict[str, str] | None]:
        """Path and query; None if the request has no valid ones."""
        try:
            parts = urlsplit(self.path)
        except ValueError:
            return None, None
        if self.site.knows(parts.path):
            self.server.connections.recognize(self.connection)
        return parts.path, self._fields(parts.query)

    @staticmethod
    def _fields(query: str) -> dict[str, str] | None:
        """Name and value of each field; None if they are malformed or too many."""
        try:
            return dict(
                parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=_MOST_FIELDS)
            )
        except ValueError:
            return None

    def _nothing(self) -> None:
        # What was not read of a request would be taken for the next one.
        self.close_connection = True
        self._answer(HTTPStatus.NOT_FOUND, _html(page_headers()), pages.problem("not found").encode())

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answers a malformed request like an unknown path: the library's own text repeats parts of the request."""
        self._nothing()

    def _answer(self, status: HTTPStatus, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status is not HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", str(len(body)))
        # The time is that of all of a write, however slowly the other side reads.
        self.connection.settimeout(REQUEST_SECONDS)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Writes no log: addresses are secrets here, and the person's activity is private."""


def rendered_headers() -> dict[str, str]:
    """Headers of a rendered result: the developer's page."""
    return {**_COMMON, "Referrer-Policy": "no-referrer", "Content-Security-Policy": RENDERED_POLICY}


def page_headers(frames: str = "'none'") -> dict[str, str]:
    """Headers of the runtime's own pages; ``frames`` is the URL of the one folder that a frame of them may show."""
    policy = (
        f"default-src 'none'; style-src 'self'; img-src 'self'; frame-src {frames}; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    )
    # Without any referrer a browser gives the forms of a page the origin "null", as it does a stranger's.
    return {**_COMMON, "Referrer-Policy": "same-origin", "Content-Security-Policy": policy}
