"""Rows of a public table by keys that follow from the device's private data: federated select.

The same parties learn the same facts as in training (docs/partial-broadcast.md): the server and the distributor's host
learn the table's name, the distributor's enclave learns the keys. Every request asks for ``rows_per_request`` rows. The
caller fixes the number of requests before it looks at the keys, because others can observe it.

Training and public tables ask the distributor's attested enclave alike, with sealed keys, and get sealed rows
(``select_sealed``). Every request has the same number of keys, whatever the device needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import grpc
import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from google.protobuf.message import DecodeError

from device_runtime.network.enclaves import Checked, Enclaves
from device_runtime.network.services import Services, Traffic
from odp import _validate
from odp.crypto import domains, hpke
from odp.errors import ConfigurationError, ServiceError
from odp.numerics.arrays import Float32Array, Int64Array
from odp.protocol.wire.model import Slices
from odp.protocol.wire.tables import entry_row_bytes, keyed_entry, padded_keys, slices_from
from odp.signed.tables.table import OpenedTable, open_version
from odp.transport.channel import parse_address
from odp.v1 import common_pb2, distributor_pb2

_REPLY_KEY_BYTES = 32
_REPLY_NONCE = bytes(12)
#: Gives the distributor's enclave, verified again where the one with this key did not work.
Verify = Callable[[bytes], Checked]


@dataclass(frozen=True)
class FoundTable:
    """The newest version of a published table, with checked signatures, and the address for requests."""

    opened: OpenedTable
    distributor: str

    @property
    def rows(self) -> int:
        """Number of rows: keys are below it."""
        return int(self.opened.entry.rows)


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """Fetches rows from distributors whose enclaves were verified; thread-safe.

    ``random_bytes`` is the source of reply keys, each used once.
    """

    services: Services
    enclaves: Enclaves
    random_bytes: Callable[[int], bytes] = os.urandom

    def find(self, name: str, *, developer_key: bytes | None = None) -> FoundTable:
        """The newest version of a table, as the server states it; reveals its name and nothing else.

        ``developer_key`` is the key that must have signed it; None accepts the developer that the server names.

        Raises:
          SignatureError, ConfigurationError: it is not what its developer signed, or another developer's.
          ServiceError: the server does not have it.
          ServiceUnavailable: nobody answers.
        """
        _validate.identifier(name=name)
        answer = self.services.public_table(name)
        opened = open_version(answer.definition, answer.manifest, name=name)
        if developer_key is not None and opened.developer_key != developer_key:
            raise ConfigurationError(f"table {name!r} is signed by another developer than the expected one")
        parse_address(answer.distributor_address)
        return FoundTable(opened, answer.distributor_address)

    def select(
        self,
        table: FoundTable,
        keys: npt.ArrayLike,
        *,
        requests: int = 1,
        traffic: Traffic | None = None,
    ) -> Float32Array:
        """The rows float32 [k, width] of ``keys`` int [k], in the order of the keys; repeated keys are allowed.

        ``requests`` requests are made whatever the keys are, each for ``rows_per_request`` rows. Numbers in a row are
        as its publisher wrote them, and may be NaN or infinite.

        Raises:
          ConfigurationError: a key is no row of the table, or the keys do not fit ``requests``: told when the requests
            were made, for what there is of the keys.
          AttestationError: the enclave's evidence was refused; nothing was sent to it.
          StaleModel: newer versions replaced the table: ``find`` it again.
          ServiceError: the distributor sent something else than the rows.
          ServiceUnavailable: nobody answers, or the distributor stays busy.
        """
        _validate.integer(low=1, high=2**16, requests=requests)
        wanted = np.asarray(keys, dtype=np.int64).reshape(-1)
        valid = (wanted >= 0) & (wanted < table.rows)
        distinct, places = np.unique(wanted[valid], return_inverse=True)
        each = table.opened.rows_per_request
        traffic = Traffic() if traffic is None else traffic
        parts = [
            self.rows(
                table.distributor,
                table.opened.model_sha256,
                table.opened.manifest,
                distinct[number * each : (number + 1) * each],
                count=each,
                traffic=traffic,
            ).rows
            for number in range(requests)
        ]
        if not valid.all():
            raise ConfigurationError(f"Expected keys of table {table.opened.name!r} to be from 0 to {table.rows - 1}")
        if len(distinct) > requests * each:
            raise ConfigurationError(f"Expected at most {requests * each} distinct keys, got {len(distinct)}")
        return np.concatenate(parts)[places.reshape(-1)]

    def rows(
        self,
        address: str,
        model: bytes,
        manifest: common_pb2.ModelManifest,
        keys: Int64Array,
        *,
        count: int,
        traffic: Traffic,
    ) -> Slices:
        """One request for ``count`` rows of a manifest's keyed table; ``keys`` are distinct, ascending, at most so
        many. The dense tables come with it. Raises as ``select``."""
        slices, _ = select_sealed(
            self.services,
            Asked(address, model, manifest, count),
            keys,
            traffic,
            checked=self.enclaves.verified("distributor", address),
            verify=lambda old: self.enclaves.verified("distributor", address, unlike=old),
            random_bytes=self.random_bytes,
        )
        return slices


@dataclass(frozen=True)
class Asked:
    """A model at a distributor, and how many rows of its keyed table every request asks for."""

    address: str
    model_sha256: bytes
    manifest: common_pb2.ModelManifest
    count: int


def select_sealed(
    services: Services,
    selection: Asked,
    keys: Int64Array,
    traffic: Traffic,
    *,
    checked: Checked,
    verify: Verify,
    random_bytes: Callable[[int], bytes],
) -> tuple[Slices, Checked]:
    """The rows of ``keys``, the dense tables, and the enclave that answered; after a restart that is another one.

    Args:
      keys: distinct and ascending, at most ``selection.count``.
      checked: the enclave; where it cannot open what is sealed to its key, ``verify`` gives it with a new one.
      random_bytes: source of reply keys, each used once.

    Raises:
      AttestationError: the enclave's new evidence is refused.
      StaleModel: newer versions replaced the model.
      ServiceError: what came is not what the manifest says, or was refused.
      ServiceUnavailable: nobody answers.
    """
    try:
        return _select(services, selection, keys, checked.enclave.hpke_key, random_bytes, traffic), checked
    except ServiceError as error:
        # An enclave that came back with new keys cannot open what is sealed to the old one.
        if error.code is not grpc.StatusCode.INVALID_ARGUMENT:
            raise
        fresh = verify(checked.enclave.hpke_key)
        if fresh.enclave.hpke_key == checked.enclave.hpke_key:
            raise
        return _select(services, selection, keys, fresh.enclave.hpke_key, random_bytes, traffic), fresh


def _select(
    services: Services,
    selection: Asked,
    keys: Int64Array,
    hpke_key: bytes,
    random_bytes: Callable[[int], bytes],
    traffic: Traffic,
) -> Slices:
    entry = keyed_entry(selection.manifest)
    # Whoever needs no row asks for some row too: whether it needs one is its own affair.
    wire_keys = padded_keys(keys if len(keys) else np.zeros(1, dtype=np.int64), selection.count)
    reply_key = random_bytes(_REPLY_KEY_BYTES)
    wanted = distributor_pb2.SelectKeys(table=entry.name, keys=wire_keys, reply_key=reply_key)
    sealed = hpke.seal(hpke_key, wanted.SerializeToString(), domains.select_info(selection.model_sha256))
    request = distributor_pb2.SelectRequest(model_sha256=selection.model_sha256, sealed_keys=sealed)
    reply = services.select(selection.address, request, traffic)
    try:
        opened = AESGCM(reply_key).decrypt(
            _REPLY_NONCE, reply.sealed_rows, domains.selected_aad(selection.model_sha256)
        )
        rows = distributor_pb2.SelectedRows.FromString(opened)
        if len(rows.rows) != selection.count * entry_row_bytes(entry):
            raise ConfigurationError(f"Expected {selection.count} rows, got {len(rows.rows)} bytes")
        return slices_from(selection.manifest, keys, rows)
    except (InvalidTag, DecodeError):
        raise ServiceError(
            f"the distributor at {selection.address} sent rows that cannot be decrypted; try again"
        ) from None
    except ConfigurationError as error:
        raise ServiceError(f"the distributor at {selection.address} sent unusable rows: {error}") from error
