"""Public tables that a developer publishes beside models: rows for private lookup by keys.

A table is public data: item metadata, candidates, embeddings of items. What a device asks of it follows from private
data, and travels as in training: a fixed number of keys, sealed to the attested distributor. A table is signed as a
task is, but it is none: every party that trains, sums or charges refuses it.

Example::

    table = odp.data.Table("genres", rows=np.eye(18)[genre_of_item], encoding="int8")
    odp.connect("127.0.0.1:7200").publish_table(table)
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from odp._validate import identifier, integer, one_of
from odp.crypto import domains
from odp.crypto.public_keys import require_ed25519
from odp.crypto.signing import SigningKey, verify
from odp.errors import ConfigurationError
from odp.protocol.wire.encoding import ENCODINGS, Encoding, encoded, encoding_of, rounded
from odp.protocol.wire.model import ModelVersion, TableValues
from odp.protocol.wire.tables import manifest_for
from odp.refusing import refusing
from odp.signed.task import (
    LARGEST_DEFINITION,
    MOST_ITEMS,
    model_sha256,
    open_manifest,
    open_task,
    sign_manifest,
    task_sha256,
)
from odp.v1 import common_pb2, public_table_pb2, table_pb2

#: Rows that one request may ask for at most.
MOST_ROWS_PER_REQUEST = 4096


@dataclass(frozen=True, eq=False)
class Table:
    """A keyed public table; keys are 0 .. rows - 1.

    Args:
      name: 1 to 64 characters of a-z, 0-9, '_', '.', '-'.
      rows: float [n, width]; kept as float32, rounded as ``encoding`` rounds.
      encoding: float32, float16 or int8 (a scale per row); ``odp.protocol.wire.encoding`` states the errors.
      rows_per_request: how many rows a device asks for at a time, whatever it needs. More cost it bytes, and hide more.

    Raises:
      ConfigurationError: a field is out of its range, or a value is not finite or beyond the encoding's range.
    """

    name: str
    rows: npt.NDArray[np.float32] = field(repr=False)
    encoding: Encoding = "float32"
    rows_per_request: int = 64

    def __post_init__(self) -> None:
        check_shape(self.name, self.rows_per_request)
        one_of(list(ENCODINGS), encoding=self.encoding)
        rows = np.asarray(self.rows)
        if rows.ndim != 2 or rows.dtype.kind not in "fiub":
            raise ConfigurationError(f"Expected rows of table {self.name!r} to be a matrix of numbers")
        integer(low=1, high=MOST_ITEMS, rows=len(rows))
        integer(low=1, high=2**16, width=rows.shape[1])
        with np.errstate(over="ignore"):
            floats = np.ascontiguousarray(rows, dtype=np.float32)
        if not np.isfinite(floats).all():
            raise ConfigurationError(f"Expected rows of table {self.name!r} to be finite as float32")
        object.__setattr__(self, "rows", rounded(floats, self.encoding))

    @property
    def content(self) -> bytes:
        """The published bytes; their SHA-256 is in the manifest."""
        return encoded(self.rows, self.encoding)

    def header(self) -> table_pb2.TableHeader:
        """The header that a server signs."""
        return table_pb2.TableHeader(
            name=self.name,
            rows_per_request=self.rows_per_request,
            rows=self.rows.shape[0],
            width=self.rows.shape[1],
            encoding=self.signed_manifest_entry().encoding,
            sha256=hashlib.sha256(self.content).digest(),
        )

    def signed_manifest_entry(self) -> common_pb2.TableManifest:
        """The entry of the table in its manifest."""
        table = TableValues(self.name, self.rows, keyed=True, encoding=self.encoding)
        return manifest_for(ModelVersion(0, (table,)), bytes(32)).tables[0]


@dataclass(frozen=True)
class OpenedTable:
    """One version of a published table, both signatures checked."""

    name: str
    developer_key: bytes
    rows_per_request: int
    version: int
    entry: common_pb2.TableManifest
    manifest: common_pb2.ModelManifest
    table_sha256: bytes
    model_sha256: bytes


def check_shape(name: str, rows_per_request: int) -> None:
    """Raises ConfigurationError unless name and count are within their ranges."""
    identifier(name=name)
    integer(low=1, high=MOST_ROWS_PER_REQUEST, rows_per_request=rows_per_request)


def sign_table(name: str, rows_per_request: int, key: SigningKey) -> common_pb2.SignedTask:
    """The definition of a table under ``key``: the same for all its versions. Raises ConfigurationError."""
    check_shape(name, rows_per_request)
    data = _definition(name, rows_per_request, key.public).SerializeToString(deterministic=True)
    return common_pb2.SignedTask(definition=data, signature=key.sign(domains.TASK, data))


def sign_version(
    definition: common_pb2.SignedTask, version: int, entry: common_pb2.TableManifest, key: SigningKey
) -> common_pb2.SignedManifest:
    """One version of a table under ``key``."""
    manifest = common_pb2.ModelManifest(task_sha256=task_sha256(definition), version=version, tables=[entry])
    return sign_manifest(manifest, key)


@refusing("definition of a public table")
def open_table(signed: common_pb2.SignedTask) -> common_pb2.TaskDefinition:
    """A table's definition, after its signature and every field were checked.

    Raises SignatureError, or ConfigurationError naming the field.
    """
    definition = _parsed(signed)
    require_ed25519(definition.developer_key, name="developer_key")
    verify(definition.developer_key, signed.signature, domains.TASK, signed.definition)
    check_shape(definition.name, definition.table.rows_per_request)
    plain = _definition(definition.name, definition.table.rows_per_request, definition.developer_key)
    # Terms of a task, or fields of a later version, would change what is signed: a table has none.
    if plain.SerializeToString(deterministic=True) != signed.definition:
        raise ConfigurationError(f"the definition of table {definition.name!r} has fields that a table does not have")
    return definition


def open_published(signed: common_pb2.SignedTask) -> common_pb2.TaskDefinition:
    """The definition of a distributor's model: a table's, or a task's. Raises as ``open_table``, ``open_task``."""
    return open_table(signed) if is_table(_parsed(signed)) else open_task(signed)


def is_table(definition: common_pb2.TaskDefinition) -> bool:
    """Whether a definition is that of a public table."""
    return bool(definition.WhichOneof("training") == "table")


@refusing("version of a public table")
def open_version(
    signed: common_pb2.SignedTask, manifest: common_pb2.SignedManifest, *, name: str | None = None
) -> OpenedTable:
    """One version of a published table. Raises SignatureError, or ConfigurationError: see ``open_table``; also where it
    is not the table of ``name``."""
    definition = open_table(signed)
    if name is not None and definition.name != name:
        raise ConfigurationError(f"Expected table {name!r}, got {definition.name!r}")
    opened = open_manifest(manifest, task=signed, developer_key=definition.developer_key)
    check_entries(definition, opened)
    return OpenedTable(
        name=definition.name,
        developer_key=definition.developer_key,
        rows_per_request=definition.table.rows_per_request,
        version=opened.version,
        entry=opened.tables[0],
        manifest=opened,
        table_sha256=task_sha256(signed),
        model_sha256=model_sha256(manifest),
    )


def check_entries(definition: common_pb2.TaskDefinition, manifest: common_pb2.ModelManifest) -> None:
    """Raises ConfigurationError unless the manifest holds the one keyed table that the definition names."""
    if [(table.name, table.keyed) for table in manifest.tables] != [(definition.name, True)]:
        raise ConfigurationError(f"Expected the manifest to hold the keyed table {definition.name!r} alone")
    encoding_of(manifest.tables[0].encoding)


def _definition(name: str, rows_per_request: int, developer_key: bytes) -> common_pb2.TaskDefinition:
    return common_pb2.TaskDefinition(
        name=name,
        developer_key=developer_key,
        table=public_table_pb2.PublicTable(rows_per_request=rows_per_request),
    )


def _parsed(signed: common_pb2.SignedTask) -> common_pb2.TaskDefinition:
    if not 0 < len(signed.definition) <= LARGEST_DEFINITION:
        raise ConfigurationError(f"Expected a definition of 1 to {LARGEST_DEFINITION} bytes")
    try:
        return common_pb2.TaskDefinition.FromString(signed.definition)
    except DecodeError as error:
        raise ConfigurationError("the task definition is not a valid message") from error
