"""GET /metrics, /healthz and /readyz over HTTP, for a few callers at once; nothing else is answered.

A caller has a time for its whole request and answer, however they drip. A newcomer takes the place of the caller whose
request has been incomplete for longest, so that nobody keeps a probe out by saying nothing.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from odp.errors import ConfigurationError
from odp.transport import observing
from odp.transport.channel import parse_address

#: Callers that are served at once; a further one takes the place of one that has not yet sent its request.
MOST_CALLERS = 16
_SECONDS = 5.0
_EVICTION_SECONDS = 1.0
_LONGEST_LINE = 4096
_TEXT = "text/plain; charset=utf-8"


class Endpoint:
    """Serves a registry at ``address`` (``host:port``, port 0 takes any free one) until it is closed.

    Without a registry it answers probes alone.

    Raises ConfigurationError where the port is taken.
    """

    def __init__(self, address: str, registry: CollectorRegistry | None = None) -> None:
        host, port = parse_address(address)
        try:
            self._server = _Server((host, port), registry)
        except OSError as error:
            what = "probes" if registry is None else "metrics"
            raise ConfigurationError(f"cannot serve {what} at {address}: {error.strerror or error}") from error
        self.address = f"{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops serving. Idempotent."""
        self._server.shutdown()
        self._server.server_close()


class _Server(HTTPServer):
    """A thread per caller, and no more callers than there are places."""

    request_queue_size = 64
    daemon_threads = True

    def __init__(self, address: tuple[str, int], registry: CollectorRegistry | None) -> None:
        self.registry = registry
        self._places = threading.BoundedSemaphore(MOST_CALLERS)
        self._lock = threading.Lock()
        # Callers without a whole request, in the order in which they came.
        self._incomplete: dict[socket.socket, None] = {}
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not (self._places.acquire(blocking=False) or self._evicted()):
            self.shutdown_request(request)
            return
        late = threading.Timer(_SECONDS, _hang_up, [request])
        late.daemon = True
        with self._lock:
            self._incomplete[request] = None

        def work() -> None:
            try:
                late.start()
                self.finish_request(request, client_address)
            except (OSError, RuntimeError):
                pass  # the caller is gone, or there are no more threads
            finally:
                late.cancel()
                self._end(request)

        try:
            threading.Thread(target=work, name="metrics-caller", daemon=True).start()
        except RuntimeError:  # no more threads: the place is free again
            self._end(request)

    def complete(self, request: socket.socket) -> None:
        """The request of a caller is whole: it keeps its place."""
        with self._lock:
            self._incomplete.pop(request, None)

    def names_us(self, host: str) -> bool:
        """Whether a Host header is no name that somebody else may have made resolve to this machine."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if name.lower() in {socket.gethostname().lower(), str(self.server_address[0])} or "." not in name.strip("[]"):
            return True
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True

    def _evicted(self) -> bool:
        """Hangs up on the caller whose request has been incomplete for longest, and takes its place."""
        with self._lock:
            oldest = next(iter(self._incomplete), None)
            if oldest is None:
                return False
            del self._incomplete[oldest]
            _hang_up(oldest)
        return self._places.acquire(timeout=_EVICTION_SECONDS)

    def _end(self, request: socket.socket) -> None:
        self.complete(request)
        self._places.release()
        self.shutdown_request(request)


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """One request per connection."""

    timeout = _SECONDS
    server: _Server
    server_version, sys_version = "odp", ""

    def do_GET(self) -> None:
        self.server.complete(self.connection)
        if len(self.requestline) > _LONGEST_LINE:
            self.send_error(414)
        elif not self.server.names_us(self.headers.get("Host", "")):
            self.send_error(421, "use an address, or a name of this machine")
        elif self.path == "/metrics" and self.server.registry is not None:
            self._send(generate_latest(self.server.registry), CONTENT_TYPE_LATEST)
        elif self.path == "/healthz":
            self._send(b"ok\n", _TEXT)
        elif self.path == "/readyz":
            unready = observing.unready()
            self._send(f"{unready or 'ok'}\n".encode(), _TEXT, status=503 if unready else 200)
        else:
            self.send_error(404, "only /healthz, /readyz and, with metrics, /metrics are served")

    def _send(self, data: bytes, kind: str, *, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:
        """Scrapes are not logged."""
