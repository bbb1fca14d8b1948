"""Whether the times of two devices are shifted: a randomization test, which a busy machine cannot fail.

Runs come in batches; within a batch the order of the runs is drawn at random. If the data have no influence on a time,
then how the times of a batch fall to the two devices is that draw, whatever else the machine did meanwhile. So the test
is exact without any assumption about the machine: the statistic is the number of pairs (one run of each device, same
batch) of which one device's time is later by more than the resolution, and its distribution is that of the ranks in a
random order, convolved over the batches (van Elteren's test).

A shift that is smaller than the resolution is not seen; one that is larger makes every pair count, and five batches of
four and four runs find it with certainty where it exceeds the resolution by the noise of the machine.

Source: Lehmann, "Nonparametrics" (1975), section 3.3; van Elteren (1960).
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

#: Seconds: a shift of this size or less is not told apart. CALIBRATED BELOW.
RESOLUTION = 0.01
#: How often a trial of two devices that are alike fails, all of its times together.
FALSE_ALARMS = 1e-6
#: Runs of each device in a batch, and the batches after which two devices count as alike.
RUNS = 4
MOST_BATCHES = 5


@dataclass(frozen=True)
class Batch:
    """Times by name, seconds, of the runs of two devices."""

    first: tuple[Mapping[str, float], ...]
    second: tuple[Mapping[str, float], ...]


@dataclass(frozen=True)
class Shift:
    """A time that is shifted by more than the resolution: the medians in seconds, and the chance of it without one."""

    name: str
    first: float
    second: float
    chance: float

    def text(self, names: tuple[str, str]) -> str:
        return (
            f"the time of {self.name} differs (chance {self.chance:.1e} for devices that are alike):\n"
            f"  {names[0]}: {1e3 * self.first:.1f} ms\n  {names[1]}: {1e3 * self.second:.1f} ms (medians)"
        )


def first_shift(batches: Sequence[Batch], *, resolution: float, false_alarms: float = FALSE_ALARMS) -> Shift | None:
    """The time whose shift can least be chance; None where each can.

    The rate of false alarms is that of all names and both directions together.
    """
    names = list(batches[0].first[0])
    chances = {name: chance_of(batches, name, resolution=resolution) * 2 * len(names) for name in names}
    name = min(chances, key=chances.__getitem__)
    if chances[name] >= false_alarms:
        return None
    first, second = (
        statistics.median(run[name] for batch in batches for run in (batch.first, batch.second)[arm]) for arm in (0, 1)
    )
    return Shift(name, first, second, chances[name])


def chance_of(batches: Sequence[Batch], name: str, *, resolution: float) -> float:
    """The chance that so many pairs are shifted by more than ``resolution`` one way, the likelier of both ways."""
    counts, distribution = [0, 0], np.ones(1)
    for batch in batches:
        first, second = (np.array([run[name] for run in runs]) for runs in (batch.first, batch.second))
        later = second[None, :] - first[:, None]
        counts[0] += int((later > resolution).sum())
        counts[1] += int((later < -resolution).sum())
        distribution = np.convolve(distribution, pairs_in_order(len(first), len(second)))
    return float(distribution[max(counts) :].sum())


@functools.cache
def pairs_in_order(first: int, second: int) -> np.ndarray:
    """The chance of each number of pairs in which the second comes later, for a random order: float64 [pairs + 1].

    The coefficients of the Gaussian binomial, by its recurrence.
    """

    @functools.cache
    def ways(left: int, right: int) -> tuple[int, ...]:
        if not left or not right:
            return (1,)
        # The last run of all is one of the first device's, or one of the second's, which is later than all ``left``.
        made = [0] * (left * right + 1)
        for count, number in enumerate(ways(left - 1, right)):
            made[count] += number
        for count, number in enumerate(ways(left, right - 1)):
            made[count + left] += number
        return tuple(made)

    return np.array(ways(first, second), dtype=np.float64) / math.comb(first + second, first)
