"""How a server moves parameters by the noisy mean of a round: post-processing, so it costs no privacy.

With the mean d of round t (a step downhill), rate r, momentum b, second moment c and adaptivity a:

=======  ==============================================  ===============================
kind     moments                                         parameters
=======  ==============================================  ===============================
sgd      m <- b m + d                                    w <- w + r m
adam     m <- b m + (1-b) d,  v <- c v + (1-c) d²        w <- w + r m / (sqrt(v) + a)
yogi     the same m,  v <- v - (1-c) d² sign(v - d²)     w <- w + r m / (sqrt(v) + a)
=======  ==============================================  ===============================

v begins at a², m at 0. Noise of standard deviation s per number keeps v near s² at the least, so an adaptivity far
below s changes nothing.

Source: Reddi et al. 2021, "Adaptive federated optimization", algorithm 2.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

from odp import _validate
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float64Array


class OptimizerKind(enum.Enum):
    """The rule of a step."""

    SGD = "sgd"
    ADAM = "adam"
    YOGI = "yogi"


@dataclass(frozen=True, kw_only=True)
class ServerOptimizer:
    """The numbers of a server's optimizer.

    Attributes:
      kind: or its name.
      rate: step size.
      momentum: weight of past means, from 0 on and below 1.
      second_moment: weight of past squares, from 0 on and below 1; 0 with sgd.
      adaptivity: added to the root of the squares, above 0; 0 with sgd.

    Raises:
      ConfigurationError: the kind is unknown, or a number is out of range.
    """

    kind: OptimizerKind | str
    rate: float = 1.0
    momentum: float = 0.0
    second_moment: float = 0.0
    adaptivity: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.kind, OptimizerKind):
            _validate.one_of([kind.value for kind in OptimizerKind], kind=self.kind)
            object.__setattr__(self, "kind", OptimizerKind(self.kind))
        _validate.positive(rate=self.rate)
        _validate.within(low=0.0, high=1.0 - 1e-9, momentum=self.momentum, second_moment=self.second_moment)
        if self.kind is OptimizerKind.SGD:
            if self.second_moment or self.adaptivity:
                raise ConfigurationError("Expected second_moment and adaptivity to be 0 with kind='sgd'")
        else:
            _validate.within(low=1e-12, high=1e6, adaptivity=self.adaptivity)

    @property
    def slots(self) -> int:
        """Vectors of moments that a state keeps."""
        return 1 if self.kind is OptimizerKind.SGD else 2

    def start(self, size: int) -> Float64Array:
        """The moments before the first round, float64 [slots, size]."""
        moments = np.zeros((self.slots, size))
        moments[1:] = self.adaptivity**2
        return moments

    def step(self, moments: Float64Array, mean: Float64Array) -> tuple[Float64Array, Float64Array]:
        """(moments [slots, size] after a round, move of the parameters [size]) by the round's ``mean`` [size]."""
        if self.kind is OptimizerKind.SGD:
            moved = self.momentum * moments[0] + mean
            return moved[None], self.rate * moved
        first = self.momentum * moments[0] + (1.0 - self.momentum) * mean
        squares, past = np.square(mean), moments[1]
        if self.kind is OptimizerKind.YOGI:
            second = past - (1.0 - self.second_moment) * squares * np.sign(past - squares)
        else:
            second = self.second_moment * past + (1.0 - self.second_moment) * squares
        return np.stack((first, second)), self.rate * first / (np.sqrt(second) + self.adaptivity)
