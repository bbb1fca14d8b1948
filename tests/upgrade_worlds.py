"""A world of each mode and kind of task, for hand-overs in the middle of a round."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from stream_worlds import StreamWorld
from worlds import conftest_of

from odp.crypto import domains
from odp.crypto.secure_aggregation.masked import Halves, mask, set_sha256
from odp.v1 import common_pb2
from trusted_aggregator.boundary.interface import HostSum
from trusted_aggregator.state.records import SealedRecord, noise_key, stream_key

_conftest: Any = conftest_of("trusted_aggregator")
World, StatisticsWorld = _conftest.World, _conftest.StatisticsWorld


class SampledWorld(World):  # type: ignore[misc, valid-type]
    """Contributions are drawn inside the enclave."""

    def definition(self, *, minimum: int, epsilon: float, name: str = "sampled") -> common_pb2.TaskDefinition:
        definition: common_pb2.TaskDefinition = super().definition(minimum=minimum, epsilon=epsilon, name=name)
        draw = definition.cohort.enclave_poisson
        draw.probability, draw.most_contributions, draw.cap = 0.5, 100, 98
        return definition


class Masking:
    """Mixed into a world of dense contributions: the host holds a masked vector of each."""

    aggregation = "masked"

    def halve(self: Any, device: int, round: int) -> Halves:
        cache = self.__dict__.setdefault("halves", {})
        key = self.task_sha256, device, round
        if key not in cache:
            info = domains.masked_vector_info(self.task_sha256, round)
            cache[key] = mask(self.vector_of(device, round), info=info)
        found: Halves = cache[key]
        return found

    def payload(self: Any, device: int, round: int = 0, *, seed: int = 0) -> bytes:
        secret: bytes = self.halve(device, round).secret
        return secret

    def fill(self: Any, devices: Iterable[int], round: int = 0) -> None:
        held = self.__dict__.setdefault("vectors", {})
        for device in devices:
            vector = self.halve(device, round).vector
            digest = hashlib.sha256(vector).digest()
            held[digest] = vector
            sealed = self.sealed(device, round)
            refusal = self.core.submit(self.task_sha256, round, sealed, host_sha256=digest)
            assert refusal is None
            self.rows.setdefault((self.task_sha256, round), []).append(sealed + digest)

    def seal_release(self: Any, round: int = 0) -> tuple[SealedRecord, ...]:
        digests: list[bytes] = []
        while page := self.core.host_parts(self.task_sha256, round, len(digests)):
            digests += [page[start : start + 32] for start in range(0, len(page), 32)]
        vectors = [np.frombuffer(self.__dict__["vectors"][digest], dtype="<u4") for digest in digests]
        total = np.sum(vectors, axis=0, dtype=np.uint32).astype("<u4").tobytes()
        return self.core.seal_release(  # type: ignore[no-any-return]
            self.order(round, domains.CLOSE)[0],
            noise=self.records.get(noise_key(self.task_sha256, round)),
            stream=self.records.get(stream_key(self.task_sha256, round)),
            host_sum=HostSum(total, set_sha256(self.task_sha256, round, sorted(digests))),
        )


class MaskedStatistics(Masking, StatisticsWorld):  # type: ignore[misc, valid-type]
    """A masked histogram."""

    def vector_of(self, device: int, round: int) -> bytes:
        whole: bytes = StatisticsWorld.payload(self, device, round)
        return whole


class MaskedStream(Masking, StreamWorld):
    """A masked stream of DP-FTRL."""

    def vector_of(self, device: int, round: int) -> bytes:
        return StreamWorld.payload(self, device, round)


class LargeStatistics(StatisticsWorld):  # type: ignore[misc, valid-type]
    """Contributions in segments."""

    bins = 300_000


class SecAggStatistics(StatisticsWorld):  # type: ignore[misc, valid-type]
    """A histogram whose contributions never come to the enclave."""

    aggregation = "secagg+"


#: By mode and kind of task: the world, and the round that an upgrade comes in the middle of.
KINDS: dict[str, tuple[Callable[..., Any], int]] = {
    "dpam": (World, 0),
    "dpam, later": (World, 1),
    "sampled": (SampledWorld, 0),
    "statistics": (StatisticsWorld, 0),
    "large": (LargeStatistics, 0),
    "masked": (MaskedStatistics, 0),
    "stream, first": (StreamWorld, 0),
    "stream": (StreamWorld, 2),
    "masked stream": (MaskedStream, 2),
}
#: Its contributions cannot be void.
SECAGG: tuple[Callable[..., Any], int] = (SecAggStatistics, 0)
