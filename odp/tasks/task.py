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

A part of a task's budget for one question, asked first: how many devices have rows that the training can use.

Without it nobody learns whether a training had anything to train on: its noise hides that, too. The question is a task
of its own, of the same population and in the same ledger. The two parts of the budget add up to the whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from odp import _validate
from odp._validate import identifier, strict_keywords
from odp.algorithms.choices import (
    Question,
    Training,
    TrainingData,
    check_catalogue,
    default_training,
    define,
    trainings,
)
from odp.algorithms.registry import algorithm_for, usable_question
from odp.errors import ConfigurationError
from odp.models.glm import Glm
from odp.models.litert.compiled_model import CompiledModel
from odp.models.litert.keras_model import KerasModel
from odp.models.litert.two_tower import TwoTower
from odp.models.matrix_factorization import MatrixFactorization
from odp.models.trained import trained_models
from odp.numerics.arrays import Float32Array
from odp.protocol.aggregation import DEFAULT, MODES
from odp.protocol.terms import FULL, Cohort, UserLevelDP, check_delta_for
from odp.signed.broadcast.config import Broadcast
from odp.signed.broadcast.terms import check_broadcast
from odp.v1 import common_pb2

#: A larger share would leave the training too little.
_LARGEST_SHARE = 0.5
#: Of the name of a task, in the name of its count.
_SUFFIX = "usable"


@_validate.strict_keywords
@dataclass(frozen=True, kw_only=True)
class CountUsable:
    """A count of the devices with usable rows, before a training.

    Every device votes for one of four: no rows, none usable, some, or all. The training opens no round before the
    count is released.

    Attributes:
      share: of epsilon and of delta, above 0 and at most .5. The training gets the rest.
      least: of devices with a usable row, from 0 to 1. Where the count's interval (95 %) lies below it, the server ends
        the training before its first round. With 0, it trains whatever the count says.

    Raises:
      ConfigurationError: a number is out of range.
    """

    share: float = 0.05
    least: float = 0.1

    def __post_init__(self) -> None:
        _validate.finite(share=self.share)
        if not 0.0 < self.share <= _LARGEST_SHARE:
            raise ConfigurationError(f"Expected share={self.share!r} to be above 0, and at most {_LARGEST_SHARE}")
        _validate.within(low=0.0, high=1.0, least=self.least)

    def name_for(self, task: str) -> str:
        """The name of the question of a task of this name. Raises ConfigurationError where it would be too long."""
        most = _validate.LONGEST_NAME - len(_SUFFIX) - 1
        if len(task) > most:
            raise ConfigurationError(
                f"Expected name={task!r} to be at most {most} characters with count_usable, whose task is named "
                f"NAME.{_SUFFIX}"
            )
        return f"{task}.{_SUFFIX}"


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
            ("data", tuple(dict.fromkeys(kind for training in available for kind in training.data))),
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
            pairs = ", ".join(
                f"odp.{kind.__name__} with odp.{data.__name__}" for kind in available for data in kind.data
            )
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
        algorithm = algorithm_for(definition)
        if MODES[self.cohort.aggregation].dense_only and not algorithm.dense:
            raise ConfigurationError(
                f"Expected aggregation={self.cohort.aggregation!r} to be {DEFAULT!r} with an "
                f"odp.{type(self.training).__name__} of items: the enclave has to open its sparse contributions"
            )
        algorithm.check()
        check_broadcast(definition)
        self.usable_question()

    def _check_items(self, model: MatrixFactorization) -> None:
        if model.rank > model.items:
            raise ConfigurationError(f"Expected rank={model.rank} to be at most items={model.items}")
        if self.privacy.bound(model.items) > model.items:
            raise ConfigurationError(
                f"Expected max_items_per_user={self.privacy.max_items_per_user} to be at most items={model.items}"
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
        definition = define(
            name=self.name,
            population=self.population,
            model=self.model,
            data=self.data,
            privacy=self.training_privacy,
            training=self.training,
            cohort=self.cohort,
        )
        if (terms := self.broadcast.resolve(definition)) is not None:
            definition.broadcast.CopyFrom(terms)
        return definition
