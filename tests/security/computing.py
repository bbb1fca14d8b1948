"""All that an accepted definition makes the parties compute: contributions, sums, noise, releases, the next model."""

from __future__ import annotations

from typing import Any

import numpy as np
from combinations.recording import blank_matrix

from odp.algorithms.local_seam import LocalReporter
from odp.algorithms.registry import algorithm_for
from odp.algorithms.release import draw_noise, to_values
from odp.algorithms.seam import Algorithm, LocalData, LocalRows, LocalTable, NoisyTensors, Query
from odp.evaluation.noise import SeededNoise
from odp.models.features import Category, Text
from odp.models.trained import has_program
from odp.privacy.mechanisms.random_source import RandomSource
from odp.privacy.mechanisms.rounded_gaussian import GaussianNoise
from odp.protocol.wire.model import ModelVersion, Slices
from odp.v1 import common_pb2

#: Above, a definition is computed with in the same way, and takes long.
_MOST_NUMBERS, _MOST_BYTES, _ROUNDS = 20_000, 100_000, 3


def compute(definition: common_pb2.TaskDefinition) -> bool:
    """Whether the task is small enough to be computed, of which all results are finite then. Raises where it fails."""
    algorithm = algorithm_for(definition)
    if isinstance(algorithm, LocalReporter):
        return _reports(algorithm)
    planned = algorithm.planned_releases()
    if sum(release.coordinates for release in planned[0]) > _MOST_NUMBERS:
        return False
    if definition.network.start_sha256 or definition.two_tower.network.start_sha256:
        return False  # the bytes of this hash are not at hand
    server = algorithm.server(item_features=blank_matrix(algorithm.definition))
    state = server.start()
    for round in range(min(_ROUNDS, len(planned))):
        broadcast, query = server.broadcast(state), algorithm.query(round)
        _require_finite(broadcast)
        for payload in _payloads(algorithm, broadcast, round):
            query.check(payload)
        tensors = _released(query, algorithm.client().empty(round))
        with np.errstate(all="ignore"):
            state = server.step(state, NoisyTensors(round, tensors, definition.cohort.minimum))
    _require_finite(server.broadcast(state))
    return True


def _reports(algorithm: LocalReporter) -> bool:
    first = algorithm.first_rows()
    if max(algorithm.report_bytes, algorithm.row_bytes * len(first)) > _MOST_BYTES:
        return False
    drawn = first[0] if first else b""
    source = RandomSource()
    reports = [algorithm.report(drawn, _data(algorithm, count), source=source) for count in (0, 3)]
    reports.append(algorithm.empty_report(drawn, source=source))
    algorithm.answers_of_summary(algorithm.summary(first, b"".join(reports)), reports=len(reports))
    return True


def _payloads(algorithm: Algorithm, broadcast: ModelVersion, round: int) -> list[bytes]:
    client = algorithm.client()
    client.check_model(broadcast.dense)
    payloads = [client.empty(round)]
    if has_program(algorithm.definition):  # which a runtime of its own runs
        return payloads
    table = next((table.rows for table in broadcast.tables if table.keyed), None)
    for count in (0, 3):
        data = _data(algorithm, count)
        keys = np.zeros(0, np.int64) if table is None else client.keys(data, round=round, seed=1)
        rows = np.zeros((0, 0), np.float32) if table is None else table[keys]
        with np.errstate(all="ignore"):
            slices = Slices(round, keys, rows, broadcast.dense)
            payloads.append(client.contribute(slices, data, round=round, seed=1)[0])
    return payloads


def _released(query: Query, payload: bytes) -> dict[str, Any]:
    total = query.new_sum()
    total.add([payload])
    sums, noise, tensors = total.totals(), GaussianNoise(SeededNoise(3)), {}
    for release in query.releases:
        tensors[release.name] = to_values(
            release, draw_noise(release, noise) + sums[release.name].reshape(release.shape)
        )
        assert np.isfinite(tensors[release.name]).all(), release.name
    return tensors


def _require_finite(broadcast: ModelVersion) -> None:
    for table in broadcast.tables:
        assert np.isfinite(table.rows).all(), table.name


def _data(algorithm: Algorithm, count: int) -> LocalData:
    return {table.name: _rows(table, count) for table in algorithm.local_data}


def _rows(table: LocalTable, count: int) -> LocalRows:
    features: dict[str, Any] = {}
    for name, feature in table.features.items():
        if isinstance(feature, Category):
            features[name] = np.zeros(count, np.int64)
        elif isinstance(feature, Text):
            features[name] = np.zeros((count, feature.length), np.float32)
        else:
            features[name] = np.zeros((count, *feature.shape))
    if table.text:
        features["text"] = np.array(["ab", "b", "zz"][:count], dtype=str)
    return LocalRows(np.arange(count), np.array([0.0, 1.0, np.nan])[:count], features)
