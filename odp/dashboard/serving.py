"""Serves the control room: on loopback, or with TLS, within limits of connections and time."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from odp.dashboard.doors import Doors, Guard
from odp.dashboard.poller import Poller
from odp.dashboard.site import make_app
from odp.errors import ConfigurationError

#: Connections at a time; seconds until one has sent a whole request, and for which one without any is kept.
MOST_CONNECTIONS, FIRST_SECONDS, KEEP_SECONDS = 128, 10.0, 5
# For uvicorn a connection counts until the loop has closed it, and beyond this it sends newcomers away.
_MOST_OPEN = 16 * MOST_CONNECTIONS
_LONGEST_HEAD = 16 * 2**10


@dataclass(frozen=True)
class Place:
    """Where the page is served.

    Attributes:
      host: an address of this machine.
      port: 0 takes a free one.
      names: further names that browsers use for this machine.
      certificate, key: PEM files; without them, plain HTTP.
      insecure: whether plain HTTP may leave this machine.
    """

    host: str = "127.0.0.1"
    port: int = 0
    names: tuple[str, ...] = ()
    certificate: Path | None = None
    key: Path | None = None
    insecure: bool = False

    def check(self) -> None:
        """Raises ConfigurationError unless the page stays on this machine, or travels under TLS."""
        if (self.certificate is None) != (self.key is None):
            raise ConfigurationError("Expected --certificate and --key together")
        for file in (self.certificate, self.key):
            if file is not None and not file.is_file():
                raise ConfigurationError(f"cannot read {file}; check the path")
        try:
            local = ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            raise ConfigurationError(f"Expected --host={self.host!r} to be an IP address of this machine") from None
        if not local and self.certificate is None and not self.insecure:
            raise ConfigurationError(
                f"refuses to serve {self.host} without TLS: the page and its token would travel in clear; give "
                "--certificate and --key, use an SSH tunnel to 127.0.0.1, or state --without-tls"
            )

    def origins(self, port: int) -> frozenset[str]:
        """The origins that browsers may see the page under."""
        scheme = "http" if self.certificate is None else "https"
        address = ipaddress.ip_address(self.host)
        host = f"[{self.host}]" if address.version == 6 else self.host
        names = {host, *self.names} | ({"localhost"} if address.is_loopback else set())
        default = 443 if self.certificate is not None else 80
        return frozenset(f"{scheme}://{name}" if port == default else f"{scheme}://{name}:{port}" for name in names)


class _Protocol(H11Protocol):
    """Closes connections that hold their place without a use of it, which uvicorn itself keeps without end.

    - Each request is whole within ``FIRST_SECONDS`` of the one before, or of the connection's start.
    - An answer is read: what waits to be sent becomes less within that time.
    - Where all places are taken, a newcomer gets that of whoever has been waited for longest.
    """

    def connection_made(self, transport: Any) -> None:
        """Starts the clock, and makes way."""
        super().connection_made(transport)
        self._loop = asyncio.get_running_loop()
        self._unsent = 0
        self._begin()
        held = [each for each in self.connections if isinstance(each, _Protocol) and not each.transport.is_closing()]
        if len(held) > MOST_CONNECTIONS:
            waited_for = [each for each in held if each.is_waited_for()]
            min(waited_for, key=lambda each: (each is self, each.since)).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the clock."""
        self._late.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Starts the clock of the next request."""
        self._late.cancel()
        self._begin()
        super().on_response_complete()

    def is_waited_for(self) -> bool:
        """Whether a request, or its rest, has to come from the other side."""
        cycle: Any = self.cycle  # None before the first request, whatever its annotation says
        return cycle is None or cycle.response_complete or self.conn.their_state is h11.SEND_BODY

    def _begin(self) -> None:
        self.since = self._loop.time()
        self._late = self._loop.call_later(FIRST_SECONDS, self._close_if_idle)

    def _close_if_idle(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        if self.is_waited_for() or 0 < self._unsent <= unsent:
            self.transport.abort()
            return
        self._unsent = unsent
        self._late = self._loop.call_later(FIRST_SECONDS, self._close_if_idle)


class ControlRoom:
    """A running control room. ``origin`` is its address without the token."""

    def __init__(self, poller: Poller, place: Place, *, token: str, server: str, may_change: bool) -> None:
        """Listens. Raises ConfigurationError where it cannot."""
        place.check()
        self._poller = poller
        family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((place.host, place.port))
        except OSError as error:
            self._socket.close()
            where = f"{place.host}:{place.port}"
            raise ConfigurationError(f"cannot listen on {where}: {error.strerror}; take another --port") from error
        port = self._socket.getsockname()[1]
        origins = place.origins(port)
        self.origin = next(origin for origin in sorted(origins) if "localhost" not in origin)
        self.url = f"{self.origin}/?token={token}"
        app: Guard = make_app(poller, Doors(token, origins=origins), server=server, may_change=may_change)
        try:
            config = uvicorn.Config(
                app, http=_Protocol, ws="none", loop="asyncio", lifespan="on", log_config=None, access_log=False,
                server_header=False, date_header=False, proxy_headers=False, limit_concurrency=_MOST_OPEN,
                timeout_keep_alive=KEEP_SECONDS, timeout_graceful_shutdown=1,
                h11_max_incomplete_event_size=_LONGEST_HEAD,
                ssl_certfile=place.certificate, ssl_keyfile=None if place.key is None else str(place.key),
            )  # fmt: skip
            config.load()
        except (OSError, ValueError) as error:
            self._socket.close()
            raise ConfigurationError(f"cannot use --certificate and --key: {error}") from error
        # From here on connections wait until the server's thread takes them.
        self._socket.listen(MOST_CONNECTIONS)
        self._server = uvicorn.Server(config)
        # A reader that goes away in the middle is no error, and addresses are secrets.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="control-room"
        )
        self._thread.start()

    def stop(self) -> None:
        """Stops serving. Idempotent."""
        self._poller.end_streams()
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()
