"""Rows of a table that never changes, by lattices: from the distributor's host alone, without an enclave or a helper.

What is asked is as hard to see as learning with errors, whatever the host does. That the rows are the published ones is
the host's word: the hashes that they are checked against come from it, too.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

import numpy as np

from device_runtime.network.services import Services, Traffic
from device_runtime.rows.table_cache import TableCache
from device_runtime.tasks.assignment import Model
from odp.broadcast.terms import LATTICE_KEYS
from odp.crypto.pir import lwe
from odp.crypto.pir.records import WrongRowsError
from odp.crypto.pir.shape import Shape
from odp.errors import ConfigurationError, ServiceError
from odp.numerics.arrays import Float32Array, Int64Array
from odp.v1 import common_pb2, retrieval_pb2
from odp.wire.encoding import decoded_as_is, encoding_of
from odp.wire.tables import entry_row_bytes, keyed_entry


def fetch_static_rows(
    services: Services,
    address: str,
    model: Model,
    keys: Int64Array,
    *,
    cache: TableCache | None = None,
    traffic: Traffic | None = None,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> Float32Array:
    """Rows float32 [keys, width] of the keyed table of a task's last model.

    Every call sends one request of one length, whatever the keys are. The hint is kept in ``cache`` by its hash.

    Args:
      keys: int64 [n], at most ``LATTICE_KEYS`` different ones.

    Raises:
      ConfigurationError: a key is not one of the table's, or there are too many: told when the request was answered.
      ServiceError: the distributor refused, or what it sent does not fit together; nothing of it is used.
      ServiceUnavailable: nobody answers.
    """
    counted = traffic if traffic is not None else Traffic()
    entry = keyed_entry(model.manifest)
    model_sha256, table = model.model_sha256, entry.name
    describe = retrieval_pb2.DescribeHintRequest(model_sha256=model_sha256, table=table)
    described = services.describe_hint(address, describe, counted)
    shape = _shape(described.shape, entry, model_sha256, address)
    usable = ((keys >= 0) & (keys < entry.rows)).all() and len(np.unique(keys)) <= LATTICE_KEYS
    request, secret = lwe.query(keys if usable else keys[:0], shape, random_bytes)
    hint = cache.find(described.hint_sha256) if cache is not None else None
    if hint is None:
        wanted = retrieval_pb2.GetHintRequest(model_sha256=model_sha256, table=table)
        hint = services.hint(address, wanted, lwe.hint_bytes(shape), counted)
        if hashlib.sha256(hint).digest() != described.hint_sha256:
            raise ServiceError(f"the distributor at {address} sent another hint than it described")
        if cache is not None:
            cache.keep(described.hint_sha256, hint)
    asked = retrieval_pb2.SelectByLatticeRequest(model_sha256=model_sha256, table=table, query=request)
    reply = services.select_by_lattice(address, asked, counted)
    if reply.model_sha256 != model_sha256:
        raise ServiceError(f"the distributor at {address} answered for another model")
    try:
        rows = lwe.recover(secret, reply.answer, hint)
    except WrongRowsError:
        raise ServiceError(f"the distributor at {address} sent wrong rows; none of them was used") from None
    if not usable:
        raise ConfigurationError(f"Expected at most {LATTICE_KEYS} different keys from 0 to {entry.rows - 1}")
    return decoded_as_is(rows.tobytes(), entry.width, encoding_of(entry.encoding))


def _shape(data: bytes, entry: common_pb2.TableManifest, model_sha256: bytes, address: str) -> Shape:
    try:
        shape = Shape.from_bytes(data)
    except ConfigurationError as error:
        raise ServiceError(f"the distributor at {address} sent no shape of a table: {error}") from error
    expected = (entry.rows, entry_row_bytes(entry), LATTICE_KEYS, model_sha256, entry.sha256)
    if (shape.rows, shape.row_bytes, shape.keys, shape.seed, shape.table_sha256) != expected:
        raise ServiceError(f"the distributor at {address} sent the shape of another table than {entry.name!r}")
    return shape
