"""Private retrieval of rows from two parties: a leader, which the device talks to, and a helper behind it.

The half of a query that the helper gets is sealed to a key that the task names and the person pinned, so that the
leader, who carries it, reads its own half alone. Whatever either party answers, the device takes rows that are those of
the signed manifest, or none.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable

from device_runtime.network.services import Services, Traffic
from device_runtime.tasks.assignment import Work
from odp.crypto import domains, hpke
from odp.crypto.pir import two_server
from odp.crypto.pir.shape import Shape
from odp.errors import AttestationError, ConfigurationError, ServiceError
from odp.numerics.arrays import Int64Array
from odp.protocol.wire.model import Slices
from odp.protocol.wire.tables import entry_row_bytes, keyed_entry, slices_from
from odp.refusing import refusing
from odp.v1 import common_pb2, distributor_pb2, retrieval_pb2

# A round that is open, and those of late devices.
_MOST_SHAPES = 8


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
        self._services = services
        self._helper_keys = helper_keys
        self._random_bytes = random_bytes
        self._lock = threading.Lock()
        self._shapes: OrderedDict[bytes, Shape] = OrderedDict()

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
        """As ``device_runtime.rows.retrieval.Retrieval``. Raises AttestationError, too: see ``require_pinned``."""
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
            with self._lock:  # it may have been the shape that was wrong
                self._shapes.pop(model.model_sha256, None)
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
        with self._lock:
            cached = self._shapes.get(model.model_sha256)
        if cached is not None:
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
        with self._lock:
            self._shapes[model.model_sha256] = shape
            while len(self._shapes) > _MOST_SHAPES:
                self._shapes.popitem(last=False)
        return shape
