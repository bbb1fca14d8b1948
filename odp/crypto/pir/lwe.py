"""Private retrieval from one server, by lattices: no second party, but a long hint per table version.

::

    device                                server
    hint, once per table <--------------- hint(database)
    query(keys, shape) -----------------> answer(database, ..)
    recover(secret, reply, hint) <------------'

The table's bytes are a matrix D of R rows and C columns; a column holds the records of a few consecutive rows. A query
for a column c is q = A s + e + 2^24 u_c modulo 2^32, with a public A [C, 1088], a fresh secret s, small noise e and the
unit vector u_c. The server answers D q; with the hint D A the device takes D A s off, and D e, which is below 2^23, is
rounded away: the bytes of the column are left. For every query of a shape there are ``keys`` such vectors.

What holds, whatever the server does: a query is as hard to tell from random numbers as learning with errors for
dimension 1088, modulus 2^32, uniform secrets and noise of deviation 40. The cheapest of the primal, the dual and the
hybrid dual attack costs 2^132 by the core-SVP model, which counts one call of the cheapest known sieve and nothing else
(``tests/crypto/pir/estimator.py``; the source's 1024 and 6.4 have 2^94 by that model, and 2^128 by one that counts
more). Its length follows from the shape. ``recover`` fails on a wrong row with a probability below 2^-40 per query
(``failure_bound``), checked for the shape. ``answer`` multiplies all of D, so that its addresses follow from the shape.

What does not hold: against a server that lies, rows are checked against the shape's cap only, which has to come from
another source than this server, for example from a second one or the signed manifest. And the server may spoil single
columns: whether a device fails then depends on its keys. Report no failure to the server, and do not ask again because
of one; with two servers, ``two_server`` has no such leak.

Source: Henzinger et al. 2023, "One server for the price of two: simple and fast single-server private information
retrieval", sections 4 and 5; Alkim et al. 2016, "Post-quantum key exchange - a new hope", section 6 (core-SVP); records
as in ``records``.
"""

from __future__ import annotations

import decimal
import functools
import hashlib
import importlib.util
import math
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from odp.crypto.domains import PIR_MATRIX
from odp.crypto.pir import records
from odp.crypto.pir.dpf import RandomBytes
from odp.crypto.pir.records import WrongRowsError
from odp.crypto.pir.shape import Shape
from odp.crypto.pir.two_server import RequestError
from odp.errors import ConfigurationError

__all__ = [
    "DIMENSION",
    "SIGMA",
    "LweDatabase",
    "LweSecret",
    "answer",
    "failure_bound",
    "hint",
    "hint_bytes",
    "query",
    "recover",
    "reply_bytes",
    "request_bytes",
]

UInt8Array = npt.NDArray[np.uint8]
UInt32Array = npt.NDArray[np.uint32]
Int8Array = npt.NDArray[np.int8]

#: Numbers of a secret.
DIMENSION = 1088
#: Standard deviation of the noise, before it is cut off at ten deviations.
SIGMA = 40

_VERSION = 1
_HEADER_BYTES = 1 + 32
_STEP_BITS = 24  # a byte sits in the highest eight of 32 bits
_LARGEST_BYTE = 128  # of a byte read as a signed number
_RAREST_FAILURE = 2.0**-40
_TAIL = 400  # ten deviations: less than 2^-70 lies beyond
_BLOCK = 2**20


@dataclass(frozen=True)
class LweDatabase:
    """A server's copy of a table: ``matrix`` int8 [R, C], its records by columns."""

    shape: Shape
    matrix: Int8Array = field(repr=False)

    @classmethod
    def of(
        cls, rows: npt.NDArray[np.float32] | UInt8Array, *, keys: int, seed: bytes, table_sha256: bytes
    ) -> LweDatabase:
        """Prepares ``rows``; arguments as ``two_server.Database.of``.

        Raises:
            ConfigurationError: a shape, type or length is wrong, or the table too large for ``failure_bound``.
        """
        plain = records.plain_rows(rows)
        stored, cap = records.build(plain, table_sha256)
        shape = Shape(len(plain), plain.shape[1], keys, seed, table_sha256, cap)
        group, columns = _columns(shape)
        padded = np.zeros((columns * group, shape.record_bytes), dtype=np.uint8)
        padded[: shape.rows] = stored
        return cls(shape, np.ascontiguousarray(padded.reshape(columns, -1).T).view(np.int8))


@dataclass(frozen=True)
class LweSecret:
    """What a device keeps of a query, and never sends.

    Attributes:
        secrets: uint32 [DIMENSION, keys].
        columns: int64 [keys], those asked for.
        vectors, places: for every wanted key, which vector and which record of its column answer it.
    """

    shape: Shape
    secrets: UInt32Array = field(repr=False)
    columns: npt.NDArray[np.int64] = field(repr=False)
    vectors: npt.NDArray[np.intp] = field(repr=False)
    places: npt.NDArray[np.int64] = field(repr=False)


def hint(database: LweDatabase) -> bytes:
    """D A, the same for all devices: uint32 little-endian [R, DIMENSION]."""
    found = np.empty((len(database.matrix), DIMENSION), dtype=np.uint32)
    matrix_a = np.concatenate(list(_public_matrix(database.shape)))
    for start in range(0, DIMENSION, 128):
        found[:, start : start + 128] = multiply(database.matrix, matrix_a[:, start : start + 128])
    return found.astype("<u4", copy=False).tobytes()


def query(
    keys: Sequence[int] | npt.NDArray[np.integer], shape: Shape, random_bytes: RandomBytes = secrets.token_bytes
) -> tuple[bytes, LweSecret]:
    """A request, and what to keep; arguments and errors as ``two_server.query``."""
    rows, inverse = shape.distinct(keys)
    group, _ = _columns(shape)
    asked = np.zeros(shape.keys, dtype=np.int64)  # what nobody needs asks for column 0
    asked[: len(rows)] = rows // group
    secret = np.frombuffer(random_bytes(4 * DIMENSION * shape.keys), dtype="<u4").reshape(DIMENSION, shape.keys)
    sent = np.concatenate([_product(block, secret) for block in _public_matrix(shape)])  # [C, keys]
    sent += _noise(sent.shape, random_bytes)
    sent[asked, np.arange(shape.keys)] += np.uint32(1 << _STEP_BITS)
    request = bytes([_VERSION]) + shape.digest + np.ascontiguousarray(sent.T).astype("<u4", copy=False).tobytes()
    return request, LweSecret(shape, secret.astype(np.uint32), asked, inverse, (rows % group)[inverse])


def answer(database: LweDatabase, request: bytes, *, compiled: bool = True) -> bytes:
    """The server's reply: uint32 little-endian [keys, R]. ``compiled`` may use numba where it is installed.

    Raises:
        RequestError: the request is malformed, or for another table.
    """
    shape = database.shape
    if len(request) != request_bytes(shape):
        raise RequestError(f"Expected a request of {request_bytes(shape)} bytes for this table, got {len(request)}")
    if request[0] != _VERSION:
        raise RequestError(f"Expected a request of version {_VERSION}, got version {request[0]}")
    if request[1:_HEADER_BYTES] != shape.digest:
        raise RequestError("the request is for another table or version: ask for the shape again")
    vectors = np.frombuffer(request[_HEADER_BYTES:], dtype="<u4").astype(np.uint32).reshape(shape.keys, -1)
    kernels = _kernels() if compiled else None
    if kernels is None:
        found = multiply(database.matrix, vectors.T).T
    else:
        found = np.empty((shape.keys, len(database.matrix)), dtype=np.uint32)
        kernels.multiply(database.matrix, vectors, found)
    return np.ascontiguousarray(found).astype("<u4", copy=False).tobytes()


def recover(secret: LweSecret, reply: bytes, hint: bytes) -> UInt8Array:
    """The rows of the keys, in their order: uint8 [keys, row_bytes].

    Raises:
        WrongRowsError: reply or hint are not this table's; see the module for what a failure tells.
    """
    shape = secret.shape
    group, _ = _columns(shape)
    for name, data, length in (("reply", reply, reply_bytes(shape)), ("hint", hint, hint_bytes(shape))):
        if len(data) != length:
            raise WrongRowsError(f"Expected a {name} of {length} bytes, got {len(data)}")
    height = group * shape.record_bytes
    known = np.frombuffer(hint, dtype="<u4").reshape(height, DIMENSION)
    noisy = np.frombuffer(reply, dtype="<u4").reshape(shape.keys, height) - _product(known, secret.secrets).T
    rounded = (noisy + np.uint32(1 << (_STEP_BITS - 1))) >> np.uint32(_STEP_BITS)
    found = rounded.astype(np.uint8).reshape(shape.keys * group, shape.record_bytes)
    numbers = (secret.columns[:, None] * group + np.arange(group)).reshape(-1)
    numbers[numbers >= shape.rows] = -1
    records.check(
        found,
        numbers.tolist(),
        rows=shape.rows,
        row_bytes=shape.row_bytes,
        table=shape.table_sha256,
        cap=shape.cap,
    )
    return found.reshape(shape.keys, group, -1)[secret.vectors, secret.places, : shape.row_bytes]


def request_bytes(shape: Shape) -> int:
    """Length of every request."""
    return _HEADER_BYTES + 4 * shape.keys * _columns(shape)[1]


def reply_bytes(shape: Shape) -> int:
    """Length of every reply."""
    return 4 * shape.keys * _columns(shape)[0] * shape.record_bytes


def hint_bytes(shape: Shape) -> int:
    """Length of the hint."""
    return 4 * DIMENSION * _columns(shape)[0] * shape.record_bytes


def failure_bound(*, columns: int, values: int) -> float:
    """An upper bound on the probability that rounding is wrong for one of ``values`` bytes.

    The noise of a byte is a sum of ``columns`` terms, each at most 128 times a discrete Gaussian. That is subgaussian
    with parameter SIGMA, cut off or not (Micciancio and Peikert 2012, lemma 2.8), and the sum with sqrt(``columns``)
    times as much. Rounding fails from 2^23 on.
    """
    deviations = 2 ** (_STEP_BITS - 1) / (_LARGEST_BYTE * SIGMA * math.sqrt(columns))
    return min(1.0, 2 * values * math.exp(-(deviations**2) / 2))


def multiply(matrix: Int8Array, vectors: UInt32Array) -> UInt32Array:
    """``matrix`` int8 [R, C] times ``vectors`` uint32 [C, k] modulo 2^32, by float64 products that are exact.

    Halves of 16 bits times 8 bits, C <= 2^29 times: below 2^53.
    """
    halves = [(vectors & np.uint32(0xFFFF)).astype(np.float64), (vectors >> np.uint32(16)).astype(np.float64)]
    found = np.empty((len(matrix), vectors.shape[1]), dtype=np.uint32)
    step = max(1, _BLOCK // matrix.shape[1])
    for start in range(0, len(matrix), step):
        block = matrix[start : start + step].astype(np.float64)
        low, high = ((block @ half).astype(np.int64) for half in halves)
        found[start : start + step] = ((low + (high << 16)) & 0xFFFFFFFF).astype(np.uint32)
    return found


def _product(left: npt.NDArray[np.uint32], right: UInt32Array) -> UInt32Array:
    """uint32 [m, n] times uint32 [n, k] modulo 2^32, n = DIMENSION: halves of 16 bits, sums below 2^53."""
    low, high = ((right & np.uint32(0xFFFF)).astype(np.float64), (right >> np.uint32(16)).astype(np.float64))
    found = np.empty((len(left), right.shape[1]), dtype=np.uint32)
    step = _BLOCK // DIMENSION
    for start in range(0, len(left), step):
        block = left[start : start + step]
        below, above = ((block & np.uint32(0xFFFF)).astype(np.float64), (block >> np.uint32(16)).astype(np.float64))
        middle = (below @ high + above @ low).astype(np.int64)
        total = (below @ low).astype(np.int64) + ((middle & 0xFFFF) << 16)
        found[start : start + step] = (total & 0xFFFFFFFF).astype(np.uint32)
    return found


def _public_matrix(shape: Shape) -> Iterator[UInt32Array]:
    """A, in blocks of rows: uint32 [.., DIMENSION] from a keystream of the shape's digest."""
    _, columns = _columns(shape)
    stream = Cipher(AES(hashlib.sha256(PIR_MATRIX + shape.digest).digest()), CTR(bytes(16))).encryptor()
    step = _BLOCK // DIMENSION
    for start in range(0, columns, step):
        rows = min(step, columns - start)
        yield np.frombuffer(stream.update(bytes(4 * DIMENSION * rows)), dtype="<u4").reshape(rows, DIMENSION)


def _columns(shape: Shape) -> tuple[int, int]:
    """Records per column, and columns: about as many numbers up as down.

    Raises:
        ConfigurationError: rounding would fail too often.
    """
    group = max(1, math.isqrt(shape.rows // shape.record_bytes))
    columns = -(-shape.rows // group)
    values = group * shape.record_bytes * shape.keys
    if failure_bound(columns=columns, values=values) > _RAREST_FAILURE:
        raise ConfigurationError(f"Expected fewer rows than {shape.rows} for retrieval by lattices: use two servers")
    return group, columns


@functools.cache
def _thresholds() -> npt.NDArray[np.uint64]:
    """Cumulative probabilities of the discrete Gaussian on -TAIL .. TAIL, but the last: uint64 [2 TAIL], in 2^-64.

    They are rounded down, so that every value has its probability within 2^-64, and what is drawn is within 2^-54 of
    the law, in total variation.
    """
    with decimal.localcontext(prec=50):
        weights = [(-decimal.Decimal(value**2) / (2 * SIGMA**2)).exp() for value in range(-_TAIL, _TAIL + 1)]
        total, running, found = sum(weights), decimal.Decimal(0), []
        for weight in weights[:-1]:
            running += weight
            found.append(int(running / total * 2**64))
    return np.array(found, dtype=np.uint64)


def _noise(shape: tuple[int, ...], random_bytes: RandomBytes) -> UInt32Array:
    count = math.prod(shape)
    words = np.frombuffer(random_bytes(8 * count), dtype="<u8")
    drawn = np.searchsorted(_thresholds(), words, side="right") - _TAIL
    return (drawn & 0xFFFFFFFF).astype(np.uint32).reshape(shape)


@functools.cache
def _kernels() -> Any:
    if importlib.util.find_spec("numba") is None:
        return None
    from odp.crypto.pir import _kernels as kernels

    return kernels
