"""A trained model that names the classes of examples, with their names, as a file of its own.

Trained classifiers for other programs: of a simulation, or of a task of a server.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from odp._system.files.durability import write_whole
from odp.algorithms.federated.reading import UsableTable
from odp.algorithms.federated.terms import PARAMETERS, Terms
from odp.datasets.examples import UsersExamples
from odp.errors import ConfigurationError, DataError
from odp.models.example_columns import ExampleColumns, checked_columns
from odp.models.example_tables import columns_of_task
from odp.models.features import described
from odp.numerics.archives import arrays_of
from odp.serving.export import FinishedRun, released_model, simulated_model
from odp.signed.task import open_task
from odp.v1 import common_pb2

if TYPE_CHECKING:
    from odp.protocol.wire.model import ModelVersion
    from odp.services.connection import Connection, TaskHandle
    from odp.v1 import server_pb2

_FORMAT = "odp classifier 1"
_ARRAYS = ("format", "definition", "parameters", "facts")


@dataclass(frozen=True, eq=False, repr=False)
class Classifier:
    """A trained model of classes.

    Attributes:
      definition: of its task, an ``odp.v1.TaskDefinition``: what it reads of an example, and the names of its classes.
      parameters: float32 [size].
      facts: about its privacy, as ``odp.items.export_items`` lists them.

    Raises:
      ConfigurationError: the task trains no model of classes, or one with layers that stay on devices.
      DataError: there is another number of parameters, or one is not finite.
    """

    definition: bytes
    parameters: npt.NDArray[np.float32]
    facts: Mapping[str, str]

    def __post_init__(self) -> None:
        terms = self._terms
        check_classes(terms)
        if self.parameters.shape != (terms.model.size,) or not np.isfinite(self.parameters).all():
            raise DataError(f"Expected {terms.model.size} finite parameters (got {self.parameters.size})")

    def __repr__(self) -> str:
        """What it was trained for, and its classes."""
        return f"<classifier of task {self.facts.get('task', '')!r}: {', '.join(map(str, self.classes))}>"

    @property
    def _terms(self) -> Terms:
        definition = common_pb2.TaskDefinition()
        try:
            definition.ParseFromString(self.definition)
        except DecodeError:
            raise DataError("Expected the definition of a task") from None
        return Terms.of(definition)

    @property
    def classes(self) -> tuple[str, ...] | range:
        """The names of the classes in their order, or their numbers where the task names none."""
        terms = self._terms
        assert terms.model.classes_range is not None
        return terms.examples.classes or range(int(terms.model.classes_range[1]) + 1)

    def classify(self, columns: Mapping[str, npt.ArrayLike] | ExampleColumns | Any) -> npt.NDArray[Any]:
        """The likeliest class of each example, [n]: its name as text, or its number as int64 where the task names none.

        Args:
          columns: by name, a data frame, or what ``odp.data.load_examples`` gives; others than the task's features are
          not
            looked at.

        Raises:
          DataError: a column is missing or of another shape, or an example cannot be used; the message says how many,
            and why.
        """
        terms = self._terms
        declared = terms.examples.features
        checked = checked_columns(columns_of_task(columns, list(declared)))
        count, parts = len(next(iter(checked.values()))), []
        for name, feature in declared.items():
            if (numbers := feature.numbers(checked[name])) is None:
                raise DataError(f"Expected the column {name!r} to hold {described(feature)}")
            parts.append(numbers.reshape(count, feature.size))
        # The label is what is asked for, and any that the model takes makes a table of examples.
        labels = np.full(count, self.classes[0])
        labels = labels if labels.dtype.kind == "U" else labels.astype(np.float32)
        examples = UsersExamples.of_users(
            np.concatenate(parts, axis=1).astype(np.float32), labels, np.zeros(count, dtype=np.int64)
        )
        table = UsableTable.of(terms.model, terms.examples, examples)
        if count and (left_out := table.left_out(examples, what="examples")).count:
            raise DataError(f"Expected examples that the model can use; {left_out}")
        features = table.features.astype(np.float32) * np.float32(table.scale)
        numbers = terms.model.classes(self.parameters, features).astype(np.int64)
        return np.take(np.array(self.classes), numbers)

    def save(self, path: str | Path) -> None:
        """Writes an .npz file that ``load`` reads, whole or not at all. Raises ConfigurationError where it cannot."""
        check_file(path)
        file = io.BytesIO()
        np.savez(
            file, format=np.array(_FORMAT), definition=np.frombuffer(self.definition, dtype=np.uint8),
            parameters=self.parameters, facts=np.array(json.dumps(dict(self.facts))),
        )  # fmt: skip
        write_whole(path, [file.getvalue()])

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads a file of ``save``. Raises DataError: it is missing or none; ConfigurationError as the class."""
        with arrays_of(path, "not a readable file of a classifier") as file:
            if not set(_ARRAYS) <= set(file.files) or str(file["format"]) != _FORMAT:
                raise DataError(f"{path}: not a file of a classifier, as odp.items.Classifier.save writes it")
            definition, parameters, facts = file["definition"].tobytes(), file["parameters"], str(file["facts"])
        try:
            return cls(definition, parameters.astype(np.float32), dict(json.loads(facts)))
        except (TypeError, ValueError, ConfigurationError, DataError) as error:
            raise DataError(f"{path}: a damaged file of a classifier ({error})") from None

    @classmethod
    def of(cls, definition: common_pb2.TaskDefinition, model: ModelVersion, facts: Mapping[str, str]) -> Self:
        """A model of a definition, with what is known of its privacy. Raises as the class."""
        if PARAMETERS not in model.dense:
            raise ConfigurationError(f"Expected a model of labelled examples: task {definition.name!r} trains another")
        vector = Terms.of(definition).parameters(model.dense[PARAMETERS])
        return cls(definition.SerializeToString(deterministic=True), vector, {"task": definition.name, **facts})


def check_classes(terms: Terms) -> None:
    """Returns if the model of a task is one of classes. Raises ConfigurationError."""
    if terms.model.classes_range is None:
        raise ConfigurationError(
            "Expected a task that predicts classes, which a classifier names: this one predicts numbers"
        )
    if terms.local.reconstruction is not None:
        raise ConfigurationError("Expected a model without layers that stay on devices: a classifier has none of them")


def check_file(path: str | Path) -> None:
    """Returns if a classifier can be written to a file of that name. Raises ConfigurationError."""
    if Path(path).suffix != ".npz":
        raise ConfigurationError(f"Expected a file of a classifier to end in .npz (got {str(path)!r})")


def export_classifier(source: FinishedRun | TaskHandle, path: str | Path | None = None) -> Classifier:
    """The trained model of classes, which names them as its task does; written to a file where ``path`` says so.

    ``facts`` of the result are those of ``odp.items.export_items``: of a server's task, the release that the model ends
    with is checked, and the signature is the attested aggregator's where reference values are given.

    Args:
      source: what ``odp.simulate`` returned, or the handle of a task of a server.
      path: of an .npz file, which is written whole or not at all; ``odp.items.Classifier.load`` reads it.

    Raises:
      ConfigurationError: the task trains no model of classes, has released nothing yet, or the file cannot be written.
      AttestationError: the aggregator's evidence is not accepted.
      ServiceError: the server does not answer, or the release is not of this task.
    """
    if isinstance(source, FinishedRun):
        trained = simulated_model(source)
        classifier = Classifier.of(source.task.definition(), trained.model, trained.facts)
    elif hasattr(source, "connection"):
        classifier = released_classifier(source.connection, source.status())
    else:
        raise ConfigurationError(
            f"Expected what odp.simulate returned, or the handle of a task (got {type(source).__name__})"
        )
    if path is not None:
        classifier.save(path)
    return classifier


def released_classifier(connection: Connection, status: server_pb2.TaskStatus) -> Classifier:
    """The newest model of a task of a server. Raises as ``export_classifier``."""
    trained = released_model(connection, status)
    return Classifier.of(open_task(status.task), trained.model, trained.facts)
