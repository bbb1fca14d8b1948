"""Protection against reconstruction: how probable it is that an observer rebuilds a person's data, at most.

Pure epsilon bounds the odds of every guess, after *every* output. Let the observer's prior give each fixed guess that
is good enough a probability of at most p0. Then no estimator, whatever it computes from the reports, is good enough
with a probability above

    alpha = min(1, e^epsilon p0),     epsilon of all reports of the person, over the whole life of the device.

- *Projection* (``projection_breach``): the target is a unit vector of k dimensions, for example a normalised linear
  projection of the data. The prior has a density of at most e^excess times the uniform one on the sphere. A guess is a
  breach if its cosine with the target is at least ``correlation``: the distance is at most sqrt(2 - 2 correlation).
  Then p0 = e^excess times the probability of a cap of the sphere.
- *Dictionary* (``dictionary_breach``): the target is a set of items. By the prior, each item of a public dictionary is
  in it independently, with its own probability. A guess is a breach if its precision and its recall are at least the
  stated ones. Then p0 is that of the best fixed guess, by the exact law of Poisson-binomial sums.

Only pure epsilon gives this. Gaussian noise, (epsilon, delta) and Renyi bounds allow an output, however rare, after
which reconstruction is certain: they get no certificate. Shuffling gives none either: of shuffled reports, the epsilon
of each report alone counts.

Source: Bhowmick, Duchi, Freudiger, Kapoor, Rogers 2018 (arXiv 1812.00984), lemma 2.2, propositions 1 and 2. The cap is
its exact probability, not the simplified bound printed there, which is 13 to 40 times looser.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from odp import _validate
from odp.errors import ConfigurationError, PrivacyError
from odp.privacy.local_events import LocalReport, ShuffledReports
from odp.privacy.mechanisms import spherical_cap

if TYPE_CHECKING:
    import numpy.typing as npt

LARGEST_EPSILON = 1e6
LARGEST_DICTIONARY = 4096

_MARGIN = 1e-7  # above the relative error of every probability here
_LEAST = 1e-290  # below it, products of probabilities may have underflowed


@dataclass(frozen=True)
class ReconstructionCertificate:
    """An upper bound of the probability of a reconstruction breach, with all that it assumes.

    Attributes:
        epsilon: pure, of all participations.
        target: what the observer wants to rebuild, in words.
        prior: what it knows before, in words.
        tolerance: what counts as a breach, in words.
        log_prior: logarithm of the probability that the best guess without any report is a breach, at most.
    """

    epsilon: float
    target: str
    prior: str
    tolerance: str
    log_prior: float

    @property
    def log_probability(self) -> float:
        """Logarithm of ``probability``; finite where that underflows to 0."""
        return min(0.0, self.epsilon + self.log_prior)

    @property
    def probability(self) -> float:
        """alpha: the bound, rounded up; 1 where the certificate says nothing."""
        return min(1.0, math.exp(self.log_probability) * (1.0 + _MARGIN))

    @property
    def prior_probability(self) -> float:
        """The same before any report."""
        return min(1.0, math.exp(min(0.0, self.log_prior)) * (1.0 + _MARGIN))

    def to_json(self) -> dict[str, object]:
        """Plain values; ``log_probability`` and ``log_prior`` are natural logarithms."""
        return {
            "epsilon": self.epsilon,
            "target": self.target,
            "prior": self.prior,
            "tolerance": self.tolerance,
            "prior_probability": self.prior_probability,
            "log_prior": self.log_prior if math.isfinite(self.log_prior) else None,
            "probability": self.probability,
            "log_probability": self.log_probability if math.isfinite(self.log_probability) else None,
        }

    @property
    def in_words(self) -> str:
        """One line for a report."""
        bound = f"at most {self.probability:.3e}" if self.probability < 1.0 else "not bounded: epsilon is too large"
        return (
            f"{self.target}; breach: {self.tolerance}; prior: {self.prior}; epsilon {self.epsilon:g} of all"
            f" participations; probability of a breach {bound} ({self.prior_probability:.3e} before any report)"
        )


def lifetime_epsilon(events: Iterable[object]) -> float:
    """The pure epsilon of all reports of one person together, for whoever sees them under the person's name.

    Args:
        events: one for every participation. Of shuffled reports, the epsilon of the report alone counts.

    Raises:
        PrivacyError: an event is not of a pure local randomiser, so there is no certificate.
    """
    epsilons = []
    for event in events:
        if isinstance(event, LocalReport):
            epsilons.append(event.epsilon)
        elif isinstance(event, ShuffledReports):
            epsilons.append(event.epsilon0)
        else:
            name = getattr(event, "name", type(event).__name__)
            raise PrivacyError(
                f"{name} is not a report with pure epsilon: Gaussian noise, (epsilon, delta) and Renyi bounds give no"
                " certificate against reconstruction; take a task of local trust"
            )
    return math.fsum(epsilons)


def projection_breach(
    epsilon: float,
    dimension: int,
    *,
    correlation: float | None = None,
    tolerance: float | None = None,
    excess: float = 0.0,
) -> ReconstructionCertificate:
    """The certificate for a unit vector, by proposition 1.

    Args:
        epsilon: pure, of all participations (``lifetime_epsilon``); from 0 to 10^6.
        dimension: k, of the projection; from 2 to 10^9.
        correlation: the least cosine of a breach, from 0 to 1; or ``tolerance``, exactly one of the two.
        tolerance: the largest distance of a breach, from 0 to sqrt 2.
        excess: rho0: the density of the prior is at most e^excess times the uniform one; 0 is the uniform prior.

    Raises:
        ConfigurationError: a number is out of range, or not exactly one of correlation and tolerance.
    """
    _validate.within(low=0.0, high=LARGEST_EPSILON, epsilon=epsilon)
    _validate.within(low=0.0, high=LARGEST_EPSILON, excess=excess)
    cosine = _cosine(correlation, tolerance)
    cap = spherical_cap.log_probability(dimension, cosine)
    distance = math.sqrt(2.0 - 2.0 * cosine)
    density = "uniform on the sphere" if excess == 0.0 else f"density at most e^{excess:g} times uniform on the sphere"
    return ReconstructionCertificate(
        epsilon=float(epsilon),
        target=f"a unit vector of {dimension} dimensions",
        prior=density,
        tolerance=f"cosine of at least {cosine:g} (distance of at most {distance:.4g})",
        log_prior=min(0.0, excess + cap),
    )


def _cosine(correlation: float | None, tolerance: float | None) -> float:
    if correlation is not None and tolerance is None:
        _validate.within(low=0.0, high=1.0, correlation=correlation)
        return correlation
    if tolerance is not None and correlation is None:
        _validate.within(low=0.0, high=math.sqrt(2.0), tolerance=tolerance)
        return max(0.0, 1.0 - 0.5 * tolerance * tolerance)
    raise ConfigurationError("Expected exactly one of correlation and tolerance: either follows from the other")


def dictionary_breach(
    epsilon: float, probabilities: Sequence[float], *, precision: float, recall: float
) -> ReconstructionCertificate:
    """The certificate for a set of items, by proposition 2.

    Args:
        epsilon: pure, of all participations (``lifetime_epsilon``); from 0 to 10^6.
        probabilities: one per item of the dictionary, at most 4,096: that a person has it, independently of all
            others. State them from public data, never from the people to be protected.
        precision: least share of a breach's guessed items that are right, above 0 and at most 1.
        recall: least share of the person's items that a breach guesses, above 0 and at most 1.

    Raises:
        ConfigurationError: a number is out of range, or the dictionary is empty or too large.
    """
    _validate.within(low=0.0, high=LARGEST_EPSILON, epsilon=epsilon)
    for name, value in (("precision", precision), ("recall", recall)):
        _validate.within(low=0.0, high=1.0, **{name: value})
        _validate.positive(**{name: value})
    chances = np.asarray(probabilities, dtype=np.float64)
    if chances.ndim != 1 or not 1 <= chances.size <= LARGEST_DICTIONARY:
        raise ConfigurationError(
            f"Expected probabilities of 1 to {LARGEST_DICTIONARY} items (got shape {chances.shape}): merge rare items"
        )
    if not np.all((chances >= 0.0) & (chances <= 1.0)):
        raise ConfigurationError("Expected every probability of an item to be within [0, 1]")
    best, size = _best_guess(np.sort(chances)[::-1], precision, recall)
    return ReconstructionCertificate(
        epsilon=float(epsilon),
        target=f"a set of items of a dictionary of {chances.size}",
        prior=f"independent items, {float(np.sum(chances)):.4g} expected; the best fixed guess has {size} items",
        tolerance=f"precision of at least {precision:g} and recall of at least {recall:g}",
        log_prior=math.log(max(best, _LEAST)),
    )


def _best_guess(sorted_down: npt.NDArray[np.float64], precision: float, recall: float) -> tuple[float, int]:
    """The largest probability of a breach by a fixed guess, and the size of that guess.

    Of all guesses of one size, the most probable items are best: to exchange a guessed item for a more probable one
    makes one more hit instead of one more miss likelier, and a breach grows with hits and falls with misses. For every
    size, hits H (of the guessed items) and misses M (of the others) are independent Poisson-binomial sums, and a breach
    is H >= precision * size, M <= H (1 - recall) / recall. All terms are products and sums of probabilities, so that
    tiny results keep their digits.
    """
    size = sorted_down.size
    below: list[npt.NDArray[np.float64]] = [np.ones(1)]  # laws of the misses, for 0, 1, .. of the rarest items
    for probability in sorted_down[::-1][:-1]:
        below.append(_one_more(below[-1], float(probability)))
    hits, best, guess = np.ones(1), 0.0, 1
    for number in range(1, size + 1):
        hits = _one_more(hits, float(sorted_down[number - 1]))
        misses = np.cumsum(below.pop())
        # Rounding of the two limits goes to the side of a breach.
        least = max(1, math.ceil(precision * number * (1.0 - 1e-12)))
        right = np.arange(least, number + 1)
        allowed = np.floor(right * ((1.0 - recall) / recall) * (1.0 + 1e-12) + 1e-12).astype(np.int64)
        if (chance := float(hits[right] @ misses[np.minimum(allowed, misses.size - 1)])) > best:
            best, guess = chance, number
    return min(best, 1.0), guess


def _one_more(law: npt.NDArray[np.float64], probability: float) -> npt.NDArray[np.float64]:
    """The law of a sum of coins, with one more coin."""
    longer = np.zeros(law.size + 1)
    longer[:-1] = (1.0 - probability) * law
    longer[1:] += probability * law
    return longer
