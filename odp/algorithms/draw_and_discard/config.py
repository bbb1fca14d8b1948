"""What a developer writes to train a model without any trusted party.

Example::

    import odp

    task = odp.DrawAndDiscard(
        name="clicks",
        features={"member": odp.Boolean(), "kind": odp.Category(3), "age": odp.Number(low=0, high=100, clip=True)},
        crosses=[("member", "kind")],
        epsilon=2.77,  # per feature; the model's is 10 times as much
    )
    task.simulate(people, updates=100_000).report()
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from odp import _validate
from odp.algorithms.draw_and_discard.features import Boolean, LocalFeatures, Number
from odp.algorithms.draw_and_discard.simulation import simulate, thresholds
from odp.algorithms.draw_and_discard.terms import MOST_UPDATES, Spam, Terms, resolved
from odp.algorithms.local_seam import MOST_REPORTS
from odp.errors import ConfigurationError
from odp.models.class_names import checked_classes
from odp.models.examples import TABLE
from odp.models.features import Category
from odp.models.glm.shape import Family
from odp.numerics.arrays import Float64Array
from odp.v1 import common_pb2

if TYPE_CHECKING:
    from odp.algorithms.draw_and_discard.model import LocalModel
    from odp.models.example_columns import ExampleColumns

FEATURE, MODEL = "feature", "model"


@_validate.strict_keywords
@dataclass(frozen=True, kw_only=True)
class DrawAndDiscard:
    """A generalised linear model from reports that are private by themselves: no enclave, and no trusted server.

    Attributes:
      name: for people: [a-z0-9_.-], at most 64 characters.
      features: ``odp.Boolean``, ``odp.Number`` or ``odp.Category`` by the name of their column.
      epsilon: pure epsilon of one report, of what ``per`` says.
      per: "feature", as published: epsilon bounds what a report tells of one weight, and the whole report costs
        ``weights`` times as much; or "model": epsilon bounds the whole report, and the noise is ``weights`` times as
        large. Either way the ledger of a person is charged for the whole report.
      family: "linear", "logistic", "multinomial" or "poisson".
      classes: how many, of a multinomial model, and 1 for the others; or of a logistic or multinomial model their names
        in their order, such as ("no", "yes"), which the column of the response then holds.
      crosses: pairs of features, whose products are features too.
      label: column of the response.
      label_low, label_high: range of a response that is a number, which becomes 0 to 1; others are left out.
      table: "examples", or "examples.SERVICE".
      intercept: whether the model has one.
      instances: models that the server has, 20 to 30 as published: more are less noisy and learn more slowly.
      rate: step of gradient descent.
      clip: bound of each number of a mean gradient. 1 never binds in logistic and multinomial models.
      false_alarms: share of honest reports that the test for spam refuses; 0 for no test.
      start: weights to begin with, from a model of before; zeros by default.
      seed: of the spread of the first instances; public.
      most_updates: the server takes no report after this number of them.
      most_reports: a device reports at most so often, and each report is charged.
      most_examples: a device reads this number of its rows at most, the newest.
      seconds_between: a device waits so long after a report, at least, before the next one; a day by default.
      population: devices enrol in a population. Default: the task's name.

    Raises:
      ConfigurationError: a value is out of range.
    """

    #: By the name of each kind in a task file.
    feature_kinds: ClassVar[Mapping[str, type]] = MappingProxyType(
        {kind.kind: kind for kind in (Number, Boolean, Category)}
    )

    name: str
    features: Mapping[str, Boolean | Number | Category] = field(hash=False)
    epsilon: float
    per: str = FEATURE
    family: str = "logistic"
    classes: int | Sequence[str | float] = 1
    crosses: Sequence[tuple[str, str]] = ()
    label: str = "label"
    label_low: float = 0.0
    label_high: float = 1.0
    table: str = TABLE
    intercept: bool = True
    instances: int = 20
    rate: float = 0.005
    clip: float = 1.0
    false_alarms: float = 0.01
    start: Sequence[float] | None = None
    seed: int = 1
    most_updates: int = MOST_UPDATES
    most_reports: int = 1
    most_examples: int = 1000
    seconds_between: int = 86_400
    population: str = ""
    _terms: Terms = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _validate.identifier(name=self.name)
        if self.population == "":
            object.__setattr__(self, "population", self.name)
        _validate.identifier(population=self.population)
        _validate.one_of((FEATURE, MODEL), per=self.per)
        _validate.one_of([family.value for family in Family], family=self.family)
        _validate.integer(low=1, high=MOST_REPORTS, most_reports=self.most_reports)
        object.__setattr__(self, "_terms", self._resolved(noisy=True))
        object.__setattr__(self, "crosses", tuple(tuple(pair) for pair in self.crosses))
        if not isinstance(self.classes, int):
            object.__setattr__(self, "classes", checked_classes(self.classes))

    def _resolved(self, *, noisy: bool) -> Terms:
        names = () if isinstance(self.classes, int) else checked_classes(self.classes)
        classes = self.classes if isinstance(self.classes, int) else 1
        if names and Family(self.family) is Family.MULTINOMIAL:
            classes = len(names)
        features = LocalFeatures(
            self.features, self.label, self.crosses, self.label_low, self.label_high, self.table, self.intercept, names
        )
        start: Float64Array | None = None
        if self.start is not None:
            try:
                start = np.asarray(self.start, dtype=np.float64)
            except (TypeError, ValueError):
                raise ConfigurationError("Expected start to be numbers, one for each weight") from None
        return resolved(
            features, Family(self.family), classes=classes, instances=self.instances, rate=self.rate,
            clip=self.clip, epsilon=self.epsilon, per_model=self.per == MODEL, spam=Spam(), start=start,
            seed=self.seed, most_updates=self.most_updates, most_reports=self.most_reports,
            most_examples=self.most_examples, seconds_between=self.seconds_between, noisy=noisy,
        )  # fmt: skip

    @property
    def weights(self) -> int:
        """Numbers of the model."""
        return self._terms.weights

    @property
    def feature_epsilon(self) -> float:
        """Pure epsilon of one report for one weight: at most what was asked."""
        return self._terms.feature_epsilon

    @property
    def model_epsilon(self) -> float:
        """Pure epsilon of one whole report: ``weights`` times as much, and what a person's ledger is charged."""
        return self._terms.model_epsilon

    def terms(self, *, noise: bool = True) -> Terms:
        """Every number of the task, its test for spam included; without ``noise``, for simulations alone.

        Raises:
          ConfigurationError: ``false_alarms`` is too small for this number of weights and instances.
        """
        if not noise:
            return self._resolved(noisy=False)
        rule = thresholds(instances=self.instances, weights=self.weights, false_alarms=self.false_alarms)
        return dataclasses.replace(self._terms, spam=rule)

    def definition(self) -> common_pb2.TaskDefinition:
        """The task with every number resolved; ``developer_key`` is empty until a server signs it.

        Raises:
          ConfigurationError: as ``terms``.
        """
        terms = self.terms()
        return common_pb2.TaskDefinition(
            name=self.name,
            population=self.population,
            privacy=common_pb2.PrivacyTerms(epsilon=terms.lifetime_epsilon),
            draw_and_discard=terms.to_proto(),
        )

    @property
    def public_matrix(self) -> None:
        """A task has none: as of ``odp.Task``."""
        return None

    def simulate(
        self, people: ExampleColumns, *, updates: int, seed: int = 1, noise: bool = True, server: str = "discard"
    ) -> LocalModel:
        """The model after ``updates`` reports of ``people``, in an order that ``seed`` draws for each pass.

        As ``odp.algorithms.draw_and_discard.simulation.simulate``.
        """
        return simulate(self.terms(noise=noise), people, updates=updates, seed=seed, server=server)
