"""A release of 2^22 numbers, 32 MiB, in an aggregator of real processes that is killed at each step of it.

In CI, ``trusted_aggregator/host/test_detached_releases.py`` has these deaths without processes,
``host/test_storage.py`` kills at every step of writing pieces, and ``e2e/test_detached_releases.py`` trains with such
releases.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from e2e.test_stream_kill import SECONDS, Aggregator
from worlds import conftest_of

from odp import Cohort, Histogram, Statistics, UserLevelDP
from odp.algorithms.release import LARGEST_ATTACHED_BYTES
from odp.crypto import domains
from odp.signed.release import ReleaseRefused, open_release, whole_values
from odp.transport.channel import CHUNK_BYTES
from odp.trust.enclave.platform import EmulatedPlatform
from odp.v1 import aggregator_pb2, common_pb2

pytestmark = [pytest.mark.processes, pytest.mark.proof]

BINS = 2**22
DEVICES = 3

StatisticsWorld: Any = conftest_of("trusted_aggregator").StatisticsWorld


class LargeWorld(StatisticsWorld):  # type: ignore[misc]
    """Two histograms whose release no message holds."""

    bins = BINS // 2

    def definition(self, *, minimum: int, epsilon: float, name: str = "histograms") -> common_pb2.TaskDefinition:
        return Statistics(
            name=name,
            queries={name: Histogram(bins=self.bins) for name in ("items", "again")},
            privacy=UserLevelDP(epsilon=epsilon, delta=1e-6),
            cohort=Cohort(minimum=minimum, goal=2 * minimum),
            population=self.population,
        ).definition()


class LargeAggregator(Aggregator):
    """Contributions and values in pieces."""

    def send(self, device: int) -> int:
        plaintext = self._world.contribution(device, 0).SerializeToString()
        sealed = self._world.seal(plaintext, 0, key=self._key)

        def parts() -> Iterator[aggregator_pb2.SubmitStreamRequest]:
            header = aggregator_pb2.SubmitHeader(task_sha256=self._world.task_sha256, sealed_key=sealed[:80])
            yield aggregator_pb2.SubmitStreamRequest(header=header)
            for start in range(0, len(sealed), CHUNK_BYTES):
                yield aggregator_pb2.SubmitStreamRequest(chunk=sealed[start : start + CHUNK_BYTES])

        return int(self._devices.SubmitStream(parts(), timeout=SECONDS).refusal)

    def values(self) -> Iterator[bytes]:
        order, _ = self._world.order(0, domains.CLOSE)
        request = aggregator_pb2.GetReleasedValuesRequest(order=order)
        return (reply.chunk for reply in self._orders.GetReleasedValues(request, timeout=SECONDS))


def test_a_long_release_survives_kills_at_each_step_and_damaged_pieces_are_refused(tmp_path: Path) -> None:
    world = LargeWorld(EmulatedPlatform.open(tmp_path / "other-chip"), "people", minimum=DEVICES)
    with contextlib.ExitStack() as stack:

        def begin() -> LargeAggregator:
            aggregator = LargeAggregator(world, tmp_path / "state")
            stack.callback(aggregator.kill)
            return aggregator

        aggregator = begin()
        aggregator.open(0)
        aggregator.kill()
        aggregator = begin()
        aggregator.open(0)
        with pytest.raises(grpc.RpcError) as early:
            list(aggregator.values())
        assert early.value.code() is grpc.StatusCode.FAILED_PRECONDITION  # type: ignore[attr-defined]
        assert [aggregator.send(device) for device in range(DEVICES)] == [0] * DEVICES
        aggregator.kill()
        aggregator = begin()
        signed = aggregator.close(0)
        release = open_release(
            common_pb2.SignedRelease.FromString(signed), task_sha256=world.task_sha256, round=0,
            model_sha256=world.model(0), declared=world.algorithm.query(0).releases, signing_key=None,
        )  # fmt: skip
        assert release.values_bytes == 8 * BINS > LARGEST_ATTACHED_BYTES
        assert len(signed) < 2_000
        half = aggregator.values()
        next(half)
        aggregator.kill()
        with pytest.raises(grpc.RpcError):
            list(half)
        aggregator = begin()
        assert aggregator.close(0) == signed
        values = whole_values(release, aggregator.values())
        query = world.algorithm.query(0)
        total = query.new_sum()
        for device in range(DEVICES):
            total.add([world.payload(device)])
        (sums,) = total.totals().values()
        np.testing.assert_array_equal(np.frombuffer(values, "<i8"), sums)
        assert hashlib.sha256(values).digest() == release.values_sha256

        (stored,) = (tmp_path / "state" / "pieces").iterdir()
        with stored.open("r+b") as file:
            file.seek(5 * 2**20)
            byte = file.read(1)[0]
            file.seek(5 * 2**20)
            file.write(bytes([byte ^ 1]))
        pieces = aggregator.values()
        with pytest.raises(grpc.RpcError) as damaged:
            list(pieces)
        assert damaged.value.code() is grpc.StatusCode.INTERNAL  # type: ignore[attr-defined]
        assert "cannot use its storage; see its log" in damaged.value.details()  # type: ignore[attr-defined]
        stored.unlink()
        with pytest.raises((grpc.RpcError, ReleaseRefused)):
            whole_values(release, aggregator.values())
