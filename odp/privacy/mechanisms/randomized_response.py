"""k-ary randomized response: one answer out of k that is private by itself, for any observer.

With a secret coin of probability q the answer is drawn uniformly from all k choices, the true one included; otherwise
it is the true one. For any two truths x, x' and any answer y

    P(y | x) / P(y | x')  <=  (1 - q + q / k) / (q / k)  =  1 + k (1 - q) / q  =  exp(epsilon)

which is (epsilon, 0)-*local* differential privacy: no party but the device holds the truth.

- q is a multiple of 2^-64, and the coin and the uniform draw are exact on it: the stated epsilon is that of the integer
  q, and never above the one that was asked for.
- The draw is over the full range. Drawing from the *other* choices alone, or from a range without its ends, gives
  another epsilon than the one stated; so does a coin of floating-point numbers.

Source: Kairouz, Bonawitz, Ramage 2016, "Discrete distribution estimation under local privacy", section 3 (k-RR), with
q = k / (k - 1 + exp(epsilon)).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

from odp import _validate
from odp.errors import ConfigurationError

_WORD = 64
_ONE = 1 << _WORD
MOST_CHOICES = 2**20
#: Below it the answer says nothing at all.
SMALLEST_EPSILON = 1e-6
#: Beyond it the answer is as good as the truth.
LARGEST_EPSILON = 16.0


@dataclass(frozen=True, kw_only=True)
class RandomizedResponse:
    """The mechanism of one question.

    Attributes:
      choices: the answers are 0 .. choices - 1; from 2 to 2^20.
      asked: the epsilon that was asked for, from 1e-6 to 16.
      noise: q in units of 2^-64, an integer: how probable a uniform answer is.
    """

    choices: int
    asked: float
    noise: int = field(init=False)

    def __post_init__(self) -> None:
        _validate.integer(low=2, high=MOST_CHOICES, choices=self.choices)
        _validate.positive(epsilon=self.asked)
        _validate.within(low=SMALLEST_EPSILON, high=LARGEST_EPSILON, epsilon=self.asked)
        # exp() is off by an ulp or so, 2^-52 relative: 2^-50 less keeps the true epsilon below the asked one.
        odds = Fraction(math.exp(self.asked)) * (1 - Fraction(1, 2**50))
        object.__setattr__(self, "noise", math.ceil(Fraction(self.choices) / (self.choices - 1 + odds) * _ONE))

    @property
    def ratio(self) -> Fraction:
        """exp(epsilon), exactly: the largest ratio of the probabilities of an answer under two truths."""
        return 1 + self.choices * Fraction(_ONE - self.noise, self.noise)

    @property
    def epsilon(self) -> float:
        """The true epsilon, rounded up; at most ``asked``."""
        # Both roundings, to a float and in the logarithm, are below 2^-51.
        value = math.log1p(float(self.ratio - 1))
        return min(value * (1 + 2**-50) + 2**-50, self.asked)

    def check(self, truth: int) -> None:
        """Raises ConfigurationError unless ``truth`` is one of the choices; the message does not show it."""
        if not isinstance(truth, int) or isinstance(truth, bool) or not 0 <= truth < self.choices:
            raise ConfigurationError(f"Expected the true answer to be an integer from 0 to {self.choices - 1}")

    def answer(self, truth: int, *, random_bits: Callable[[int], int] = secrets.randbits) -> int:
        """A private answer to a question whose true answer is ``truth``.

        Args:
          truth: from 0 to choices - 1.
          random_bits: returns a uniform integer with the given number of bits, from a cryptographic source.

        Raises:
          ConfigurationError: ``truth`` is out of range; the message does not show it.
        """
        self.check(truth)
        # Both draws are made whatever the coin says: the time does not tell which one counted.
        uniform = _below(self.choices, random_bits)
        return uniform if random_bits(_WORD) < self.noise else truth


def _below(high: int, random_bits: Callable[[int], int]) -> int:
    """Uniform from 0 to ``high`` - 1, by rejection: exact."""
    bits = (high - 1).bit_length()
    while True:
        value = random_bits(bits)
        if value < high:
            return value
