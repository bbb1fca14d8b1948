"""Evaluations as the platform sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from odp.algorithms.capabilities import Answers
from odp.algorithms.computing_time import reading_cost
from odp.algorithms.dense.inquiry import DenseInquiry
from odp.algorithms.federated.reading import ROWS, examples_table
from odp.algorithms.model_evaluation.terms import RELEASE, Terms
from odp.algorithms.seam import Client, LocalTable, ModelTable, Server, most_rows
from odp.models.computing_cost import SEALED_SECONDS, VECTOR_BYTES, ComputingCost, Product
from odp.models.events_query import AGGREGATES, EventsTerms
from odp.models.left_out import ANSWERS
from odp.numerics.arrays import Float32Array, Float64Array

if TYPE_CHECKING:
    from odp.algorithms.model_evaluation.population import EvaluationPopulation
    from odp.models.left_out import LeftOut
    from odp.models.trained import TrainedModel

# Drawing an example's place among a person's.
_RANKED_SECONDS = 3e-7


class TaskAlgorithm(DenseInquiry):
    """``odp.algorithms.capabilities.Inquiry`` of tasks that evaluate models: devices read the models first."""

    release = RELEASE
    reads_model = True

    def terms(self) -> Terms:
        return Terms.of(self.definition)

    @property
    def local_data(self) -> tuple[LocalTable, ...]:
        terms = self.terms()
        if (examples := terms.examples) is None:
            data = self.definition.data
            events = EventsTerms.of(data, aggregates=tuple(name for name in AGGREGATES if name != "each"))
            return (LocalTable(ROWS, data.table, frozenset({"ratings"}), events, most_rows(events)),)
        return (examples_table(examples, most_rows=terms.most_rows),)

    @property
    def computing_cost(self) -> ComputingCost:
        terms, most = self.terms(), self.definition.model_evaluation.most_examples
        tests = terms.layout.models
        tested = tests * terms.model.testing_seconds(ranked=terms.ranked)
        once = Product(tests * terms.model.start_seconds + SEALED_SECONDS * terms.grid.size)
        memory = (Product(VECTOR_BYTES * terms.model.size * tests + terms.model.program_bytes),)
        if terms.examples is None:
            # A person's own parameters are solved from all of their ratings.
            return reading_cost(self.local_data, row_seconds=_RANKED_SECONDS + tested).plus(once, memory=memory)
        each = tested + tests * terms.model.start_seconds / terms.examples_at_once
        cost = reading_cost(self.local_data, row_seconds=_RANKED_SECONDS, most_examples=most).plus(
            once, Product(each, "most_examples"), memory=memory
        )
        if terms.personal is None:
            return cost
        model = cast("TrainedModel", terms.model)  # ``Terms.of`` lets personal models be of no other
        training = terms.personal.training
        return cost.plus(*model.training_cost(training), caps={**training.caps, "most_examples": most})

    @property
    def tables(self) -> tuple[ModelTable, ...]:
        terms = self.terms()
        return tuple(ModelTable(name, terms.model.size, 1, False) for name in terms.tables)

    def public_matrix_from(self, data: bytes) -> Float32Array:
        from odp.algorithms.model_evaluation.task import parameters_from

        terms, named = self.terms(), self.definition.model_evaluation.parameters_sha256
        return parameters_from(data, models=len(terms.tables), size=terms.model.size, sha256=named)

    def server(self, *, item_features: Float32Array | None = None) -> Server:
        from odp.algorithms.model_evaluation.server import EvaluationServer

        return EvaluationServer(self.terms(), item_features)

    def client(self) -> Client:
        from odp.algorithms.model_evaluation.client import EvaluationClient

        return EvaluationClient(self.terms())

    def population(self) -> EvaluationPopulation:
        from odp.algorithms.model_evaluation.population import EvaluationPopulation

        return EvaluationPopulation(self.terms())

    def left_out(self, users: Any) -> dict[str, LeftOut]:
        return {ANSWERS: self.population().left_out(users)}

    def answers(
        self, released: Mapping[str, Float64Array], *, contributions: int, epsilon: float, noisy: bool = True
    ) -> Answers:
        from odp.algorithms.model_evaluation.results import EvaluationResults

        terms = self.terms()
        return EvaluationResults(
            terms=terms,
            sums=released[RELEASE] / terms.factor,
            std=terms.grid.std_of(contributions) / terms.factor if noisy else 0.0,
            contributions=contributions,
            epsilon=epsilon,
            delta=self.definition.privacy.delta,
        )
