"""A round of a factorization as one vector per device: what masks can hide, since nobody opens a contribution.

An enclave that opens contributions expands them itself, and adds noise of a size of its own to each release. Under
masks a device expands its own: it lays all releases of the round side by side, each number divided by the standard
deviation of its noise, and rounds them to one grid. So the whole has noise of 1 in every place, a user moves it by

    clip = sqrt(sum over releases of (sensitivity / noise)^2)

at most, and the charge is that of the releases together. The server multiplies the deviations back. Each honest device
keeps the clip by itself; what one does that is not honest, nobody sees: its numbers can be as large as the ring allows,
which costs accuracy and nobody's privacy (N14 of the threat model).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from odp.algorithms.declared import GaussianSum
from odp.algorithms.dense.grid import MAX_CONTRIBUTIONS, Grid
from odp.algorithms.dense.query import DenseQuery
from odp.algorithms.seam import Query
from odp.errors import ConfigurationError
from odp.protocol.aggregation import mode_of, noise_sharers
from odp.v1 import common_pb2

RELEASE = "vector"
#: Numbers of one vector: 16 MiB of upload.
MOST_NUMBERS = 2**22
_ROOM = 2  # contributions that a round takes over its goal, where an enclave adds the noise


@dataclass(frozen=True)
class WholeVector:
    """The vector of one round.

    Attributes:
      releases: what an enclave that opens contributions releases, in order.
      grid: of the vector, in standard deviations of the noise.
    """

    releases: tuple[GaussianSum, ...]
    grid: Grid

    @classmethod
    def of(cls, query: Query, definition: common_pb2.TaskDefinition) -> WholeVector:
        """That of the round of ``query``.

        Raises:
          ConfigurationError: the vector is larger than a device sends, or its sums do not fit their integers.
        """
        cohort, mode = definition.cohort, mode_of(definition.cohort)
        releases = tuple(release for release in query.releases if isinstance(release, GaussianSum))
        size = sum(release.coordinates for release in releases)
        if size > MOST_NUMBERS:
            raise ConfigurationError(
                f"Expected at most {MOST_NUMBERS:,} numbers of a contribution with aggregation={mode.name!r}, where a "
                f"device sends those of all items (got {size:,}): take fewer items, a lower rank, or "
                "aggregation='enclave'"
            )
        if any(not release.noise_std for release in releases):
            raise ConfigurationError(f"Expected epsilon to be finite with aggregation={mode.name!r}")
        sharers = noise_sharers(cohort)
        clip = math.sqrt(math.fsum((release.sensitivity / release.noise_std) ** 2 for release in releases))
        maximum = min(cohort.goal if sharers else _ROOM * cohort.goal, MAX_CONTRIBUTIONS)
        return cls(releases, Grid.chosen(size=size, clip=clip, noise_std=1.0, maximum=maximum, sharers=sharers))

    @property
    def query(self) -> DenseQuery:
        """What the round declares."""
        return DenseQuery(RELEASE, self.grid)


def whole_vector(query: Query, definition: common_pb2.TaskDefinition) -> WholeVector | None:
    """The vector of the round of ``query``; None where an enclave opens contributions. Raises as ``WholeVector.of``."""
    return WholeVector.of(query, definition) if mode_of(definition.cohort).dense_only else None
