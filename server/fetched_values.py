"""The integers of releases that are too long for one message: fetched from the aggregator, stored, read for a step."""

from __future__ import annotations

from odp.algorithms.seam import NoisyTensors
from odp.errors import StateError
from odp.signed.release import ReleaseRefused, checked_values, noisy_tensors, whole_values
from odp.transport.logs import Log, short
from odp.trust.log.released_values import ReleasedValues
from odp.v1 import aggregator_pb2, common_pb2
from server.clients import AggregatorClient


class FetchedValues:
    """Values in ``stored``, which keeps those of every release that the log names."""

    def __init__(self, stored: ReleasedValues, aggregator: AggregatorClient, log: Log) -> None:
        self._stored = stored
        self._aggregator = aggregator
        self._log = log

    def fetch(self, release: common_pb2.Release, order: bytes) -> None:
        """Stores the values of a checked release, if it has their hash alone; ``order`` is of its round. Idempotent.

        A server that dies meanwhile has stored nothing, and fetches them again.

        Raises:
            ReleaseRefused: they are not those that the release names.
            ServiceError, ServiceUnavailable: the aggregator does not give them.
            StateError: they cannot be stored.
        """
        if not release.values_sha256 or self._stored.holds(release.values_sha256):
            return
        pieces = self._aggregator.released_values(order)
        self._stored.write(release.values_sha256, checked_values(release, pieces))
        task = short(release.task_sha256)
        self._log.event("values_fetched", task=task, round=release.round, bytes=release.values_bytes)

    def fetch_of(self, release: common_pb2.Release) -> None:
        """As ``fetch``, for a release that is in the log."""
        order = aggregator_pb2.RoundOrder(
            task_sha256=release.task_sha256, round=release.round, model_sha256=release.model_sha256
        )
        self.fetch(release, order.SerializeToString(deterministic=True))

    def tensors(self, release: common_pb2.Release) -> NoisyTensors:
        """The arrays of a release; values that another server fetched are fetched again.

        Raises StateError if their file is damaged, ServiceError as ``fetch``.
        """
        if not release.values_sha256:
            return noisy_tensors(release)
        self.fetch_of(release)
        try:
            values = whole_values(release, self._stored.read(release.values_sha256))
        except ReleaseRefused as error:
            raise StateError(f"{error}: restore the folder of the log from a backup") from error
        return noisy_tensors(release, values)
