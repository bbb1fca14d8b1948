"""How a device gets the rows that it needs: one interface over the methods that a signed task can name.

No method depends on the device's data, and all give the same rows. docs/partial-broadcast.md lists which party learns
what from each of them.

- ``SealedRows`` requests them from the distributor's attested enclave.
- ``WholeModel`` downloads the same tables to every device, and picks the rows locally.
- ``TwoParties`` requests them from a leader, which the device talks to, and a helper behind it. The half of a query
  that the helper gets is sealed to a key that the task names and the person pinned, so that the leader, who carries it,
  reads its own half alone. Whatever either party answers, the device takes rows that are those of the signed manifest,
  or none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from device_runtime.network.enclaves import Checked
from device_runtime.network.services import Services, Traffic
from device_runtime.rows.downloads import fetch_table
from device_runtime.rows.lookup import Asked, Verify, select_sealed
from device_runtime.rows.table_cache import TableCache
from device_runtime.tasks.assignment import Model, Work
from odp._system.recent import Recent
from odp.crypto import domains, hpke
from odp.crypto.pir import two_server
from odp.crypto.pir.shape import Shape
from odp.errors import AttestationError, ConfigurationError, ServiceError
from odp.numerics.arrays import Int64Array
from odp.protocol.wire.model import ModelVersion, Slices
from odp.protocol.wire.tables import broadcast_from, entry_row_bytes, keyed_entry, slices_from
from odp.refusing import refusing
from odp.signed.broadcast.terms import ALL, ENCLAVE, PIR, method_of
from odp.v1 import common_pb2, distributor_pb2, retrieval_pb2

# A round that is open, and those of late devices.
_MOST_SHAPES = 8
# A round that is open, and the one before it for devices that are late.
_MOST_HELD = 2


@dataclass(frozen=True, kw_only=True)
class Retrievals:
    """The methods that need no enclave, shared by the devices of a process; thread-safe.

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
        """The methods of a process: ``cache`` holds whole tables; the person pinned the helpers (hex keys)."""
        pinned = frozenset(bytes.fromhex(key) for key in helper_keys)
        return cls(whole=WholeModel(services, cache), two_parties=TwoParties(services, pinned))

    def require(self, model: Model) -> None:
        """Raises AttestationError if the task's helper is not pinned. Makes no network call."""
        if method_of(model.definition) == PIR and model.keyed:
            self.two_parties.require_pinned(model.definition.broadcast.helper_key)

    def of(self, model: Model) -> WholeModel | TwoParties:
        """The method of a task that does not use the enclave (``asks_enclave``); models without rows travel whole."""
        return self.whole if not model.keyed or method_of(model.definition) == ALL else self.two_parties


def asks_enclave(model: Model) -> bool:
    """Whether devices of the task send anything to the distributor's enclave."""
    return model.keyed and method_of(model.definition) == ENCLAVE


class SealedRows:
    """Gets rows from the distributor's enclave; retries once if the enclave restarted with a new key.

    Args:
      services: how to reach it.
      checked: the enclave, and ``verify`` gives another one of it.
      random_bytes: source of reply keys.
    """

    def __init__(
        self, services: Services, checked: Checked, verify: Verify, random_bytes: Callable[[int], bytes]
    ) -> None:
        self.checked = checked
        self._services, self._verify, self._random_bytes = services, verify, random_bytes

    @refusing("answer with rows")
    def fetch(self, work: Work, keys: Int64Array, traffic: Traffic) -> Slices:
        """As ``WholeModel.fetch``; ``checked`` is the enclave that answered.

        Raises, besides: AttestationError where the enclave's new evidence is refused.
        """
        model = work.model
        selection = Asked(work.distributor, model.model_sha256, model.manifest, model.rows_per_request)
        slices, self.checked = select_sealed(
            self._services,
            selection,
            keys,
            traffic,
            checked=self.checked,
            verify=self._verify,
            random_bytes=self._random_bytes,
        )
        return slices


class TwoParties:
    """Retrieves rows from leader and helper; thread-safe.

    Args:
      services: how to reach the leader.
      helper_keys: public keys (32 bytes each) of the helpers that the person pinned.
      random_bytes: a cryptographic source.
    """

    def __init__(
        self,
        services: Services,
        helper_keys: frozenset[bytes],
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._services, self._helper_keys, self._random_bytes = services, helper_keys, random_bytes
        self._shapes: Recent[bytes, Shape] = Recent(_MOST_SHAPES)

    def require_pinned(self, helper_key: bytes) -> None:
        """Raises AttestationError unless the person pinned the helper with this key."""
        if helper_key not in self._helper_keys:
            raise AttestationError(
                "unpinned_helper",
                f"the task uses the helper {helper_key.hex()}, which is not pinned; if you trust it "
                "not to collude with the distributor, `odp enclave pin-helper` adds it",
            )

    @refusing("answer of two parties")
    def fetch(self, work: Work, keys: Int64Array, traffic: Traffic) -> Slices:
        """As ``WholeModel.fetch``. Raises AttestationError, too: see ``require_pinned``."""
        model = work.model
        helper_key = model.definition.broadcast.helper_key
        self.require_pinned(helper_key)
        entry = keyed_entry(model.manifest)
        shape = self._shape(work, entry, traffic)
        try:
            leader_query, helper_query, secret = two_server.query(keys, shape, self._random_bytes)
        except ConfigurationError as error:
            raise ServiceError(f"round {work.round} needs rows that its model does not have") from error
        wanted = retrieval_pb2.HelperQuery(table=entry.name, query=helper_query, pad_seed=secret.pad_seed)
        info = domains.helper_query_info(model.model_sha256)
        request = retrieval_pb2.SelectPrivatelyRequest(
            model_sha256=model.model_sha256,
            table=entry.name,
            leader_query=leader_query,
            sealed_helper_query=hpke.seal(helper_key, wanted.SerializeToString(), info),
        )
        reply = self._services.select_privately(work.distributor, request, traffic)
        if reply.model_sha256 != model.model_sha256:
            raise ServiceError(f"the distributor at {work.distributor} answered with rows of another model; try again")
        try:
            rows = two_server.recover(secret, reply.answer)
        except two_server.WrongRowsError:
            self._shapes.forget(model.model_sha256)  # it may have been the shape that was wrong
            raise ServiceError(
                f"the distributor at {work.distributor} or its helper answered with wrong rows; none of them were used"
            ) from None
        # What the layout had no place for is missing, as if the model did not have it: failing would tell which keys
        # these are to whoever chose the model.
        placed_keys = keys[secret.placed]
        try:
            return slices_from(
                model.manifest, placed_keys, distributor_pb2.SelectedRows(rows=rows.tobytes(), dense=reply.dense)
            )
        except ConfigurationError as error:
            raise ServiceError(f"the distributor at {work.distributor} sent unusable rows: {error}") from error

    def _shape(self, work: Work, entry: common_pb2.TableManifest, traffic: Traffic) -> Shape:
        """The table's shape. The leader cannot make it depend on the device; fetched once per version."""
        model = work.model
        if (cached := self._shapes.get(model.model_sha256)) is not None:
            return cached
        request = retrieval_pb2.GetShapeRequest(model_sha256=model.model_sha256, table=entry.name)
        reply = self._services.table_shape(work.distributor, request, traffic)
        try:
            shape = Shape.from_bytes(reply.shape)
        except ConfigurationError as error:
            raise ServiceError(f"the distributor at {work.distributor} sent no shape of a table: {error}") from error
        expected = (
            entry.rows,
            entry_row_bytes(entry),
            model.rows_per_request,
            model.model_sha256,
            entry.sha256,
        )
        if (shape.rows, shape.row_bytes, shape.keys, shape.seed, shape.table_sha256) != expected:
            raise ServiceError(
                f"the distributor at {work.distributor} sent the shape of another table than {entry.name!r}"
            )
        self._shapes.put(model.model_sha256, shape)
        return shape


class WholeModel:
    """Whole model versions, each checked against its manifest; the devices of a process share one download.

    The distributor learns which version of a table the process holds, and nothing of the rows that are used of it.
    Thread-safe.

    Args:
      services: how to reach the distributor.
      cache: what was downloaded before; None downloads every table whole.
    """

    def __init__(self, services: Services, cache: TableCache | None = None) -> None:
        self._services, self._cache = services, cache
        self._held: Recent[bytes, ModelVersion] = Recent(_MOST_HELD)

    @refusing("answer with a model")
    def fetch(self, work: Work, keys: Int64Array, traffic: Traffic) -> Slices:
        """The rows of the distinct, ascending ``keys``, and the dense tables.

        The first device that waits for a download accounts for its bytes.

        Raises:
          ServiceError: what came is not what the manifest says, or was refused; nothing of it is used.
          ServiceUnavailable: nobody answers; try again later.
        """
        broadcast = self._held.get_or_make(work.model.model_sha256, lambda: self._downloaded(work, traffic))
        table = broadcast.keyed.rows if work.model.keyed else np.zeros((0, 0), dtype=np.float32)
        if len(keys) and keys[-1] >= len(table):
            raise ServiceError(f"the model of round {work.round} lacks rows that its task asks for")
        return Slices(broadcast.version, np.asarray(keys, dtype=np.int64), table[keys], broadcast.dense)

    def _downloaded(self, work: Work, traffic: Traffic) -> ModelVersion:
        model = work.model
        tables = {
            entry.name: self._services.download(work.distributor, model.model_sha256, entry, traffic)
            if self._cache is None
            else fetch_table(self._services, work.distributor, model.model_sha256, entry, self._cache, traffic=traffic)
            for entry in model.manifest.tables
        }
        try:
            return broadcast_from(model.manifest, tables)
        except ConfigurationError as error:
            raise ServiceError(f"the distributor at {work.distributor} sent a wrong model: {error}") from error
