"""One request for rows to the distributor's attested enclave, with sealed keys and sealed rows.

Training and public tables ask alike. Every request has the same number of keys, whatever the device needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import grpc
import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from google.protobuf.message import DecodeError

from device_runtime.network.enclaves import Checked
from device_runtime.network.services import Services, Traffic
from odp.crypto import domains, hpke
from odp.errors import ConfigurationError, ServiceError
from odp.numerics.arrays import Int64Array
from odp.protocol.wire.model import Slices
from odp.protocol.wire.tables import entry_row_bytes, keyed_entry, padded_keys, slices_from
from odp.v1 import common_pb2, distributor_pb2

_REPLY_KEY_BYTES = 32
_REPLY_NONCE = bytes(12)
#: Gives the distributor's enclave, verified again where the one with this key did not work.
Verify = Callable[[bytes], Checked]


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
