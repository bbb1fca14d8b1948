"""Certificates that expire: a program warns in time, and loads new ones while it runs.

Whoever issues certificates replaces the files. The next handshake, of a caller or to another program, shows the new
one; until both files fit together, the old one is shown. A certificate of the development CA is replaced by the program
itself. The CA is not: others pin it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import grpc

from odp.errors import ConfigurationError, StateError
from odp.transport.logs import Log
from odp.transport.sweeping import Sweeping
from odp.transport.tls import WARN_SECONDS, TlsIdentity, ends_at, utc

_DAY = 86_400.0


class Renewal:
    """The newest identity of a program's files. Thread-safe."""

    def __init__(self, identity: TlsIdentity) -> None:
        self._lock = threading.Lock()
        self._identity = identity
        self._stamp = identity.stamp()

    def newer(self) -> TlsIdentity | None:
        """The identity, if the files changed since the last call and fit together; None otherwise."""
        with self._lock:
            if (stamp := self._identity.stamp()) == self._stamp or self._identity.source is None:
                return None
            try:
                identity = self._identity.source()
            except (ConfigurationError, StateError):
                return None  # half of it is written, or it is wrong: what is shown is better than nothing
            self._stamp, self._identity = stamp, identity
            return identity


def server_credentials(identity: TlsIdentity, callers_ca: bytes | None) -> grpc.ServerCredentials:
    """Credentials of a listener: each handshake uses the current files; with a CA, callers need a certificate."""

    def configuration(shown: TlsIdentity) -> Any:
        return grpc.ssl_server_certificate_configuration([(shown.key_pem, shown.certificate_pem)], callers_ca)

    renewal = Renewal(identity)

    def fetch() -> Any:
        identity_now = renewal.newer()
        return None if identity_now is None else configuration(identity_now)

    return grpc.dynamic_ssl_server_credentials(
        configuration(identity), fetch, require_client_authentication=callers_ca is not None
    )


class RenewedChannel(grpc.Channel):
    """A channel that calls with the newest certificate: it reconnects after a change."""

    def __init__(self, identity: TlsIdentity, open_as: Callable[[TlsIdentity], grpc.Channel]) -> None:
        self._renewal = Renewal(identity)
        self._open_as = open_as
        self._lock = threading.Lock()
        self._channel = open_as(identity)
        # Its calls may be under way: it is closed when yet another one takes its place.
        self._before: grpc.Channel | None = None

    def current(self) -> grpc.Channel:
        """The channel for the next call."""
        identity = self._renewal.newer()
        with self._lock:
            if identity is not None:
                if self._before is not None:
                    self._before.close()
                self._before, self._channel = self._channel, self._open_as(identity)
            return self._channel

    def _method(self, kind: str, path: str, *arguments: Any, **named: Any) -> Any:
        return lambda *positional, **options: getattr(self.current(), kind)(path, *arguments, **named)(
            *positional, **options
        )

    def unary_unary(self, *arguments: Any, **named: Any) -> Any:
        """See ``grpc.Channel``, as the others."""
        return self._method("unary_unary", *arguments, **named)

    def unary_stream(self, *arguments: Any, **named: Any) -> Any:
        return self._method("unary_stream", *arguments, **named)

    def stream_unary(self, *arguments: Any, **named: Any) -> Any:
        return self._method("stream_unary", *arguments, **named)

    def stream_stream(self, *arguments: Any, **named: Any) -> Any:
        return self._method("stream_stream", *arguments, **named)

    def subscribe(self, callback: Any, try_to_connect: bool = False) -> None:
        self.current().subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Any) -> None:
        self.current().unsubscribe(callback)

    def close(self) -> None:
        """Ends all calls. Idempotent."""
        with self._lock:
            for channel in (self._before, self._channel):
                if channel is not None:
                    channel.close()

    def __enter__(self) -> RenewedChannel:
        return self

    def __exit__(self, *_: object) -> bool | None:
        self.close()
        return None


def watch(identity: TlsIdentity, log: Log, *, clock: Callable[[], float] = time.time) -> Sweeping:
    """Warns, now and every day, of certificates that expire within 30 days; renews those of the development CA."""
    return Sweeping(lambda: look(identity, log, now=clock()), log, every=_DAY)


def look(identity: TlsIdentity, log: Log, *, now: float) -> None:
    """One check of ``watch``. Raises StateError if a certificate cannot be replaced."""
    newest = identity
    if identity.source is not None:
        try:
            newest = identity.source()
        except ConfigurationError as error:
            log.warning("certificate_unusable", reason=str(error))
    for name, pem in (("certificate", newest.certificate_pem), ("ca", newest.ca_pem)):
        ends = ends_at(pem)
        if ends - now < WARN_SECONDS:
            days = max(0, int((ends - now) // _DAY))
            log.warning(f"{name}_expires", file=str(newest.files.get(name, "given")), at=utc(ends), days=days)
