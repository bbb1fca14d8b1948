"""GET /metrics, /healthz and /readyz over HTTP, for a few callers at once; nothing else is answered."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from odp.errors import ConfigurationError
from odp.transport import observing
from odp.transport.channel import parse_address

#: Callers that are served at once; further ones are sent away.
MOST_CALLERS = 4
_SECONDS = 5.0
_LONGEST_LINE = 4096
_TEXT = "text/plain; charset=utf-8"


class Endpoint:
    """Serves a registry at ``address`` (``host:port``, port 0 takes any free one) until it is closed.

    Raises ConfigurationError where the port is taken.
    """

    def __init__(self, address: str, registry: CollectorRegistry) -> None:
        host, port = parse_address(address)
        try:
            self._server = _Server((host, port), registry)
        except OSError as error:
            raise ConfigurationError(f"cannot serve metrics at {address}: {error.strerror or error}") from error
        self.address = f"{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops serving. Idempotent."""
        self._server.shutdown()
        self._server.server_close()


class _Server(HTTPServer):
    """A thread per caller, and no more callers than there are places."""

    request_queue_size = 8
    daemon_threads = True

    def __init__(self, address: tuple[str, int], registry: CollectorRegistry) -> None:
        self.registry = registry
        self._places = threading.BoundedSemaphore(MOST_CALLERS)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return

        def work() -> None:
            try:
                self.finish_request(request, client_address)
            except OSError:
                pass  # the caller is gone
            finally:
                self._places.release()
                self.shutdown_request(request)

        try:
            threading.Thread(target=work, name="metrics-caller", daemon=True).start()
        except RuntimeError:  # no more threads: the place is free again
            self._places.release()
            self.shutdown_request(request)


class _Handler(BaseHTTPRequestHandler):
    """One request per connection."""

    timeout = _SECONDS
    server: _Server
    server_version, sys_version = "odp", ""

    def do_GET(self) -> None:
        if len(self.requestline) > _LONGEST_LINE:
            self.send_error(414)
        elif self.path == "/metrics":
            self._send(generate_latest(self.server.registry), CONTENT_TYPE_LATEST)
        elif self.path == "/healthz":
            self._send(b"ok\n", _TEXT)
        elif self.path == "/readyz":
            if observing.is_draining():
                self._send(b"draining\n", _TEXT, status=503)
            else:
                self._send(b"ok\n", _TEXT)
        else:
            self.send_error(404, "only /metrics, /healthz and /readyz are served")

    def _send(self, data: bytes, kind: str, *, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:
        """Scrapes are not logged."""
