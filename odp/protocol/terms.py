"""The terms of a task that do not depend on what is computed: the privacy it keeps, and whom a round needs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from odp._validate import integer, one_of, positive, strict_keywords, within
from odp.errors import ConfigurationError, PrivacyError
from odp.privacy.composition import truncation_cap
from odp.privacy.events import Sampling
from odp.protocol.aggregation import DEFAULT, MODES
from odp.v1 import common_pb2

#: Seconds: the only fixed times of a contribution there are (``odp.algorithms.computing_time``).
STEPS = (0.25, 1.0, 4.0, 16.0, 64.0)

FULL = "full"
ENCLAVE_POISSON = "enclave_poisson"

# Enough for nine users of ten of the usual rating data sets.
_ITEMS_PER_USER = 300
# The cap of a draw is loose enough for so many rounds; no algorithm has more, and a loose cap is free (rule P14).
_MOST_ROUNDS = 10_000


@strict_keywords
@dataclass(frozen=True, kw_only=True)
class UserLevelDP:
    """(epsilon, delta)-differential privacy of a user's whole contribution to a task, all data of the user or none.

    Attributes:
      epsilon: Budget of the task, all its releases included; above 0. ``math.inf`` asks for no noise, to see in a
        simulation what privacy costs; no enclave accepts it.
      delta: Above 0 and below 1 / number of users; a tenth of that is usual.
      max_items_per_user: So many items of one user touch a release at most. A larger bound loses fewer of a busy
        user's ratings and makes every message longer; noise stays in proportion. Default: 300, or all items.
    """

    epsilon: float
    delta: float
    max_items_per_user: int | None = None

    def __post_init__(self) -> None:
        positive(delta=self.delta)
        if self.epsilon != math.inf:
            positive(epsilon=self.epsilon)
            within(low=0.0, high=100.0, epsilon=self.epsilon)
        within(low=0.0, high=1e-2, delta=self.delta)
        if self.max_items_per_user is not None:
            integer(low=1, high=4096, max_items_per_user=self.max_items_per_user)

    def bound(self, items: int) -> int:
        """``max_items_per_user`` for a model of so many items."""
        return min(_ITEMS_PER_USER, items) if self.max_items_per_user is None else self.max_items_per_user

    def to_proto(self, items: int | None) -> common_pb2.PrivacyTerms:
        """The wire form, for a model of so many items; None for one without items."""
        bound = 0 if items is None else self.bound(items)
        return common_pb2.PrivacyTerms(epsilon=self.epsilon, delta=self.delta, max_items_per_user=bound)


@strict_keywords
@dataclass(frozen=True, kw_only=True)
class Cohort:
    """When a round may close.

    Attributes:
      minimum: Smallest number of contributions that the enclave releases.
      goal: Number of contributions at which the round closes; default the minimum.
      round_seconds: Time after which a round with the minimum closes; it closes sooner once no more devices come
        (docs/protocol.md, section 11). A task that needs more devices raises its minimum.
      computing_seconds: Time of a contribution, from the first read of a device's data to its upload, the same on every
        device: .25, 1, 4, 16 or 64. Default: the shortest that the task's caps need. What is not computed by then is
        empty, so give more where devices are slow or busy; at most a quarter of ``round_seconds``.
      sampling: "full": every contribution counts, the most accurate choice for a given budget. "enclave_poisson": the
        enclave draws each contribution with a secret coin, and the drawn ones count; every device still contributes.
      sampling_probability: Of that coin, above 0 and below 1. None where the training has a ``cohort_schedule``, which
        gives one to each round.
      most_contributions: Largest number that the enclave accepts per round: a bound of the population that is
        enforced, not guessed. A generous one costs nothing. Required with sampling.
      aggregation: "enclave": the enclave opens each contribution and enforces its bound. "masked": the aggregator's
        host sums masked vectors and the enclave their masks, so that not even the enclave holds one person's numbers;
        for ``odp.Statistics``. "secagg+": devices mask in pairs and each adds a share of the noise, so that no
        hardware is trusted and the server sees one noisy sum, of at most ``goal`` devices; for ``odp.Statistics``.
      threat: With "secagg+": "lying", a server that tells each device whatever it likes (the default), or
        "semi-honest", one that keeps to the protocol.
      corrupt_fraction: With "secagg+": at most this fraction of the roster works for the server; default 0.1. All of
        these devices may sit in one session, and their noise does not count. Without a roster it is a fraction of each
        session's devices: an assumption about whoever the host lets in, which nothing enforces.
      dropout_fraction: With "secagg+": at most this fraction of a session's devices may vanish; default 0.1. A session
        that loses more is given up.
      roster_sha256: With "secagg+": hexadecimal SHA-256 of the identities (32 bytes each, ascending) that may take
        part; without it nothing stops a lying server from playing all other devices.
      roster_size: With ``roster_sha256``: how many identities these are. Devices compare it with the list they pin.
    """

    minimum: int = 100
    goal: int | None = None
    round_seconds: int = 3600
    computing_seconds: float | None = None
    sampling: str = FULL
    sampling_probability: float | None = None
    most_contributions: int | None = None
    aggregation: str = DEFAULT
    threat: str | None = None
    corrupt_fraction: float | None = None
    dropout_fraction: float | None = None
    roster_sha256: str | None = None
    roster_size: int | None = None

    def __post_init__(self) -> None:
        integer(low=1, high=2**31, minimum=self.minimum)
        if self.goal is not None:
            integer(low=self.minimum, high=2**31, goal=self.goal)
        integer(low=1, high=10**7, round_seconds=self.round_seconds)
        if self.computing_seconds is not None and self.computing_seconds not in STEPS:
            raise ConfigurationError(
                f"Expected computing_seconds={self.computing_seconds!r} to be one of {', '.join(map(str, STEPS))}"
            )
        if self.sampling not in (FULL, ENCLAVE_POISSON):
            raise ConfigurationError(
                f"Expected sampling={self.sampling!r} to be {FULL!r} or {ENCLAVE_POISSON!r}: a draw of a fixed size, "
                "without replacement, has no charge here, since that of a Poisson draw would be too small for it"
            )
        one_of(MODES, aggregation=self.aggregation)
        self._terms()
        needed = {"sampling_probability": self.sampling_probability, "most_contributions": self.most_contributions}
        for name, value in needed.items():
            scheduled = name == "sampling_probability" and self.sampling != FULL
            if (value is None) != (self.sampling == FULL) and not scheduled:
                raise ConfigurationError(
                    f"Expected {name}={value!r} to be given with sampling={ENCLAVE_POISSON!r}, and only with it "
                    f"(got sampling={self.sampling!r})"
                )
        if self.most_contributions is not None:
            integer(low=self._goal, high=10**9, most_contributions=self.most_contributions)
        if self.sampling_probability is not None and self.most_contributions is not None:
            Sampling(self.sampling_probability, self.most_contributions, cap=1)

    def _options(self) -> dict[str, object]:
        """The fields that single modes of aggregation have. Raises ConfigurationError for one of another mode."""
        owners = {name: mode for mode in MODES.values() for name in mode.options}
        options = {name: getattr(self, name) for name in owners}
        for name, value in options.items():
            if value is not None and owners[name].name != self.aggregation:
                raise ConfigurationError(
                    f"Expected {name}={value!r} with aggregation={owners[name].name!r} alone "
                    f"(got aggregation={self.aggregation!r})"
                )
        return options

    def _terms(self) -> common_pb2.CohortTerms:
        """The wire form, but for the draw. Raises ConfigurationError or PrivacyError as the mode of aggregation."""
        mode = MODES[self.aggregation]
        terms = common_pb2.CohortTerms(
            minimum=self.minimum, goal=self._goal, round_seconds=self.round_seconds, aggregation=mode.number
        )
        if self.sampling != FULL and not mode.samples:
            raise ConfigurationError(
                f"Expected sampling={self.sampling!r} to be {FULL!r} with aggregation={mode.name!r}: the enclave could "
                "not draw in secret"
            )
        mode.write(terms, self._options())
        return terms

    @property
    def computing_milliseconds(self) -> int:
        """``computing_seconds`` as a definition has it; 0 leaves it to whoever signs the task."""
        return round(1000 * (self.computing_seconds or 0.0))

    @property
    def _goal(self) -> int:
        return self.minimum if self.goal is None else self.goal

    def to_proto(self, delta: float) -> common_pb2.CohortTerms:
        """The wire form; the cap of a draw follows from the task's ``delta`` (rule P14)."""
        terms = self._terms()
        if self.most_contributions is not None:
            terms.enclave_poisson.most_contributions = self.most_contributions
        if self.sampling_probability is not None and self.most_contributions is not None:
            cap = truncation_cap(
                probability=self.sampling_probability,
                population_bound=self.most_contributions,
                rounds=_MOST_ROUNDS,
                delta=delta,
            )
            draw = common_pb2.EnclavePoisson(
                probability=self.sampling_probability, most_contributions=self.most_contributions, cap=cap
            )
            terms.enclave_poisson.CopyFrom(draw)
        return terms


def check_delta_for(delta: float, users: int) -> None:
    """Raises PrivacyError unless ``delta`` < 1 / users: at that, publishing one random user's data would be allowed."""
    if delta * users >= 1:
        raise PrivacyError(
            f"Expected delta={delta!r} to be below 1/users={1 / users:.3g} (users={users}); "
            f"take a tenth of that, {0.1 / users:.1g}"
        )
