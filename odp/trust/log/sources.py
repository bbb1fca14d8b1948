"""The sources of a log for an auditor: the files of a folder, or a running server. Neither is trusted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import grpc

from odp._system.posix import fcntl
from odp.crypto.note import LARGEST_NOTE, Note
from odp.errors import ConfigurationError, OdpError, ServiceError
from odp.transport.channel import LONG_DEADLINE, SHORT_DEADLINE, call, read_stream
from odp.trust.log import merkle
from odp.trust.log.checkpoint import Checkpoint
from odp.trust.log.client import PAGE
from odp.trust.log.entries import LARGEST_ENTRY
from odp.trust.log.log_files import CHECKPOINT, ENTRIES, HASHES, LENGTH_BYTES
from odp.trust.log.released_values import VALUES, stored_pieces
from odp.v1 import log_pb2, log_pb2_grpc

_PAGE = 256


class AuditFailure(OdpError):
    """A record of a log is wrong: ``record`` names it, ``reason`` explains."""

    def __init__(self, record: str, reason: str) -> None:
        super().__init__(f"{record}: {reason}")
        self.record = record
        self.reason = reason


class LogSource(Protocol):
    """The data for an audit."""

    def note(self) -> bytes:
        """The newest checkpoint."""

    def entries(self, size: int) -> Iterator[bytes]:
        """The first ``size`` entries. Raises AuditFailure if they are missing."""

    def stored_hashes(self, size: int) -> Sequence[bytes] | None:
        """The stored hashes of the tree for ``size`` entries; None if the source keeps none of its own."""

    def values(self, sha256: bytes) -> Iterator[bytes] | None:
        """The integers of a release that has their hash alone, in pieces; None if the source keeps none of any."""

    def is_written(self) -> bool:
        """Whether a server may be appending at this moment, and witnesses be about to cosign."""


class LogFolder:
    """The files of ``odp.trust.log.log_files``, also while a program writes them.

    A log only grows, and its checkpoint is written last. So what lies behind the entries of one checkpoint is of no
    concern where a program has the log open: it may be under way. Where none has, it is a finding.
    """

    def __init__(self, folder: Path) -> None:
        """Raises ConfigurationError if the folder has no log."""
        self._folder = folder
        for name in (ENTRIES, HASHES, CHECKPOINT):
            if not (folder / name).is_file():
                raise ConfigurationError(f"{folder} holds no log: there is no file {name!r} in it")

    def note(self) -> bytes:
        with (self._folder / CHECKPOINT).open("rb") as file:
            return file.read(LARGEST_NOTE + 1)

    def entries(self, size: int) -> Iterator[bytes]:
        with (self._folder / ENTRIES).open("rb") as file:
            for number in range(size):
                length = int.from_bytes(file.read(LENGTH_BYTES), "big")
                data = file.read(length) if 0 < length <= LARGEST_ENTRY else b""
                if not data or len(data) != length:
                    raise AuditFailure(f"entry {number}", "its length is damaged, or the file ends within it")
                yield data
            if file.read(1) and not self._has_grown(size):
                raise AuditFailure(
                    "file 'entries'",
                    f"no checkpoint covers the bytes behind entry {size - 1}: somebody added them, or the server ended "
                    "while it wrote, and cuts them off when it starts again",
                )

    def stored_hashes(self, size: int) -> Sequence[bytes]:
        data = (self._folder / HASHES).read_bytes()
        wanted = merkle.HASH_BYTES * merkle.stored_hashes(size)
        if len(data) < wanted or (len(data) > wanted and not self._has_grown(size)):
            raise AuditFailure("file 'hashes'", f"it has {len(data)} bytes where a tree of {size} entries has {wanted}")
        return [data[start : start + merkle.HASH_BYTES] for start in range(0, wanted, merkle.HASH_BYTES)]

    def values(self, sha256: bytes) -> Iterator[bytes] | None:
        """See ``LogSource``: a copy of the log alone has none."""
        folder = self._folder / VALUES
        return stored_pieces(folder, sha256) if folder.is_dir() else None

    def is_written(self) -> bool:
        """See ``LogSource``: a server holds the lock of its log for as long as it lives."""
        with (self._folder / ENTRIES).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            except ConfigurationError:  # a system without servers
                return False
        return False

    def _has_grown(self, size: int) -> bool:
        """Whether bytes behind the first ``size`` entries may be of a program that appends, or appended since."""
        return self.is_written() or size != Checkpoint.from_body(Note.parse(self.note()).body).size


class LogServer:
    """A ``LogService`` over gRPC. Raises ServiceError if it does not answer."""

    def __init__(self, channel: grpc.Channel, address: str) -> None:
        self._stub = log_pb2_grpc.LogServiceStub(channel)
        self._address = address

    def note(self) -> bytes:
        reply = call(
            self._stub.GetCheckpoint,
            log_pb2.GetCheckpointRequest(),
            timeout=SHORT_DEADLINE,
            what="read the log's checkpoint",
            address=self._address,
        )
        return reply.checkpoint

    def entries(self, size: int) -> Iterator[bytes]:
        done = 0
        while done < size:
            reply = call(
                self._stub.GetEntries,
                log_pb2.GetEntriesRequest(start=done, count=min(_PAGE, size - done)),
                timeout=LONG_DEADLINE,
                what="read the log's entries",
                address=self._address,
            )
            page = reply.entries[: size - done]
            if not page:
                raise AuditFailure(f"entry {done}", "the server does not return it")
            yield from page
            done += len(page)

    def leaves(self, size: int) -> list[bytes]:
        """The leaf hashes of the first ``size`` entries. Raises ServiceError if the server does not return them."""
        packed, wanted = b"", merkle.HASH_BYTES * size
        while len(packed) < wanted:
            start = len(packed) // merkle.HASH_BYTES
            reply = call(
                self._stub.GetHashes,
                log_pb2.GetHashesRequest(level=0, start=start, count=min(PAGE, size - start)),
                timeout=LONG_DEADLINE,
                what="read the log's hashes",
                address=self._address,
            )
            if not reply.hashes:
                raise ServiceError(f"{self._address} returns {start} of the {size} hashes of its log")
            packed += reply.hashes
        return [packed[at : at + merkle.HASH_BYTES] for at in range(0, wanted, merkle.HASH_BYTES)]

    def stored_hashes(self, size: int) -> None:
        return

    def is_written(self) -> bool:
        return True

    def values(self, sha256: bytes) -> Iterator[bytes]:
        what = "read the values of a release"
        request = log_pb2.GetValuesRequest(values_sha256=sha256)
        replies: Iterator[log_pb2.GetValuesResponse] = call(
            self._stub.GetValues, request, timeout=LONG_DEADLINE, what=what, address=self._address
        )
        return (reply.chunk for reply in read_stream(replies, what=what, address=self._address))
