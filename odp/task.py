"""What a developer writes: a model, the data it reads, the privacy it keeps, how it trains, and whom it needs.

Example::

    import odp

    task = odp.Task(
        name="films",
        model=odp.MatrixFactorization(items=3706, rank=4),
        data=odp.RatingsData(low=1, high=5),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-6, max_items_per_user=50),
        training=odp.DPAM(),
        cohort=odp.Cohort(minimum=100, goal=6040),
    )
    odp.connect("127.0.0.1:7200", state="odp-state").submit(task)

Everything is frozen and checked when it is constructed, so a Task that exists can be submitted.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass, field, replace
from typing import Any

from odp._validate import identifier, integer, one_of, positive, strict_keywords, within
from odp.aggregation.table import DEFAULT, MODES
from odp.algorithms.choices import Training, TrainingData, default_training, trainings
from odp.algorithms.computing_time import STEPS
from odp.algorithms.registry import TABLE, algorithm_for, part_of, usable_question
from odp.broadcast.config import Broadcast
from odp.broadcast.terms import check_broadcast
from odp.count_usable import CountUsable
from odp.errors import ConfigurationError, PrivacyError
from odp.models.glm import Glm
from odp.models.litert.compiled_model import CompiledModel
from odp.models.litert.keras_model import KerasModel
from odp.models.litert.two_tower import TwoTower
from odp.models.matrix_factorization import MatrixFactorization
from odp.models.trained import trained_models
from odp.numerics.arrays import Float32Array
from odp.privacy.composition import truncation_cap
from odp.privacy.events import Sampling
from odp.v1 import common_pb2

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


@strict_keywords
@dataclass(frozen=True, kw_only=True)
class Task:
    """One model to be trained by a population of devices.

    Attributes:
      name: For people: [a-z0-9_.-], at most 64 characters.
      population: Devices enrol in a population; its tasks share one privacy ledger. Default: the task's name.
      broadcast: How devices get the rows of the model that they need.
      count_usable: A part of the budget for a count of the devices with usable rows, before the training. None: results
        say that it is unknown.

    Raises ConfigurationError for a value out of range, PrivacyError for a delta that is no guarantee at this cohort.
    """

    name: str
    model: MatrixFactorization | Glm | KerasModel | CompiledModel | TwoTower
    data: TrainingData
    privacy: UserLevelDP
    training: Training = field(default_factory=default_training)
    cohort: Cohort = field(default_factory=Cohort)
    population: str = ""
    broadcast: Broadcast = field(default_factory=Broadcast)
    count_usable: CountUsable | None = None

    def __post_init__(self) -> None:
        identifier(name=self.name)
        if self.population == "":
            object.__setattr__(self, "population", self.name)
        identifier(population=self.population)
        available = tuple(trainings().values())
        kinds: tuple[tuple[str, tuple[type, ...]], ...] = (
            ("model", (MatrixFactorization, *trained_models())),
            ("data", tuple(training.data for training in available)),
            ("privacy", (UserLevelDP,)),
            ("training", available),
            ("cohort", (Cohort,)),
            ("broadcast", (Broadcast,)),
            ("count_usable", (CountUsable, type(None))),
        )
        for name, valid in kinds:
            value = getattr(self, name)
            if not isinstance(value, valid):
                names = " or ".join(f"odp.{kind.__name__}" for kind in valid if kind is not type(None))
                raise ConfigurationError(f"Expected {name} to be an {names}, got a {type(value).__name__}")
        if not isinstance(self.data, self.training.data):
            pairs = ", ".join(f"odp.{kind.__name__} with odp.{kind.data.__name__}" for kind in available)
            raise ConfigurationError(
                f"Expected training to go with data: {pairs} "
                f"(got {type(self.training).__name__} with {type(self.data).__name__})"
            )
        if not isinstance(self.model, self.training.models):
            wanted = " or ".join(f"odp.{kind.__name__}" for kind in self.training.models)
            raise ConfigurationError(
                f"Expected model to be an {wanted} with {type(self.training).__name__} "
                f"(got odp.{type(self.model).__name__})"
            )
        check_catalogue(self.model, self.data, population=self.population)
        if isinstance(self.model, MatrixFactorization):
            self._check_items(self.model)
        elif self.privacy.max_items_per_user is not None:
            raise ConfigurationError(
                f"Expected no max_items_per_user={self.privacy.max_items_per_user}: the clip norm bounds a user"
            )
        check_delta_for(self.privacy.delta, self.cohort.to_proto(self.privacy.delta).goal)
        # What only the parts together decide: the noise that fits the budget, the algorithm's own limits.
        definition = self.definition()
        algorithm_for(definition).check()
        check_broadcast(definition)
        self.usable_question()

    def _check_items(self, model: MatrixFactorization) -> None:
        if model.rank > model.items:
            raise ConfigurationError(f"Expected rank={model.rank} to be at most items={model.items}")
        if self.privacy.bound(model.items) > model.items:
            raise ConfigurationError(
                f"Expected max_items_per_user={self.privacy.max_items_per_user} to be at most items={model.items}"
            )
        if MODES[self.cohort.aggregation].dense_only:
            raise ConfigurationError(
                f"Expected aggregation={self.cohort.aggregation!r} to be {DEFAULT!r} with an odp.MatrixFactorization: "
                "the enclave has to open its sparse contributions"
            )

    @property
    def factorization(self) -> MatrixFactorization:
        """The model, where it scores items. Raises ConfigurationError where it is another."""
        if not isinstance(self.model, MatrixFactorization):
            raise ConfigurationError(
                f"Expected task {self.name!r} to have an odp.MatrixFactorization, for ratings "
                f"(got an odp.{type(self.model).__name__})"
            )
        return self.model

    @property
    def public_matrix(self) -> Float32Array | None:
        """What is submitted beside the definition, which names it by its hash; None without such a matrix."""
        return self.model.public_matrix

    @property
    def training_privacy(self) -> UserLevelDP:
        """The budget without the part of ``count_usable``."""
        if self.count_usable is None:
            return self.privacy
        left = 1.0 - self.count_usable.share
        return replace(self.privacy, epsilon=left * self.privacy.epsilon, delta=left * self.privacy.delta)

    def usable_question(self) -> Question | None:
        """The question of ``count_usable``, which a connection submits before the training; None without one.

        Raises ConfigurationError without noise, for a name that leaves the count none, or where the part is too small.
        """
        if self.count_usable is None:
            return None
        if self.privacy.epsilon == math.inf:
            raise ConfigurationError("Expected no count_usable with epsilon=inf: a share of it is no budget")
        name, share = self.count_usable.name_for(self.name), self.count_usable.share
        try:
            question: Question = usable_question(
                name=name,
                population=self.population,
                privacy=UserLevelDP(epsilon=share * self.privacy.epsilon, delta=share * self.privacy.delta),
                # Everybody is asked once, also where a training draws some of those who come.
                cohort=replace(self.cohort, sampling=FULL, sampling_probability=None, most_contributions=None),
                training=self.definition(),
            )
        except ConfigurationError as error:
            raise ConfigurationError(
                f"Expected count_usable with share={share!r} to be a valid task: {error}"
            ) from error
        return question

    def definition(self) -> common_pb2.TaskDefinition:
        """The task with every number resolved, noise included; ``developer_key`` is empty until a server signs it."""
        privacy = self.training_privacy
        definition = common_pb2.TaskDefinition(
            name=self.name,
            population=self.population,
            cohort=self.cohort.to_proto(privacy.delta),
            computing_milliseconds=self.cohort.computing_milliseconds,
        )
        self.model.write(definition)
        items = definition.model.items if definition.HasField("model") else None
        definition.privacy.CopyFrom(privacy.to_proto(items))
        self.data.write(definition)
        self.training.write(definition)
        terms = self.broadcast.resolve(definition)
        if terms is not None:
            definition.broadcast.CopyFrom(terms)
        return definition


@strict_keywords
@dataclass(frozen=True, kw_only=True)
class Question(abc.ABC):
    """What a population is asked in one round, without training anything; ``odp.Statistics`` is one.

    Attributes:
      name: For people: [a-z0-9_.-], at most 64 characters.
      privacy: Budget of the whole question; it has no ``max_items_per_user``, since a question bounds a user itself.
      cohort: Whom the round needs.
      population: Devices enrol in a population; its tasks share one privacy ledger. Default: the task's name.

    Raises ConfigurationError for a value out of range, PrivacyError for a delta that is no guarantee at this cohort.
    """

    name: str
    privacy: UserLevelDP
    cohort: Cohort = field(default_factory=Cohort)
    population: str = ""

    def __post_init__(self) -> None:
        identifier(name=self.name)
        if self.population == "":
            object.__setattr__(self, "population", self.name)
        identifier(population=self.population)
        for kind, value in ((UserLevelDP, self.privacy), (Cohort, self.cohort)):
            if not isinstance(value, kind):
                raise ConfigurationError(f"Expected an odp.{kind.__name__}, got a {type(value).__name__}")
        if self.privacy.max_items_per_user is not None:
            raise ConfigurationError(
                f"Expected no max_items_per_user={self.privacy.max_items_per_user}: a question bounds a user itself"
            )
        if self.privacy.epsilon == math.inf:
            raise ConfigurationError(
                "Expected epsilon to be finite; odp.simulate(.., noise=False) shows answers without noise"
            )
        if self.cohort.sampling != FULL:
            raise ConfigurationError(
                f"Expected no sampling={self.cohort.sampling!r} with odp.{type(self).__name__}: in one round, every "
                "contribution that is left out costs accuracy and buys nothing"
            )
        check_delta_for(self.privacy.delta, self.cohort.to_proto(self.privacy.delta).goal)
        algorithm_for(self.definition()).check()

    @property
    def public_matrix(self) -> Float32Array | None:
        """As of ``Task``."""
        return None

    @abc.abstractmethod
    def definition(self) -> common_pb2.TaskDefinition:
        """The task with every number resolved, noise included; ``developer_key`` is empty until a server signs it."""

    def unresolved(self) -> common_pb2.TaskDefinition:
        """The definition without the question itself."""
        privacy = common_pb2.PrivacyTerms(epsilon=self.privacy.epsilon, delta=self.privacy.delta)
        cohort = self.cohort.to_proto(self.privacy.delta)
        return common_pb2.TaskDefinition(
            name=self.name, population=self.population, privacy=privacy, cohort=cohort,
            computing_milliseconds=self.cohort.computing_milliseconds,
        )  # fmt: skip


def check_catalogue(model: Any, data: Any, *, population: str) -> None:
    """Raises ConfigurationError where a model names the catalogue of another population, or data have other items."""
    catalogue = getattr(model, "catalogue", None)
    if catalogue is None:
        return
    if catalogue.population != population:
        raise ConfigurationError(
            f"Expected population={population!r} to be that of the catalogue, {catalogue.population!r}"
        )
    events = getattr(data, "events", None)
    if events is not None and (events.buckets or events.edges):
        raise ConfigurationError("Expected events without buckets or edges: the catalogue says which items there are")


def without_rounds(definition: common_pb2.TaskDefinition) -> common_pb2.TaskDefinition:
    """The definition of a question whose reports go to the server alone: it has no cohort, and no delta."""
    definition.ClearField("cohort")
    definition.privacy.delta = 0.0
    return definition


def questions() -> dict[str, type[Question]]:
    """What can be asked, by the name of the training."""
    return {name: getattr(part_of(name, "task"), entry.question) for name, entry in TABLE.items() if entry.question}


def check_delta_for(delta: float, users: int) -> None:
    """Raises PrivacyError unless ``delta`` < 1 / users: at that, publishing one random user's data would be allowed."""
    if delta * users >= 1:
        raise PrivacyError(
            f"Expected delta={delta!r} to be below 1/users={1 / users:.3g} (users={users}); "
            f"take a tenth of that, {0.1 / users:.1g}"
        )
