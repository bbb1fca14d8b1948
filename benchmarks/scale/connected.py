"""A program that holds many TLS connections of gRPC to one address, each of which made one call that was answered.

``python -m benchmarks.scale.connected ADDRESS CA METHOD REQUEST`` opens as many further connections as each line of its
stdin says, and then writes their number. ``METHOD`` is a unary one, ``REQUEST`` its message in hex.

A connection of gRPC's own client costs several hundred kilobytes and threads of its own, so that 10,000 of them would
measure the clients. Here each is a socket. All of them send the same bytes: the preface of HTTP/2, its settings and one
request, whose headers need no compression table. Of what comes back, frames are read, and headers are not.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent import futures

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GO_AWAY = 0, 1, 3, 4, 6, 7
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_FRAME_HEADER = 9
_THREADS = 8
_SECONDS = 60.0


class Connection:
    """One connection, after a call that was answered. Raises OSError where it was not."""

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext, request: bytes) -> None:
        plain = socket.create_connection(address, timeout=_SECONDS)
        self.socket = context.wrap_socket(plain, server_hostname=address[0])
        self._read = b""
        if self.socket.selected_alpn_protocol() != "h2":
            raise OSError("the server does not agree on HTTP/2")
        self.socket.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, b"") + request)
        answered = False
        while True:
            for kind, flags in self._frames(self.socket.recv(65536)):
                answered |= kind == _DATA
                if kind in (_RESET, _GO_AWAY):
                    raise OSError("the server ended the call or the connection")
                if kind == _HEADERS and flags & _END_STREAM:
                    if not answered:
                        raise OSError("the server refused the call")
                    return

    def attend(self) -> bool:
        """Answers what came; False once the server closed the connection."""
        try:
            while read := self.socket.recv(65536):
                if any(kind == _GO_AWAY for kind, _ in self._frames(read)):
                    return False
        except (ssl.SSLWantReadError, BlockingIOError):
            return True
        except OSError:
            return False
        return False

    def _frames(self, read: bytes) -> Iterator[tuple[int, int]]:
        """(type, flags) of all whole frames; pings and settings are answered."""
        if not read:
            raise OSError("the server closed the connection")
        self._read += read
        while len(self._read) >= _FRAME_HEADER:
            high, low, kind, flags, _stream = struct.unpack(">BHBBI", self._read[:_FRAME_HEADER])
            end = _FRAME_HEADER + (high << 16) + low
            if len(self._read) < end:
                return
            payload, self._read = self._read[_FRAME_HEADER:end], self._read[end:]
            if kind == _PING and not flags & _ACK:
                self.socket.sendall(_frame(_PING, _ACK, 0, payload))
            elif kind == _SETTINGS and not flags & _ACK:
                self.socket.sendall(_frame(_SETTINGS, _ACK, 0, b""))
            yield kind, flags


class Attendant:
    """Answers the pings of connections, in a thread of its own."""

    def __init__(self) -> None:
        self.lost = 0
        self._poll = select.epoll()
        self._held: dict[int, Connection] = {}
        threading.Thread(target=self._run, daemon=True).start()

    def hold(self, connection: Connection) -> None:
        """Takes over a connection."""
        connection.socket.setblocking(False)
        descriptor = connection.socket.fileno()
        self._held[descriptor] = connection
        self._poll.register(descriptor, select.EPOLLIN)

    def _run(self) -> None:
        while True:
            for descriptor, _ in self._poll.poll(1.0):
                if not self._held[descriptor].attend():
                    self._poll.unregister(descriptor)
                    self.lost += 1


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">BHBBI", len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


def call_of(method: str, message: bytes, authority: str) -> bytes:
    """The frames of a unary call: headers as literals beside the static table of HPACK (RFC 7541), and one message."""

    def text(value: str) -> bytes:
        return bytes([len(value)]) + value.encode("ascii")  # at most 126 characters, uncompressed

    headers = b"".join(
        (
            b"\x83\x87",  # :method POST, :scheme https
            b"\x04" + text(method),
            b"\x01" + text(authority),
            b"\x0f\x10" + text("application/grpc"),
            b"\x00" + text("te") + text("trailers"),
        )
    )
    body = struct.pack(">BI", 0, len(message)) + message
    return _frame(_HEADERS, _END_HEADERS, 1, headers) + _frame(_DATA, _END_STREAM, 1, body)


def main(arguments: Sequence[str]) -> int:
    """Holds connections; see the module."""
    host, _, port = arguments[0].rpartition(":")
    context = ssl.create_default_context(cafile=arguments[1])
    context.set_alpn_protocols(["h2"])
    request = call_of(arguments[2], bytes.fromhex(arguments[3]), arguments[0])
    attendant = Attendant()

    def connect(_: int) -> None:
        attendant.hold(Connection((host, int(port)), context, request))

    with futures.ThreadPoolExecutor(_THREADS) as pool:
        for line in sys.stdin:
            count = int(line)
            try:
                for _ in pool.map(connect, range(count)):
                    pass
            except OSError as error:
                print(f"failed: {error}", flush=True)
                return 1
            print(count - attendant.lost, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
