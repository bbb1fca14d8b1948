"""The algorithm seam: an algorithm is four computations, one per party.

=================  ======================================================  =====================
module             computation                                             runs at
=================  ======================================================  =====================
``server.py``      initial state; state -> broadcast; (state, release)     server (untrusted)
                   -> next state
``client.py``      (slices, local data, local parameters) ->               one device
                   (payload, new local parameters)
``query.py``       the declared DP query of a round: what is checked,      aggregator's enclave
                   summed, noised and charged
``population.py``  ``client.py`` vectorised over many users                simulator
=================  ======================================================  =====================

The networked platform and the simulator run the same four; with equal inputs and no noise they agree to 1e-6.
Everything that a query declares follows from the task definition alone: an enclave trusts nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from odp.errors import ConfigurationError, ContributionRefused, Refusal
from odp.numerics.arrays import Float32Array, Float64Array, Int64Array
from odp.wire.model import Broadcast, Slices

if TYPE_CHECKING:
    from odp.datasets.ratings import Ratings


@dataclass(frozen=True)
class LocalRatings:
    """One device's own data: distinct ``items`` int64 [k] ascending, ``values`` float64 [k], both of any size.

    A task's client leaves out what it cannot use, and refuses nothing (``within``).

    ``of_queries`` are the rows of those queries of a statistics task that read a table of their own, by the query's
    name; their items need not be distinct.
    """

    items: Int64Array
    values: Float64Array
    of_queries: Mapping[str, LocalRatings] = field(default_factory=dict)

    def within(self, *, items: int, values: tuple[float, float] | None = None) -> LocalRatings:
        """Rows whose items are from 0 to ``items`` - 1.

        With a range of ``values``, those that are not finite are left out, and others are clamped to it.
        """
        known = (self.items >= 0) & (self.items < items)
        if values is None:
            return LocalRatings(self.items[known], self.values[known])
        known &= np.isfinite(self.values)
        return LocalRatings(self.items[known], np.clip(self.values[known], *values))


@dataclass(frozen=True)
class DeclaredRelease:
    """One tensor that a round releases: int64 sums on the grid ``step`` plus rounded Gaussian noise.

    ``sensitivity`` and ``noise_std`` are what the ledger charges: L2 over the whole tensor, in data units, between any
    contribution of one user and the empty one (``odp.privacy.adjacency``). ``packed``: the last axis is the upper
    triangle of a symmetric matrix, of which the norm counts every entry off the diagonal twice. ``column_std`` float64
    [shape[-1]] is the noise's standard deviation per entry of the last axis, in data units: ``charged_std``, or more.
    With ``sharers``, nobody rounds a Gaussian: so many honest devices at least add the noise, in shares
    (``odp.algorithms.dense.shares``).
    """

    name: str
    shape: tuple[int, ...]
    step: float
    sensitivity: float
    noise_std: float
    column_std: Float64Array
    sharers: int = 0
    packed: bool = False

    @property
    def charged_std(self) -> Float64Array:
        """The least standard deviation per entry of the last axis that the charge covers, float64 [shape[-1]].

        ``noise_std``, and over sqrt(2) for entries that the norm counts twice: as if both copies had noise of their
        own and were averaged.

        Raises:
            ConfigurationError: ``packed``, and the last axis is no upper triangle.
        """
        if not self.packed:
            return np.full(self.shape[-1], self.noise_std)
        width = (math.isqrt(8 * self.shape[-1] + 1) - 1) // 2
        first, second = np.triu_indices(width)
        if len(first) != self.shape[-1]:
            raise ConfigurationError(
                f"Expected the last axis of release {self.name!r} to be an upper triangle, got {self.shape[-1]} entries"
            )
        return np.where(first == second, self.noise_std, self.noise_std / math.sqrt(2.0))

    @property
    def coordinates(self) -> int:
        """Number of noise draws."""
        return int(np.prod(self.shape))


class Sum(Protocol):
    """A running exact sum: independent of the order of contributions and of the BLAS in use."""

    count: int

    def add(self, payloads: Sequence[bytes]) -> None:
        """Adds payloads that ``Query.check`` accepted."""
        ...

    def totals(self) -> dict[str, Int64Array]:
        """The sums so far, by release name, in units of the release's ``step``; shapes as declared."""
        ...


class Query(Protocol):
    """The declared query of one round, enforced inside the enclave.

    The enclave takes at most ``maximum`` contributions: the sums of so many stay within their integers.
    """

    payload_bytes: int
    releases: tuple[DeclaredRelease, ...]
    maximum: int

    def check(self, payload: bytes) -> None:
        """Raises ContributionRefused (MALFORMED, OUT_OF_BOUNDS) unless the payload keeps the declared sensitivity."""
        ...

    def refusals(self, payloads: Sequence[bytes]) -> list[Refusal | None]:
        """``check`` of many at once, which may cost far less than one by one; None for what ``check`` accepts."""
        ...

    def new_sum(self, *, oblivious: bool = False) -> Sum:
        """An empty sum; ``oblivious``: its memory accesses depend on the number of contributions alone."""
        ...


@runtime_checkable
class SampledQuery(Query, Protocol):
    """A query whose rounds may be sampled in secret: ``empty_payload`` adds zero to every sum, and is as long as any.

    It is what a device without data sends, and it stands for a contribution that was not drawn.
    """

    empty_payload: bytes


def refusals_one_by_one(check: Callable[[bytes], None], payloads: Sequence[bytes]) -> list[Refusal | None]:
    """``Query.refusals`` where checking many at once would not be cheaper."""
    answers: list[Refusal | None] = []
    for payload in payloads:
        try:
            check(payload)
            answers.append(None)
        except ContributionRefused as refused:
            answers.append(refused.refusal)
    return answers


@dataclass(frozen=True)
class NoisyTensors:
    """What a server receives of a round: float64 arrays (integer * step) by release name, and how many contributed."""

    round: int
    tensors: Mapping[str, Float64Array]
    contributions: int


class Server(Protocol):
    """The server's half. State is bytes, so that the host can store it and a restart continues from it."""

    rounds: int

    def start(self) -> bytes:
        """The state before round 0: a function of the task definition alone."""
        ...

    def broadcast(self, state: bytes) -> Broadcast:
        """What devices need for the next round, or after the last one for inference."""
        ...

    def step(self, state: bytes, release: NoisyTensors) -> bytes:
        """The next state; post-processing of the release, so it costs no privacy."""
        ...

    def counts(self, state: bytes) -> Float64Array:
        """Popularity of the items, float64 [m] at least 0, estimated from the noisy counts; 1 before them."""
        ...


class Client(Protocol):
    """The device's half. ``seed`` is the device's own random 64-bit number: it decides which of its items take part.

    Whether a device contributes must not depend on its data. So whatever the rows in ``slices`` hold (they are an
    untrusted server's, and which of them a device has follows from its data), ``contribute`` computes with them; what
    it raises all the same, the device answers by ``empty``. ``check_model`` refuses what is the same for all devices.
    """

    def check_model(self, dense: Mapping[str, Float32Array]) -> None:
        """Returns if the model's dense tables can be trained on, whatever a device holds. Raises ConfigurationError."""
        ...

    def empty(self, round: int) -> bytes:
        """The payload of a device without data: of the declared length, accepted, and zero in every sum."""
        ...

    def keys(self, data: LocalRatings, *, round: int, seed: int) -> Int64Array:
        """The distinct rows that the device wants in ``round``: ascending, at most slices_per_device of them.

        Not asked where the model has no keyed table.
        """
        ...

    def contribute(self, slices: Slices, data: LocalRatings, *, round: int, seed: int) -> tuple[bytes, bytes]:
        """(payload of the declared length, new local parameters); the latter never leave the device."""
        ...

    def predict(self, slices: Slices, data: LocalRatings, items: Int64Array) -> Float64Array:
        """Predicted values float64 [n] for ``items`` (each among ``slices.keys``), personalised on all of ``data``."""
        ...


class Population(Protocol):
    """``Client`` for many users at once; user ``i`` of ``ratings`` has the seed ``seeds[i]`` (uint64 [n_users])."""

    def contribute(
        self,
        broadcast: Broadcast,
        ratings: Ratings,
        *,
        round: int,
        seeds: npt.NDArray[np.uint64],
        progress: Callable[[int], None] | None = None,
    ) -> Mapping[str, Int64Array]:
        """The same sums that the enclave would make of every user's payload, in grid units, by release name.

        ``progress`` is told, now and then, how many users are done.
        """
        ...

    def predict(self, broadcast: Broadcast, history: Ratings, targets: Ratings) -> Float64Array:
        """Predictions float64 [targets.n_ratings] for every entry of ``targets``, personalised on ``history``."""
        ...
