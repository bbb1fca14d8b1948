"""What the settings of ``odp.HeavyHitters`` become where nobody is trusted."""

from __future__ import annotations

import math

from odp.algorithms.choices import without_rounds
from odp.algorithms.local_heavy_hitters.terms import MOST_CELLS
from odp.v1 import common_pb2, heavy_hitters_pb2

# More functions make collisions rarer, and decoding slower.
_HASHES = 160


def write(
    definition: common_pb2.TaskDefinition, words: heavy_hitters_pb2.WordTerms, *, prefixes: int, threshold: float
) -> None:
    """Writes sketches of ``words`` into a definition that has its privacy and cohort; ``goal`` bounds its reports."""
    # Depths are two characters apart: each has devices of its own, so fewer depths mean less noise.
    depths = list(range(words.length, 0, -2))[::-1]
    buckets = best_buckets(definition.privacy.epsilon)
    sketches = heavy_hitters_pb2.LocalHeavyHitters(
        words=words,
        report_epsilon=definition.privacy.epsilon,
        depths=depths,
        hashes=min(_HASHES, MOST_CELLS // (buckets * len(depths))),
        buckets=buckets,
        prefixes=prefixes,
        threshold=threshold,
        most_reports=definition.cohort.goal,
    )
    definition.local_heavy_hitters.CopyFrom(sketches)
    without_rounds(definition)


def best_buckets(epsilon: float) -> int:
    """The number of buckets of least variance, exp(epsilon) + 1, within what a report may have."""
    return min(256, max(2, round(math.exp(epsilon)) + 1))
