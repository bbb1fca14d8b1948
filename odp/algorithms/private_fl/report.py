"""A device's report of its update: a random direction times a random length, private before it leaves the device.

With the update u of norm r, cut at ``largest_norm``:

    Z = PrivUnit2(u / r) ScalarDP(r)

The two answers are independent, and each has the expectation of what it stands for, so E Z = u wherever r is within
``largest_norm``. The report is (epsilon of the direction + epsilon of the length)-locally private for any two inputs,
no examples at all included: a zero update has a uniform direction. Everything after it, rounding, projection and
encryption, is post-processing.

|Z| is at most ``longest``, whatever the update: the bound that the enclave enforces can be above it, and then no report
is ever shortened.

Source: Bhowmick, Duchi, Freudiger, Kapoor, Rogers 2018, "Protection Against Reconstruction and Its Applications in
Private Federated Learning", sections 3.1, 4.1 and 4.3.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from odp.algorithms.federated.terms import Terms
from odp.algorithms.private_fl.checks import check_numbers
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float32Array
from odp.privacy.local_charge import LocalCharge
from odp.privacy.mechanisms.privunit import PrivUnit
from odp.privacy.mechanisms.random_source import RandomSource
from odp.privacy.mechanisms.scalar import ScalarDP
from odp.privacy.mechanisms.separated import SeparatedVector
from odp.v1 import common_pb2, private_fl_pb2

DIRECTION, MAGNITUDE = "direction", "magnitude"
#: PrivUnit2 needs a sphere.
LEAST_SIZE = 2


@dataclass(frozen=True)
class Reports:
    """The two randomizers of a task, and how often a device may use them."""

    direction: PrivUnit
    magnitude: ScalarDP
    most: int

    @classmethod
    def chosen(
        cls, *, size: int, direction_epsilon: float, magnitude_epsilon: float, largest_norm: float, most: int
    ) -> Reports:
        """The randomizers with the least error at these epsilons, for a model of ``size`` parameters.

        Raises:
          ConfigurationError: a number is out of range.
        """
        _require_size(size)
        return cls(
            PrivUnit.calibrated(size, direction_epsilon),
            ScalarDP(asked=magnitude_epsilon, high=largest_norm, clip=True),
            most,
        )

    @classmethod
    def of(cls, definition: common_pb2.TaskDefinition, terms: Terms) -> Reports:
        """Those of a definition, checked.

        Raises:
          ConfigurationError: a number is missing or out of range, or the definition bounds what has no bound here.
        """
        message, size = definition.private_fl.report, terms.model.size
        check_numbers(message)
        _require_size(size)
        return cls(
            PrivUnit(size, message.cap_height, message.cap_probability),
            ScalarDP(asked=message.magnitude_epsilon, high=message.largest_norm, levels=message.levels, clip=True),
            message.most_participations,
        )

    def to_proto(self) -> private_fl_pb2.PrivateReportTerms:
        """Their numbers in a definition."""
        return private_fl_pb2.PrivateReportTerms(
            cap_height=self.direction.gamma,
            cap_probability=self.direction.p,
            largest_norm=self.magnitude.high,
            levels=self.magnitude.steps,
            magnitude_epsilon=self.magnitude.asked,
            most_participations=self.most,
        )

    @functools.cached_property
    def vector(self) -> SeparatedVector:
        """Both randomizers as one, of an update."""
        return SeparatedVector(direction=self.direction, length=self.magnitude)

    @property
    def longest(self) -> float:
        """Norm of the longest report that there is."""
        return self.vector.longest

    @property
    def charge(self) -> LocalCharge:
        """What they cost a device."""
        return LocalCharge(
            ((DIRECTION, self.direction.epsilon), (MAGNITUDE, self.magnitude.epsilon)),
            self.most,
            self.direction.dimension,
        )

    def mean_square(self, norm: float) -> float:
        """E |Z|² for an update of this norm."""
        return float(self.vector.mean_square(np.array([norm]))[0])

    def randomized(self, moved: npt.NDArray[np.floating], *, source: RandomSource) -> Float32Array:
        """Reports float32 [users, size] of updates [users, size], one for each, whatever it is.

        An update of zeros, or with a number that is not finite, counts as of norm 0.
        """
        reports = self.vector.randomize(np.asarray(moved, dtype=np.float64), source=source)
        return self.vector.decode(reports).astype(np.float32)


def room_for_rounding(longest: float) -> float:
    """A bound a little above ``longest``, so that rounding to a grid shortens no report."""
    return math.nextafter(longest * (1.0 + 2.0**-10), math.inf)


def _require_size(size: int) -> None:
    if size < LEAST_SIZE:
        raise ConfigurationError(
            f"Expected a model of at least {LEAST_SIZE} parameters (got {size}): its updates need a direction"
        )
