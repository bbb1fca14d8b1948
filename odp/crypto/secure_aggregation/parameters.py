"""Neighbours and threshold of SecAgg+: the smallest that keep the promise, or a refusal.

Clients stand on a ring in an order that nobody chose, each beside ``neighbours`` others (half on either side), and
every client shares its secrets among them with threshold ``threshold``. Three events must be rare, over the order:

- *disconnected*: without corrupt and dropped clients, the graph falls apart; the server learns the sum of a part;
- *insecure*: corrupt neighbours alone (``SEMI_HONEST``), or with shares that a lying server got from honest ones by
  telling them different stories (``LYING``), rebuild both secrets of an honest client;
- *incorrect*: too few neighbours of some client survive, and the round has to be given up.

The first two together have probability at most 2^-40, the last at most 2^-20, where clients drop out without regard to
the order. A ``LYING`` server drops whom it likes, with the order before its eyes. To cut the ring it needs two gaps of
neighbours / 2 places each, all dropped or corrupt; an honest client at the edge of a gap has half of its neighbours
there, and its seed is rebuilt only if threshold - neighbours / 2 of them are corrupt. That this holds of any two gaps
has probability at most 2^-41, too: up to a tenth more neighbours than in the source, in cohorts of some 300 and more.
Where a lying server tells the story
"alive" to some and "dropped" to others, every honest neighbour gives one share and every corrupt one gives two: both
secrets fall when honest + 2 corrupt >= 2 threshold, so threshold > (neighbours + corrupt) / 2.

Source: Bell et al. 2020, "Secure single-server aggregation with (poly)logarithmic overhead", sections 3 and 4. Its
protocol against a lying server grants the sums of several large parts; the gaps above are ours, and rule that out.
"""

from __future__ import annotations

import enum
import functools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.errors import PrivacyError

SECURITY_BITS = 40
CORRECTNESS_BITS = 20
LARGEST_COHORT = 1_000_000

# Beyond these, no number of neighbours helps, or only absurd ones.
_FEASIBLE = 0.9
# Rates are decimal fractions: 0.1 of 30 clients is 3, whatever the last bit of 0.1 * 30 says.
_ROUNDING = 1e-9


class Adversary(enum.Enum):
    """What the server may do."""

    SEMI_HONEST = "semi_honest"  # keeps to the protocol, and reads all that it sees
    LYING = "lying"  # tells each client whatever it likes


@dataclass(frozen=True, kw_only=True)
class Threat:
    """What a round has to withstand.

    Attributes:
        adversary: what the server may do.
        corrupt: fraction of the clients that work for the server, in [0, 1).
        dropout: fraction of the clients that may vanish, in [0, 1).

    Raises:
        ConfigurationError: a fraction is out of range.
        PrivacyError: no graph withstands so much: corrupt + dropout (lying: corrupt + 2 dropout) is above 0.9.
    """

    adversary: Adversary = Adversary.LYING
    corrupt: float = 0.1
    dropout: float = 0.1

    def __post_init__(self) -> None:
        _validate.within(low=0.0, high=1.0 - 1e-9, corrupt=self.corrupt, dropout=self.dropout)
        weight = 2.0 if self.adversary is Adversary.LYING else 1.0
        total = self.corrupt + weight * self.dropout
        if total > _FEASIBLE + _ROUNDING:
            needed = "corrupt + 2 dropout" if weight > 1 else "corrupt + dropout"
            raise PrivacyError(
                f"corrupt={self.corrupt!r} and dropout={self.dropout!r} cannot be withstood: Expected {needed} to be "
                f"at most {_FEASIBLE}, got {total:.3g}; close rounds earlier or expect fewer corrupt clients"
            )


@dataclass(frozen=True)
class Parameters:
    """``neighbours`` of every client, and the ``threshold`` of shares that rebuild a secret."""

    neighbours: int
    threshold: int


def holds(parameters: Parameters, *, clients: int, threat: Threat) -> bool:
    """Whether the promise of the module docstring is kept; what a client checks before it takes part."""
    range_ = _thresholds(clients, parameters.neighbours, threat)
    return range_ is not None and range_[0] <= parameters.threshold <= range_[1]


@functools.lru_cache(maxsize=64)
def find(*, clients: int, threat: Threat) -> Parameters:
    """The fewest neighbours, and for them the smallest threshold.

    Raises:
        ConfigurationError: ``clients`` is not from 3 to a million.
        PrivacyError: not even the complete graph keeps the promise.
    """
    _validate.integer(low=3, high=LARGEST_COHORT, clients=clients)
    for neighbours in [*range(2, clients - 1, 2), clients - 1]:
        found = _thresholds(clients, neighbours, threat)
        if found is not None:
            return Parameters(neighbours, found[0])
    raise PrivacyError(
        f"clients={clients} are too few for corrupt={threat.corrupt!r} and dropout={threat.dropout!r}; gather more, or "
        "expect fewer of either"
    )


def fewest_survivors(*, clients: int, minimum: int, threat: Threat) -> int:
    """Fewest clients of a sum that a session of ``clients`` unmasks: the promise is for no more dropouts."""
    return max(minimum, clients - math.floor((threat.dropout + _ROUNDING) * clients))


def fewest_honest(*, minimum: int, maximum: int, threat: Threat) -> int:
    """Fewest honest clients in a sum that is unmasked, of a session of any size from ``minimum`` to ``maximum``.

    All of a session's corrupt clients stay, and all that vanish are honest: what ``fewest_survivors`` leaves, without
    the corrupt fraction of the whole session.

    Raises:
        ConfigurationError: the sizes are no range within 3 to a million.
        PrivacyError: no honest client is sure to be in a sum.
    """
    _validate.integer(low=3, high=LARGEST_COHORT, minimum=minimum)
    _validate.integer(low=minimum, high=LARGEST_COHORT, maximum=maximum)
    clients = np.arange(minimum, maximum + 1)
    dropped, corrupt = (
        np.floor((fraction + _ROUNDING) * clients).astype(np.int64) for fraction in (threat.dropout, threat.corrupt)
    )
    fewest = int((np.maximum(minimum, clients - dropped) - corrupt).min())
    if fewest < 1:
        raise PrivacyError(
            f"corrupt={threat.corrupt!r} and dropout={threat.dropout!r} leave no honest client in a sum of "
            f"minimum={minimum}: raise the minimum, or expect fewer of either"
        )
    return fewest


def _thresholds(clients: int, neighbours: int, threat: Threat) -> tuple[int, int] | None:
    """Smallest and largest threshold that keep the promise with so many neighbours; None where there is none."""
    complete = neighbours == clients - 1
    if not 2 <= neighbours < clients or (neighbours % 2 and not complete):
        return None
    corrupt = math.floor((threat.corrupt + _ROUNDING) * clients)
    dropped = math.floor((threat.dropout + _ROUNDING) * clients)
    # Security is shared by two events: half of 2^-40 for each.
    security = -(SECURITY_BITS + 1) * math.log(2.0)
    if not complete and _log_disconnected(clients, neighbours, corrupt + dropped) >= security:
        return None
    each = math.log(clients)  # a union bound over the clients
    seen = _upper_quantile(clients, corrupt, neighbours, security - each)
    alive = neighbours - _upper_quantile(clients, dropped, neighbours, -CORRECTNESS_BITS * math.log(2.0) - each)
    low = seen + 1 if threat.adversary is Adversary.SEMI_HONEST else (neighbours + seen) // 2 + 1
    if threat.adversary is Adversary.LYING and not complete and neighbours <= corrupt + dropped:
        # Half the exponent for each of the two gaps: they are apart, so that their counts are negatively associated.
        beside = _upper_quantile(clients, corrupt, neighbours // 2, (security + math.log(2.0)) / 2.0 - each)
        low = max(low, neighbours // 2 + beside + 1)
    low = max(low, 2)
    return (low, alive) if low <= alive else None


def _log_disconnected(clients: int, neighbours: int, removed: int) -> float:
    """Log of a bound on the probability that removing ``removed`` random clients of the ring cuts the graph.

    A cut needs two gaps of neighbours / 2 removed clients in a row: a union bound over the pairs of places.
    """
    if neighbours > removed:
        return -math.inf
    pairs = math.log(clients) + math.log(clients - neighbours - 1) - math.log(2.0)
    return (
        pairs
        + math.lgamma(removed + 1)
        - math.lgamma(removed - neighbours + 1)
        + math.lgamma(clients - neighbours + 1)
        - math.lgamma(clients + 1)
    )


def _upper_quantile(clients: int, marked: int, draws: int, log_probability: float) -> int:
    """The smallest c with log P[X > c] <= ``log_probability``, X marked clients among ``draws`` without replacement."""
    top = min(marked, draws)
    bottom = max(0, draws - (clients - marked))
    if top == bottom:
        return bottom
    logs = _log_factorials(clients)
    counts = np.arange(top, bottom, -1)
    others = clients - marked
    terms = (
        logs[marked] - logs[counts] - logs[marked - counts]
        + logs[others] - logs[draws - counts] - logs[others - draws + counts]
        - (logs[clients] - logs[draws] - logs[clients - draws])
    )  # fmt: skip
    above = np.flatnonzero(np.logaddexp.accumulate(terms) > log_probability)
    return int(counts[above[0]]) if len(above) else bottom


@functools.lru_cache(maxsize=2)
def _log_factorials(largest: int) -> npt.NDArray[np.float64]:
    """log n! for n = 0 .. ``largest``: the finder asks for many, and one table serves all."""
    return np.array([math.lgamma(number + 1.0) for number in range(largest + 1)])
