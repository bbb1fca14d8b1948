"""A task of DP-FTRL at an enclave: its devices send vectors that a test chooses."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from worlds import conftest_of

from odp.algorithms.dpftrl.config import DPFTRL
from odp.models.examples import Examples
from odp.models.features import Tensor
from odp.models.glm import Glm
from odp.numerics.arrays import Int64Array
from odp.protocol.terms import Cohort, UserLevelDP
from odp.tasks.task import Task
from odp.v1 import common_pb2

SIZE = 5
ROUNDS = 6

World: Any = conftest_of("trusted_aggregator").World


class StreamWorld(World):  # type: ignore[misc]
    """``training`` are the options of ``odp.DPFTRL``; every device's vector is a function of device and round."""

    training: ClassVar[dict[str, Any]] = {"min_separation": 2}
    aggregation = "enclave"

    def definition(self, *, minimum: int, epsilon: float, name: str = "stream") -> common_pb2.TaskDefinition:
        return Task(
            name=name,
            model=Glm("linear", SIZE - 1),
            data=Examples({"x": Tensor((SIZE - 1,), -1.0, 1.0)}, label_low=-1.0, label_high=1.0),
            privacy=UserLevelDP(epsilon=epsilon, delta=1e-6),
            training=DPFTRL(**{"rounds": ROUNDS, **self.training}),
            cohort=Cohort(minimum=minimum, goal=2 * minimum, aggregation=self.aggregation),
            population=self.population,
        ).definition()

    def vector(self, device: int, round: int) -> Int64Array:
        """In steps of the grid, within the bound."""
        units = self.algorithm.query(round).grid.units
        direction = np.random.default_rng([device, round]).normal(size=SIZE)
        steps: Int64Array = np.trunc(direction / np.linalg.norm(direction) * units).astype(np.int64)
        return steps

    def payload(self, device: int, round: int = 0, *, seed: int = 0) -> bytes:
        return self.vector(device, round).astype("<i4").tobytes()

    def integers(self, signed_release: bytes) -> Int64Array:
        """What a release has, in steps of the encoded grid."""
        release = common_pb2.Release.FromString(common_pb2.SignedRelease.FromString(signed_release).release)
        (tensor,) = release.tensors
        return np.frombuffer(tensor.integers, "<i8").astype(np.int64)

    def run_round(self, round: int, devices: Any) -> Int64Array:
        """Opens, fills and closes a round; the server learns the release."""
        self.open(round)
        self.fill(devices, round)
        return self.finish_round(round)

    def finish_round(self, round: int) -> Int64Array:
        signed = self.close(round)
        self.learn(signed)
        return self.integers(signed)
