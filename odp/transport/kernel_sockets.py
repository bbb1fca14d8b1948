"""The TCP connections of a listener as the kernel sees them: their peers and bytes; how to end them, and drop new ones.

gRPC accepts connections and ends TLS itself, and shows a program neither. The descriptors are this process's own, so
the kernel answers for each: what arrived on it, whichever layer it waits in now. Linux only.
"""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import os
import socket
import stat
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from odp.transport.fairness import peer_name

_DESCRIPTORS = "/proc/self/fd"
# Of struct tcp_info (linux/tcp.h): the state, and the 64-bit counts of bytes that the peer acknowledged and sent.
_STATE, _COUNTS, _SIZE = 0, 120, 136
_CLOSED, _LISTENING = 7, 10
_WILDCARDS = frozenset({"0.0.0.0", "::"})  # compared, not bound

# Classic BPF: load a byte or a word, and, jump, compare, return.
_LOAD_BYTE, _LOAD_WORD, _AND, _JUMP, _EQUAL, _RETURN = 0x30, 0x20, 0x54, 0x05, 0x15, 0x06
_NETWORK_HEADER = 0xFFF00000  # SKF_NET_OFF: offsets from here are into the IP header, others into the TCP header
_FLAGS_BYTE, _SYN, _SYN_ACK = 13, 0x02, 0x12
_VERSION_MASK, _VERSION_6, _SOURCE_4, _SOURCE_6 = 0xF0, 0x60, 12, 8
_PASS, _DROP = (_RETURN, 0, 0, 0xFFFFFFFF), (_RETURN, 0, 0, 0)
_ATTACH_FILTER, _DETACH_FILTER = 26, 27
_Instruction = tuple[int, int, int, int]
#: The addresses that a filter holds; the kernel takes 4096 instructions, and an address costs up to five.
MOST_DROPPED = 512

# Sockets are locked while gRPC reads them: a call that waits for one must not hold the interpreter's lock.
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What has passed over one connection.

    Attributes:
      id: the kernel's number of the socket; another connection never has it at the same time.
      peer: the caller as gRPC names it, ``ipv4:127.0.0.1:40312``.
      received: bytes from the caller.
      acknowledged: bytes that the caller has received.
    """

    id: int
    peer: str
    received: int
    acknowledged: int


class KernelSockets:
    """The sockets of this process that belong to the listener at ``host:port``. For one thread.

    Raises ConfigurationError where ``host`` has no address.
    """

    def __init__(self, host: str, port: int) -> None:
        self._port = port
        self._addresses = _addresses_of(host)
        # By number of the socket: the peer; "" for sockets of others, and None for a listening one.
        self._peers: dict[int, str | None] = {}
        self._descriptors: dict[int, int] = {}
        self._info = ctypes.create_string_buffer(_SIZE)
        self._length = ctypes.c_uint32(_SIZE)

    def connections(self) -> list[Traffic]:
        """Every connection that is open now, but those that closed or could not be looked at meanwhile.

        Raises OSError where the descriptors of this process cannot be listed.
        """
        present: dict[int, str | None] = {}
        self._descriptors = {}
        open_now = []
        for name in os.listdir(_DESCRIPTORS):  # noqa: PTH208  # names alone, and often
            descriptor = int(name)
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISSOCK(status.st_mode):
                    continue
                id = status.st_ino
                peer = present[id] = self._peers[id] if id in self._peers else self._peer(descriptor)
                if peer == "":
                    continue
                self._descriptors[id] = descriptor
                if peer is not None and (counts := self._counts(descriptor)) is not None:
                    open_now.append(Traffic(id, peer, *counts))
            except OSError:  # closed meanwhile, or the system has nothing left: the next look tries it again
                continue
        self._peers = present
        return open_now

    def descriptors(self) -> int:
        """The number of descriptors of this process, of whatever kind; 0 where they cannot be listed."""
        try:
            # Since Linux 6.2, the folder's size is their number, which costs a tenth of a list of them.
            return os.stat(_DESCRIPTORS).st_size or len(os.listdir(_DESCRIPTORS))  # noqa: PTH116, PTH208  # often
        except OSError:
            return 0

    def abort(self, id: int) -> None:
        """Ends a connection at once: the caller gets a reset, and what waits in the kernel is dropped.

        A shutdown would leave gRPC to read what had already arrived. Raises OSError where the process may open no
        further descriptor.
        """
        copy = self._copy(id)
        if copy is not None:
            with copy:
                _libc.connect(copy.fileno(), bytes(16), 16)  # to no address (AF_UNSPEC): disconnects

    def drop_new(self, addresses: Iterable[str]) -> int:
        """From now on the kernel drops new connections from the first of ``addresses``, and no others.

        They are ``MOST_DROPPED`` at most, and fewer where the kernel has no memory for them; returns their number. An
        IPv6 address stands for its /64. Open connections stay. Raises OSError where the kernel refuses for another
        reason; then the call changed nothing, or not all listening sockets.
        """
        first = list(addresses)[:MOST_DROPPED]
        numbers = []
        for id, peer in self._peers.items():
            if peer is None and (listening := self._copy(id)) is not None:
                with listening:
                    numbers.append(_drop_first(listening, first))
        return min(numbers, default=0)

    def _copy(self, id: int) -> socket.socket | None:
        """A copy of the socket; None if its descriptor is by now another's, as gRPC closes and opens them."""
        if id not in self._descriptors:
            return None
        try:
            copy = socket.socket(fileno=os.dup(self._descriptors[id]))
        except OSError as error:
            if error.errno in (errno.EBADF, errno.ENOTSOCK):
                return None
            raise
        if os.fstat(copy.fileno()).st_ino == id:
            return copy
        copy.close()
        return None

    def _peer(self, descriptor: int) -> str | None:
        """The peer of a connection to this listener, None for its listening socket, "" for any other socket.

        Raises OSError where the socket closed meanwhile, or could not be looked at.
        """
        state = self._state(descriptor)
        if state is None:
            return ""
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            local_address = copy.getsockname()
            if local_address[1] != self._port or not (self._addresses & {_plain(local_address[0]), *_WILDCARDS}):
                return ""
            if state == _LISTENING:
                return None
            other = copy.getpeername()
        return peer_name(_plain(other[0]), other[1])

    def _state(self, descriptor: int) -> int | None:
        """The TCP state of a socket; None if it is none of TCP. Raises OSError where the kernel does not say."""
        self._length.value = _SIZE
        if _libc.getsockopt(descriptor, socket.IPPROTO_TCP, socket.TCP_INFO, self._info, ctypes.byref(self._length)):
            number = ctypes.get_errno()
            if number in (errno.ENOPROTOOPT, errno.EOPNOTSUPP):
                return None
            raise OSError(number, os.strerror(number))
        return self._info.raw[_STATE] if self._length.value >= _SIZE else None

    def _counts(self, descriptor: int) -> tuple[int, int] | None:
        if self._state(descriptor) in (None, _CLOSED):
            return None
        acknowledged, received = struct.unpack_from("QQ", self._info, _COUNTS)
        return received, acknowledged


def give_memory_back() -> None:
    """Returns memory that was freed to the system; the C library alone would keep it for this process."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)


def _plain(address: str) -> str:
    """An address without its zone; an IPv4 address that came over an IPv6 socket as itself."""
    plain = address.partition("%")[0]
    return plain.removeprefix("::ffff:") if "." in plain else plain


def _addresses_of(host: str) -> frozenset[str]:
    answers = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    addresses = frozenset(_plain(str(entry[4][0])) for entry in answers)
    return _WILDCARDS if addresses & _WILDCARDS else addresses


def _filter(addresses: list[str]) -> list[_Instruction]:
    """Instructions that drop a first packet (SYN) from one of ``addresses``."""
    old: list[_Instruction] = [(_LOAD_WORD, 0, 0, _NETWORK_HEADER + _SOURCE_4)]
    new: list[_Instruction] = []
    for network in map(ipaddress.ip_network, addresses):
        address = int(network.network_address)
        if network.version == 4:
            old += [(_EQUAL, 0, 1, address), _DROP]
            continue
        prefix = address >> 64
        for part, offset, skipped in ((prefix >> 32, 0, 3), (prefix & 0xFFFFFFFF, 4, 1)):
            new += [(_LOAD_WORD, 0, 0, _NETWORK_HEADER + _SOURCE_6 + offset), (_EQUAL, 0, skipped, part)]
        new.append(_DROP)
    return [
        (_LOAD_BYTE, 0, 0, _FLAGS_BYTE), (_AND, 0, 0, _SYN_ACK), (_EQUAL, 1, 0, _SYN), _PASS,
        (_LOAD_BYTE, 0, 0, _NETWORK_HEADER), (_AND, 0, 0, _VERSION_MASK), (_EQUAL, 0, 1, _VERSION_6),
        (_JUMP, 0, 0, len(old) + 1), *old, _PASS, *new, _PASS,
    ]  # fmt: skip


def _drop_first(listening: socket.socket, addresses: list[str]) -> int:
    """Attaches the filter of as many of ``addresses`` as the kernel has memory for (``net.core.optmem_max``)."""
    number = len(addresses)
    while number:
        try:
            _attach(listening, _filter(addresses[:number]))
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
        else:
            return number
        if not _detach(listening):  # the filter of before needs memory, too
            number //= 2
    _detach(listening)
    return 0


def _attach(listening: socket.socket, program: list[_Instruction]) -> None:
    instructions = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))
    described = struct.pack("HP", len(program), ctypes.addressof(instructions))
    listening.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, described)


def _detach(listening: socket.socket) -> bool:
    """Whether there was a filter."""
    try:
        listening.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
        return False
    return True
