"""How a device gets the rows that it needs: one interface, and the method that the signed task names behind it.

No method depends on what the device holds, and each gives the same rows; what each of them tells to whom stands in
docs/partial-broadcast.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import grpc
import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from google.protobuf.message import DecodeError

from device_runtime.assignment import Model, Work
from device_runtime.enclaves import Checked
from device_runtime.services import Services, Traffic
from device_runtime.table_cache import TableCache
from device_runtime.two_parties import TwoParties
from device_runtime.whole_model import WholeModel
from odp.algorithms.seam import Int64Array, Slices
from odp.broadcast import ALL, ENCLAVE, PIR, method_of
from odp.crypto import domains, hpke
from odp.enclave.verifier import VerifiedEnclave
from odp.errors import ConfigurationError, ServiceError
from odp.tables import entry_row_bytes, keyed_entry, padded_keys, slices_from
from odp.v1 import distributor_pb2

_REPLY_KEY_BYTES = 32
_REPLY_NONCE = bytes(12)
#: Gives the distributor's enclave, verified again where the one with this key did not work.
Verify = Callable[[bytes], Checked]


class Retrieval(Protocol):
    """One way to get rows."""

    def fetch(self, work: Work, keys: Int64Array, traffic: Traffic) -> Slices:
        """The rows of the distinct, ascending ``keys``, and the dense tables.

        Raises:
          ServiceError: what came is not what the manifest says, or was refused; nothing of it is used.
          ServiceUnavailable: nobody answers; try again later.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Retrievals:
    """The ways to get rows that need no enclave, shared by the devices of a process; thread-safe.

    Args:
      whole: for tasks whose devices take the whole model.
      two_parties: for tasks whose devices ask a leader and a helper.
    """

    whole: WholeModel
    two_parties: TwoParties

    @classmethod
    def over(
        cls, services: Services, *, cache: TableCache | None = None, helper_keys: Iterable[str] = ()
    ) -> Retrievals:
        """Those of a process: ``cache`` of whole tables, and the helpers (hex keys) that its person pinned."""
        pinned = frozenset(bytes.fromhex(key) for key in helper_keys)
        return cls(whole=WholeModel(services, cache), two_parties=TwoParties(services, pinned))

    def require(self, model: Model) -> None:
        """Raises AttestationError where the task's helper is not pinned; nothing was asked of anybody."""
        if method_of(model.definition) == PIR and model.keyed:
            self.two_parties.require_pinned(model.definition.broadcast.helper_key)

    def of(self, model: Model) -> Retrieval:
        """The method of a task that does not ask the enclave (``asks_enclave``)."""
        return self.whole if method_of(model.definition) == ALL else self.two_parties


def asks_enclave(model: Model) -> bool:
    """Whether devices of the task send anything to the distributor's enclave."""
    return model.keyed and method_of(model.definition) == ENCLAVE


class SealedRows:
    """Asks the distributor's enclave, and once more where it came back with a new key.

    Args:
      services: how to reach it.
      checked: the enclave, and ``verify`` gives another one of it.
      random_bytes: source of reply keys.
    """

    def __init__(
        self, services: Services, checked: Checked, verify: Verify, random_bytes: Callable[[int], bytes]
    ) -> None:
        self.checked = checked
        self._services = services
        self._verify = verify
        self._random_bytes = random_bytes

    def fetch(self, work: Work, keys: Int64Array, traffic: Traffic) -> Slices:
        """As ``Retrieval``; ``checked`` is then the enclave that answered.

        Raises, besides: AttestationError where the enclave's new evidence is refused.
        """
        try:
            return self._select(work, keys, self.checked.enclave, traffic)
        except ServiceError as error:
            # An enclave that came back with new keys cannot open what is sealed to the old one.
            if error.code is not grpc.StatusCode.INVALID_ARGUMENT:
                raise
            fresh = self._verify(self.checked.enclave.hpke_key)
            if fresh.enclave.hpke_key == self.checked.enclave.hpke_key:
                raise
            found = self._select(work, keys, fresh.enclave, traffic)
            self.checked = fresh
            return found

    def _select(self, work: Work, keys: Int64Array, distributor: VerifiedEnclave, traffic: Traffic) -> Slices:
        model = work.model
        entry = keyed_entry(model.manifest)
        count = model.definition.dpam.slices_per_device
        # A device without data asks for some row too: whether it has data is its own affair.
        wire_keys = padded_keys(keys if len(keys) else np.zeros(1, dtype=np.int64), count)
        reply_key = self._random_bytes(_REPLY_KEY_BYTES)
        wanted = distributor_pb2.SelectKeys(table=entry.name, keys=wire_keys, reply_key=reply_key)
        sealed = hpke.seal(distributor.hpke_key, wanted.SerializeToString(), domains.select_info(model.model_sha256))
        request = distributor_pb2.SelectRequest(model_sha256=model.model_sha256, sealed_keys=sealed)
        reply = self._services.select(work.distributor, request, traffic)
        try:
            context = domains.selected_aad(model.model_sha256)
            opened = AESGCM(reply_key).decrypt(_REPLY_NONCE, reply.sealed_rows, context)
            rows = distributor_pb2.SelectedRows.FromString(opened)
            if len(rows.rows) != count * entry_row_bytes(entry):
                raise ConfigurationError(f"Expected {count} rows, got {len(rows.rows)} bytes")
            return slices_from(model.manifest, keys, rows)
        except (InvalidTag, DecodeError):
            raise ServiceError(f"the distributor at {work.distributor} sent rows that do not open; try again") from None
        except ConfigurationError as error:
            raise ServiceError(f"the distributor at {work.distributor} sent unusable rows: {error}") from error
