"""Neighbours and threshold of SecAgg+: the smallest that keep the guarantee, or a refusal.

Clients stand on a ring in an order that nobody chose, each beside ``neighbours`` others (half on either side), and
every client shares its secrets among them with threshold ``threshold``. Three events must be rare, over the order, for
a set of corrupt clients that was fixed before it:

- *disconnected*: without corrupt and dropped clients, the graph falls apart; the server learns the sum of a part;
- *insecure*: corrupt neighbours rebuild both secrets of an honest client, alone (``SEMI_HONEST``) or with shares that a
  lying server got from honest ones by telling them different stories (``LYING``); or a committee agrees on two stories;
- *incorrect*: too few neighbours of some client survive, and the round has to be given up.

The first two together have probability at most 2^-40 (``graph_delta`` is what a round costs), the last at most 2^-20.
Each client has a share of 1 / clients of that. The neighbours of an honest client are drawn from the *others*, so all
that are corrupt are among clients - 1. The committee of the agreement takes the share of a corrupt client, which needs
none: the first places of the order hold no more corrupt clients than the places beside an honest one.

Against a ``SEMI_HONEST`` server clients drop out without regard to the order. A ``LYING`` server drops whom it likes,
with the order before its eyes. To cut the ring it needs two gaps of neighbours / 2 places each, all dropped or corrupt;
the honest client at the edge of a gap has half of its neighbours there, and its seed is rebuilt only if
threshold - neighbours / 2 of them are corrupt. That this holds of any two edges has probability at most 2^-41, too: up
to a tenth more neighbours than in the source, in cohorts of some 300 and more. Where a lying server tells the story
"alive" to some and "dropped" to others, every honest neighbour gives one share and every corrupt one gives two: both
secrets fall when honest + 2 corrupt >= 2 threshold, so threshold > (neighbours + corrupt) / 2.

How many clients are corrupt: with a roster, the fraction of the *roster*, since whoever picks the clients of a session
can put all of them into one. Without one, the fraction of the session, and nothing but the host's good will bounds it.

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
#: Attempts of one round, at most: each is an order of its own, and the server may choose among them.
MOST_ATTEMPTS = 4
LARGEST_COHORT = 1_000_000

# Beyond these, no number of neighbours helps, or only absurd ones.
_FEASIBLE = 0.9
# Rates are decimal fractions: 0.1 of 30 clients is 3, whatever the last bit of 0.1 * 30 says.
_ROUNDING = 1e-9
# Above the rounding error of logarithms of factorials up to a million: a share is never exceeded by it.
_LOG_MARGIN = 1e-6


def graph_delta() -> float:
    """Bound of the probability that the graph of any attempt of one round fails: what a round adds to delta, 2^-38."""
    return MOST_ATTEMPTS * 2.0**-SECURITY_BITS


class Adversary(enum.Enum):
    """The capabilities of the server."""

    SEMI_HONEST = "semi_honest"  # keeps to the protocol, and reads all that it sees
    LYING = "lying"  # tells each client whatever it likes


@dataclass(frozen=True, kw_only=True)
class Threat:
    """The attacks and dropouts that a round has to withstand.

    Attributes:
        adversary: what the server may do.
        corrupt: fraction of the roster, or without one of the session's clients, that works for the server, in [0, 1).
        dropout: fraction of the session's clients that may vanish, in [0, 1).
        roster: how many clients the roster has; 0 without one.

    Raises:
        ConfigurationError: a number is out of range.
        PrivacyError: no graph withstands these fractions: corrupt + dropout (lying: corrupt + 2 dropout) is above 0.9.
    """

    adversary: Adversary = Adversary.LYING
    corrupt: float = 0.1
    dropout: float = 0.1
    roster: int = 0

    def __post_init__(self) -> None:
        _validate.within(low=0.0, high=1.0 - 1e-9, corrupt=self.corrupt, dropout=self.dropout)
        _validate.integer(low=0, high=LARGEST_COHORT, roster_size=self.roster)
        weight = 2.0 if self.adversary is Adversary.LYING else 1.0
        total = self.corrupt + weight * self.dropout
        if total > _FEASIBLE + _ROUNDING:
            needed = "corrupt + 2 dropout" if weight > 1 else "corrupt + dropout"
            raise PrivacyError(
                f"corrupt={self.corrupt!r} and dropout={self.dropout!r} cannot be withstood: Expected {needed} to be "
                f"at most {_FEASIBLE}, got {total:.3g}; close rounds earlier or expect fewer corrupt clients"
            )

    def most_corrupt(self, clients: int) -> int:
        """The largest number of corrupt clients in a session: all of the roster's may be in it."""
        return min(clients, _part(self.corrupt, self.roster or clients))

    def most_dropped(self, clients: int) -> int:
        """The largest number of clients of a session that may drop out."""
        return _part(self.dropout, clients)


@dataclass(frozen=True)
class Parameters:
    """``neighbours`` of every client, and the ``threshold`` of shares that rebuild a secret."""

    neighbours: int
    threshold: int


def holds(parameters: Parameters, *, clients: int, threat: Threat) -> bool:
    """Whether the guarantee of the module docstring is kept; a client checks this before it takes part."""
    range_ = _thresholds(clients, parameters.neighbours, threat)
    return range_ is not None and range_[0] <= parameters.threshold <= range_[1]


@functools.lru_cache(maxsize=64)
def find(*, clients: int, threat: Threat) -> Parameters:
    """The fewest neighbours, and for them the smallest threshold.

    Raises:
        ConfigurationError: ``clients`` is not from 3 to a million.
        PrivacyError: not even the complete graph keeps the promise; the message says what would.
    """
    _validate.integer(low=3, high=LARGEST_COHORT, clients=clients)
    if not is_withstood(clients=clients, threat=threat):
        raise PrivacyError(_infeasible(clients, threat))
    for neighbours in [*range(2, clients - 1, 2), clients - 1]:
        if (thresholds := _thresholds(clients, neighbours, threat)) is not None:
            return Parameters(neighbours, thresholds[0])
    raise PrivacyError(_infeasible(clients, threat))


def is_withstood(*, clients: int, threat: Threat) -> bool:
    """Whether some graph of ``clients`` keeps the promise: the complete one does where any does."""
    neighbours, corrupt = clients - 1, threat.most_corrupt(clients)
    shares = neighbours - threat.most_dropped(clients)
    return shares >= 2 and corrupt <= _most_corrupt(clients, threat)


def fewest_survivors(*, clients: int, minimum: int, threat: Threat) -> int:
    """The smallest number of clients in an unmasked sum of a session of ``clients``: the guarantee covers no more
    dropouts.
    """
    return max(minimum, clients - threat.most_dropped(clients))


def fewest_honest(*, minimum: int, maximum: int, threat: Threat) -> int:
    """The smallest number of honest clients in an unmasked sum, of any session from ``minimum`` to ``maximum`` clients.

    All corrupt clients stay, and all that vanish are honest: what ``fewest_survivors`` leaves, without
    ``Threat.most_corrupt``.

    Raises:
        ConfigurationError: the sizes are no range within 3 to a million.
        PrivacyError: no honest client is sure to be in a sum.
    """
    _validate.integer(low=3, high=LARGEST_COHORT, minimum=minimum)
    _validate.integer(low=minimum, high=LARGEST_COHORT, maximum=maximum)
    clients = np.arange(minimum, maximum + 1)
    dropped = _parts(threat.dropout, clients)
    corrupt = np.minimum(clients, _parts(threat.corrupt, np.array(threat.roster) if threat.roster else clients))
    if (fewest := int((np.maximum(minimum, clients - dropped) - corrupt).min())) < 1:
        raise PrivacyError(
            f"corrupt={threat.corrupt!r} and dropout={threat.dropout!r} leave no honest client in a sum of "
            f"minimum={minimum}: raise the minimum, or expect fewer of either"
        )
    return fewest


def _parts(fraction: float, of: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    parts: npt.NDArray[np.int64] = np.floor((fraction + _ROUNDING) * of).astype(np.int64)
    return parts


def _part(fraction: float, of: int) -> int:
    return math.floor((fraction + _ROUNDING) * of)


def _thresholds(clients: int, neighbours: int, threat: Threat) -> tuple[int, int] | None:
    """Smallest and largest threshold that keep the guarantee with this number of neighbours; None if there is none."""
    complete = neighbours == clients - 1
    if not 2 <= neighbours < clients or (neighbours % 2 and not complete):
        return None
    corrupt, dropped = threat.most_corrupt(clients), threat.most_dropped(clients)
    lying = threat.adversary is Adversary.LYING
    # Security is shared by two events: half of 2^-40 for each.
    security = -(SECURITY_BITS + 1) * math.log(2.0) - _LOG_MARGIN
    correctness = -CORRECTNESS_BITS * math.log(2.0) - _LOG_MARGIN
    if not complete and not lying and _log_disconnected(clients, neighbours, corrupt + dropped) >= security:
        return None
    each = math.log(clients)  # a union bound over the clients
    corrupt_neighbours = _upper_quantile(clients - 1, corrupt, neighbours, security - each)
    alive = neighbours - _upper_quantile(clients - 1, dropped, neighbours, correctness - each)
    low = (neighbours + corrupt_neighbours) // 2 + 1 if lying else corrupt_neighbours + 1
    if lying and not complete and neighbours <= corrupt + dropped:
        # Over the unordered pairs of gaps, with an honest client beside each: half the exponent for either. The gaps
        # are apart, so that their counts are negatively associated.
        pairs = 2.0 * each - math.log(2.0)
        corrupt_of_pair = _upper_quantile(clients - 2, corrupt, neighbours // 2, (security - pairs) / 2.0)
        low = max(low, neighbours // 2 + corrupt_of_pair + 1)
    low = max(low, 2)
    return (low, alive) if low <= alive else None


def _most_corrupt(clients: int, threat: Threat) -> int:
    """The most corrupt clients that the complete graph withstands; below 0 if it withstands no dropouts."""
    twice = 2 if threat.adversary is Adversary.LYING else 1
    return clients - 2 - twice * threat.most_dropped(clients)


def _infeasible(clients: int, threat: Threat) -> str:
    """The error for parameters without a suitable graph, with suggestions."""
    corrupt, most = threat.most_corrupt(clients), _most_corrupt(clients, threat)
    of = (
        f"all {corrupt} corrupt clients of a roster of {threat.roster}"
        if threat.roster
        else f"{corrupt} corrupt clients"
    )
    ways = []
    if (enough := _enough_clients(clients, threat)) is not None:
        ways.append(f"gather at least {enough}")
    if most >= 0:
        ways.append(f"expect at most corrupt={math.floor(1000 * most / (threat.roster or clients)) / 1000:g}")
    return (
        f"clients={clients} are too few for {of} and {threat.most_dropped(clients)} dropouts "
        f"(corrupt={threat.corrupt!r}, dropout={threat.dropout!r}): {', or '.join([*ways, 'expect fewer dropouts'])}"
    )


def _enough_clients(clients: int, threat: Threat) -> int | None:
    """A number of clients above ``clients`` that suffices, close to the smallest; None if the roster is too small."""
    low, high = clients, threat.roster or LARGEST_COHORT
    if high <= low or not is_withstood(clients=high, threat=threat):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_withstood(clients=middle, threat=threat) else (middle, high)
    return high


def _log_disconnected(clients: int, neighbours: int, removed: int) -> float:
    """Log of a bound on the probability that removing ``removed`` random clients of the ring cuts the graph.

    A cut needs two gaps of neighbours / 2 removed clients in a row: a union bound over the pairs of places.
    """
    if neighbours > removed:
        return -math.inf
    removed = min(removed, clients)
    pairs = math.log(clients) + math.log(clients - neighbours - 1) - math.log(2.0)
    return (
        pairs
        + math.lgamma(removed + 1)
        - math.lgamma(removed - neighbours + 1)
        + math.lgamma(clients - neighbours + 1)
        - math.lgamma(clients + 1)
    )


def _upper_quantile(others: int, marked: int, draws: int, log_probability: float) -> int:
    """The smallest c with log P[X > c] <= ``log_probability``, X marked ones among ``draws`` of ``others``."""
    marked = min(marked, others)
    top = min(marked, draws)
    bottom = max(0, draws - (others - marked))
    if top == bottom:
        return bottom
    logs = _log_factorials(1 << others.bit_length())
    counts = np.arange(top, bottom, -1)
    rest = others - marked
    terms = (
        logs[marked] - logs[counts] - logs[marked - counts]
        + logs[rest] - logs[draws - counts] - logs[rest - draws + counts]
        - (logs[others] - logs[draws] - logs[others - draws])
    )  # fmt: skip
    above = np.flatnonzero(np.logaddexp.accumulate(terms) > log_probability)
    return int(counts[above[0]]) if len(above) else bottom


@functools.lru_cache(maxsize=2)
def _log_factorials(largest: int) -> npt.NDArray[np.float64]:
    """log n! for n = 0 .. ``largest``: the finder asks for many, and one table serves all."""
    return np.array([math.lgamma(number + 1.0) for number in range(largest + 1)])
