"""Released histograms and means in the units of the question, with intervals for what the noise did to them.

The noise's law is public, so an interval costs no privacy. It covers the noise alone: the devices that contributed are
counted as they are, not as a sample of others, and what a clip cut off is not in it. Each interval holds for its own
number.
"""

from __future__ import annotations

from dataclasses import dataclass

from odp import _validate
from odp.algorithms.dense.quotient import quotient_interval
from odp.algorithms.estimates import CONFIDENCE, Estimate, deviations, quantile
from odp.errors import ConfigurationError
from odp.identity import normal
from odp.numerics.arrays import Float64Array


@dataclass(frozen=True)
class HistogramResult:
    """A released histogram.

    Attributes:
      counts: float64 [bins], unbiased: noise can make a small count negative.
      std: standard deviation of the noise on each count, of all or float64 [bins].
      edges: float64 [bins + 1] of values, None of items.
      counting: "users", "records" or "shares".
      sum_std: float64 [bins] for sums of counts, as of independent noise, where the noise of counts is correlated: the
        variance of any sum with weights w is at most that of (w sum_std)^2. None where it is not.
      labels: that the question gave to the bins; () for none.
    """

    counts: Float64Array
    std: float | Float64Array
    edges: Float64Array | None
    counting: str
    sum_std: Float64Array | None = None
    labels: tuple[str, ...] = ()

    def name(self, bin: int) -> str:
        """What people call a bin: its label, its range of values, or the id of its item."""
        if self.labels:
            return self.labels[bin]
        return str(bin) if self.edges is None else f"{self.edges[bin]:g} .. {self.edges[bin + 1]:g}"

    def count(self, label: str) -> float:
        """The count of the bin with this label. Raises ConfigurationError where there is none."""
        if not self.labels:
            raise ConfigurationError(
                f"Expected a histogram with labels for label={label!r}: this one has none, and its counts are by place"
            )
        spelled = normal(label) if isinstance(label, str) else label
        _validate.one_of(self.labels, label=spelled)
        return float(self.counts[self.labels.index(spelled)])

    def interval(self, confidence: float = CONFIDENCE) -> tuple[Float64Array, Float64Array]:
        """(low, high), float64 [bins] each."""
        reach = deviations(confidence) * self.std
        return self.counts - reach, self.counts + reach

    def quantile(self, q: float, confidence: float = CONFIDENCE) -> Estimate:
        """The value below which a share ``q`` of what was counted lies, interpolated within its bin.

        The interval ends at edges: those of which the noise leaves open on which side they lie, all at once.

        Raises:
          ConfigurationError: ``q`` or ``confidence`` is not strictly between 0 and 1, or the bins are of items.
        """
        if self.edges is None:
            raise ConfigurationError("Expected a histogram of values for a quantile: items have no order")
        std = self.std if self.sum_std is None else self.sum_std
        return quantile(self.counts, std=std, edges=self.edges, q=q, confidence=confidence)


@dataclass(frozen=True)
class MeanResult:
    """A released mean, as the quotient of two noisy sums.

    Attributes:
      total: sum of weight * mean over users, moved and scaled so that [low, high] became [-1, 1].
      weight: sum of the users' weights.
      std: standard deviation of the noise on ``total``, and on ``weight`` unless ``weight_std`` says otherwise.
      low, high: the declared range; every estimate lies within it.
      weight_std: standard deviation of the noise on ``weight``; None where it is ``std``.
      covariance: of the noise on both.
    """

    total: float
    weight: float
    std: float
    low: float
    high: float
    weight_std: float | None = None
    covariance: float = 0.0

    @property
    def value(self) -> float:
        """The estimate; the middle of the range where the noisy weight is not positive."""
        return self._real(self.total / self.weight if self.weight > 0 else 0.0)

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """(low, high): exact for any weight; the whole range where the noise hides whether there was any."""
        variance = self.std**2
        of_weight = variance if self.weight_std is None else self.weight_std**2
        interval = quotient_interval(
            (self.total, variance), (self.weight, of_weight), deviations=deviations(confidence),
            covariance=self.covariance,
        )  # fmt: skip
        return (self.low, self.high) if interval is None else (self._real(interval[0]), self._real(interval[1]))

    def _real(self, quotient: float) -> float:
        middle, half = 0.5 * (self.low + self.high), 0.5 * (self.high - self.low)
        return middle + half * min(1.0, max(-1.0, quotient))
