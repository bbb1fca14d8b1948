"""DP-FTRL as the platform sees it."""

from __future__ import annotations

import functools

from odp.algorithms.declared import DeclaredRelease
from odp.algorithms.dpftrl.query import StreamedQuery, StreamOfTask, stream_of
from odp.algorithms.federated import algorithm
from odp.algorithms.seam import Query, Server
from odp.numerics.arrays import Float32Array


class TaskAlgorithm(algorithm.TaskAlgorithm):
    """``odp.algorithms.seam.Algorithm`` of tasks that train by DP-FTRL."""

    schedules_cohorts = False

    def stream(self) -> StreamOfTask:
        """The definition's stream, read and checked."""
        return self._stream

    @functools.cached_property
    def _stream(self) -> StreamOfTask:
        return stream_of(self.definition, self.terms())

    def check(self) -> None:
        self.stream()

    def server(self, *, item_features: Float32Array | None = None) -> Server:
        from odp.algorithms.dpftrl.server import StreamServer

        return StreamServer(self.terms(), self.stream(), item_features)

    def query(self, round: int) -> Query:
        self.terms().upload(round)
        return StreamedQuery(self.stream(), round)

    def _planned_releases(self) -> list[tuple[DeclaredRelease, ...]]:
        of_task = self.stream()
        return [StreamedQuery(of_task, place).releases for place in range(of_task.stream.allowed.rounds)]
