"""Private retrieval from two servers: neither learns which or how many rows a device needs, unless both collude.

::

    device                              leader                       helper
    query(keys, shape) -> leader's ---> answer(database, ..)
                          helper's -----------(sealed)-------------> answer(database, .., pad_seed=..)
    recover(secret, reply) <----------- combine(own, helper's) <----------------'

The helper's request and the pad's seed have to be sealed to the helper: a server that reads both requests reads the
keys. Then the leader may carry the helper's messages.

What holds, for any keys and for the two servers of which at least one is honest:

- A request is random bytes of a length that follows from the shape alone. Every query asks every bucket once; keys are
  made distinct first, and an unused bucket is asked for a row that nobody looks at.
- A server's answer touches addresses that follow from the shape alone, and has a fixed length.
- The helper's answer is one-time padded, with a stream from a seed that only device and helper know. The leader, which
  carries it, learns nothing of the rows from it.
- ``recover`` gives the rows of the table whose cap is in the shape, or raises ``WrongRowsError``. A lying server can
  add to the XOR of both answers a difference that it chooses before it knows anything about the keys. Records are
  valid in one form only (``records``), and all buckets are checked, so ``recover`` fails exactly where that difference
  is not zero, whatever the keys were. A failure of a device therefore reveals to a server only that a server lied, not
  which one.
- The pad depends on the shape, cap included, as its owner sees it. A device may therefore take the shape from the
  leader alone: had the leader another one than an honest helper, every ``recover`` would fail.

What a device has to see to: the shape's table hash, rows and bytes per row are those of the signed manifest, its keys
those of the task. And the seed is not of the servers' free choice, but a function of the manifest or the round: who
searches 2^30 seeds may find one that leaves a row of one suspected set of keys without a bucket, a failure of its own.

What does not hold: nothing, if the servers collude. A server can always refuse to answer. A device must ask for a
fresh query after a failure, never send one twice to other servers. Whether a query met the layout's failure
(``shape``: rarer than 2^-40) shows in ``Secret.placed`` only, and not in what is sent: the device does
without those rows.

Sources: Boyle, Gilboa, Ishai 2016 (the function shares); Chor et al. 1995 (the scan); Angel et al. 2018 (batching);
Colombo et al. 2023 (integrity of the answer); distributed_point_functions' leader and helper (the pad).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from odp.crypto.domains import PIR_PAD
from odp.crypto.pir import dpf, records, scanning
from odp.crypto.pir.dpf import RandomBytes
from odp.crypto.pir.records import WrongRowsError
from odp.crypto.pir.shape import Shape
from odp.errors import ConfigurationError

__all__ = [
    "PAD_SEED_BYTES",
    "Database",
    "RequestError",
    "Secret",
    "WrongRowsError",
    "answer",
    "answer_many",
    "combine",
    "query",
    "recover",
    "reply_bytes",
    "request_bytes",
]

UInt8Array = npt.NDArray[np.uint8]

#: Length of the seed of the pad.
PAD_SEED_BYTES = 32

_VERSION = 1
_LEADER, _HELPER = 0, 1
_HEADER_BYTES = 2 + 32


class RequestError(ConfigurationError):
    """A request is not one for this table: of another length, version, role or shape. Nothing was computed."""


@dataclass(frozen=True)
class Database:
    """A server's copy of a table, prepared for scans; leader and helper prepare the same.

    Memory: about (row + 16 hashes' bytes at most, to a multiple of 64) + 24 bytes per row.
    """

    shape: Shape
    records: npt.NDArray[np.uint64] = field(repr=False)
    buckets: npt.NDArray[np.uint16] = field(repr=False)
    bits: npt.NDArray[np.uint32] = field(repr=False)

    @classmethod
    def of(
        cls,
        rows: npt.NDArray[np.float32] | UInt8Array,
        *,
        keys: int,
        seed: bytes,
        table_sha256: bytes,
    ) -> Database:
        """Prepares ``rows``.

        Args:
            rows: float32 (little-endian) or uint8 [rows, width], neither empty.
            keys: most different rows of one query, 1 .. 512.
            seed: 32 public bytes, the same for both servers.
            table_sha256: 32 bytes, the hash of the table in the signed manifest; trusted here, not computed.

        Raises:
            ConfigurationError: a shape, type or length is wrong.
        """
        plain = records.plain_rows(rows)
        padded, cap = records.build(plain, table_sha256)
        shape = Shape(len(plain), plain.shape[1], keys, seed, table_sha256, cap)
        cells = shape.layout.cells(np.arange(shape.rows))
        share_bits = 8 * _share_bytes(shape)
        return cls(
            shape,
            padded.view(np.uint64).reshape(shape.rows, -1, 8),
            cells[:, :, 0].astype(np.uint16),
            (cells[:, :, 0] * share_bits + cells[:, :, 1]).astype(np.uint32),
        )


@dataclass(frozen=True)
class Secret:
    """The device's secret part of a query; only ``pad_seed`` leaves it, sealed to the helper.

    ``numbers``: the row that every bucket was asked for, -1 for none. ``wanted``: the bucket of every key, -1 for none.
    """

    shape: Shape
    pad_seed: bytes = field(repr=False)
    numbers: npt.NDArray[np.int64] = field(repr=False)
    wanted: npt.NDArray[np.int64] = field(repr=False)
    helper_sha256: bytes = field(repr=False)

    @property
    def placed(self) -> npt.NDArray[np.bool_]:
        """The keys that were queried, bool [keys]: all, except after the layout's failure."""
        return self.wanted >= 0


def query(
    keys: Sequence[int] | npt.NDArray[np.integer], shape: Shape, random_bytes: RandomBytes = secrets.token_bytes
) -> tuple[bytes, bytes, Secret]:
    """Requests for the leader and the helper, and the secret part.

    Args:
        keys: up to ``shape.keys`` different row numbers; more than once the same is fine, and so is none at all.
        shape: of the table.
        random_bytes: a cryptographic source; a fixed stream in a test.

    Raises:
        ConfigurationError: a key is out of range, or there are too many.
    """
    rows, inverse = shape.distinct(keys)
    layout = shape.layout
    assigned, places = layout.assign(rows)
    taken = assigned >= 0
    numbers = layout.first_rows()
    numbers[taken] = rows[assigned[taken]]
    bucket_of = np.full(len(rows), -1, dtype=np.int64)
    bucket_of[assigned[taken]] = np.flatnonzero(taken)
    shares = dpf.generate(places, layout.places, random_bytes=random_bytes)
    leader, helper = (bytes([_VERSION, share.party]) + shape.digest + share.to_bytes() for share in shares)
    pad_seed = random_bytes(PAD_SEED_BYTES)
    return leader, helper, Secret(shape, pad_seed, numbers, bucket_of[inverse], hashlib.sha256(helper).digest())


def answer(database: Database, request: bytes, *, pad_seed: bytes | None, compiled: bool = True) -> bytes:
    """A server's reply: the leader's (``pad_seed`` None), or the helper's under its pad.

    ``compiled`` may use numba where it is installed, for the same bytes: an enclave should not, since numba keeps
    machine code in files.

    Raises:
        RequestError: the request is malformed, for another table, or for the other server.
    """
    return answer_many(database, [(request, pad_seed)], compiled=compiled)[0]


def answer_many(
    database: Database, requests: Sequence[tuple[bytes, bytes | None]], *, compiled: bool = True
) -> list[bytes]:
    """The replies to several (request, pad seed), in one pass over the table; each is that of ``answer``.

    Raises:
        RequestError: one of them is malformed; no reply is computed then.
    """
    shape = database.shape
    opened = [_open(request, pad_seed, shape) for request, pad_seed in requests]
    places, buckets = shape.layout.places, shape.layout.buckets
    shares = np.empty((len(opened), buckets * _share_bytes(shape)), dtype=np.uint8)
    for number, keys in enumerate(opened):
        shares[number] = dpf.evaluate(keys, places).reshape(-1)
    sums = scanning.scan(database.records, database.buckets, database.bits, shares, buckets, compiled=compiled)
    replies = sums.reshape(len(opened), -1).view(np.uint8)
    return [
        reply.tobytes() if pad_seed is None else _xor(reply, _pad(pad_seed, shape, hashlib.sha256(request).digest()))
        for reply, (request, pad_seed) in zip(replies, requests, strict=True)
    ]


def combine(leader_reply: bytes, helper_reply: bytes) -> bytes:
    """The leader's reply to the device: both replies in one of the same length; still under the pad.

    Raises:
        ConfigurationError: the replies have different lengths.
    """
    if len(leader_reply) != len(helper_reply):
        raise ConfigurationError(
            f"Expected a helper's reply of {len(leader_reply)} bytes like the leader's, got {len(helper_reply)}"
        )
    return _xor(np.frombuffer(leader_reply, dtype=np.uint8), helper_reply)


def recover(secret: Secret, reply: bytes) -> UInt8Array:
    """The rows of the keys that were placed, in their order: uint8 [k, row_bytes]; ``view("<f4")`` gives floats.

    Raises:
        WrongRowsError: the reply is not that of two honest servers; see the module for what a failure reveals.
    """
    shape = secret.shape
    if len(reply) != reply_bytes(shape):
        raise WrongRowsError(f"Expected a reply of {reply_bytes(shape)} bytes, got {len(reply)}")
    pad = _pad(secret.pad_seed, shape, secret.helper_sha256)
    buckets = np.frombuffer(_xor(np.frombuffer(reply, dtype=np.uint8), pad), dtype=np.uint8)
    buckets = buckets.reshape(shape.layout.buckets, shape.record_bytes)
    records.check(
        buckets,
        secret.numbers.tolist(),
        rows=shape.rows,
        row_bytes=shape.row_bytes,
        table=shape.table_sha256,
        cap=shape.cap,
    )
    return buckets[secret.wanted[secret.placed], : shape.row_bytes]


def request_bytes(shape: Shape) -> int:
    """Length of every request, for either server."""
    return _HEADER_BYTES + shape.layout.buckets * dpf.key_bytes(shape.layout.places)


def reply_bytes(shape: Shape) -> int:
    """Length of every reply, alone or combined."""
    return shape.layout.buckets * shape.record_bytes


def _open(request: bytes, pad_seed: bytes | None, shape: Shape) -> dpf.Keys:
    party = _LEADER if pad_seed is None else _HELPER
    if pad_seed is not None and len(pad_seed) != PAD_SEED_BYTES:
        raise RequestError(f"Expected a pad seed of {PAD_SEED_BYTES} bytes, got {len(pad_seed)}")
    if len(request) != request_bytes(shape):
        raise RequestError(f"Expected a request of {request_bytes(shape)} bytes for this table, got {len(request)}")
    if request[0] != _VERSION:
        raise RequestError(f"Expected a request of version {_VERSION}, got version {request[0]}")
    if request[1] != party:
        raise RequestError("the request is for the other server: the helper, and only it, needs a pad's seed")
    if request[2:_HEADER_BYTES] != shape.digest:
        raise RequestError("the request is for another table, version or layout: fetch the shape again")
    try:
        return dpf.Keys.from_bytes(
            request[_HEADER_BYTES:], party=party, count=shape.layout.buckets, size=shape.layout.places
        )
    except ConfigurationError as error:
        raise RequestError(str(error)) from None


def _pad(seed: bytes, shape: Shape, helper_sha256: bytes) -> bytes:
    """A stream as long as a reply, of one seed, shape and request: no two answers of a helper share one."""
    key = hmac.digest(seed, PIR_PAD + shape.digest + helper_sha256, "sha256")
    return Cipher(AES(key), CTR(bytes(16))).encryptor().update(bytes(reply_bytes(shape)))


def _xor(data: UInt8Array, other: bytes) -> bytes:
    return np.bitwise_xor(data, np.frombuffer(other, dtype=np.uint8)).tobytes()


def _share_bytes(shape: Shape) -> int:
    """Bytes of one bucket's evaluated share."""
    return -(-shape.layout.places // 128) * 16
