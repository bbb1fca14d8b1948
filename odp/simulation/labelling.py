"""The classes that a finished training names for examples, by the names that its task declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from odp.algorithms.federated.reading import UsableTable
from odp.algorithms.federated.terms import PARAMETERS, Terms
from odp.errors import ConfigurationError, DataError
from odp.models.example_columns import ExampleColumns, checked_columns
from odp.models.examples import Examples
from odp.task import Task
from odp.wire.model import ModelVersion


def classify(task: Task, model: ModelVersion, columns: Mapping[str, npt.ArrayLike]) -> npt.NDArray[Any]:
    """The likeliest class of each example, [n]: its name as text, or its number as int64 where the task names none.

    Raises:
      ConfigurationError: the model predicts no classes, or has layers that stay on devices.
      DataError: a column is missing or of another shape, or an example cannot be used; the message says how many, and
        why.
    """
    data = task.data
    if not isinstance(data, Examples):
        raise ConfigurationError("Expected a task of odp.Examples: a model of ratings recommends")
    terms = Terms.of(task.definition())
    if terms.model.classes_range is None or terms.local.reconstruction is not None:
        raise ConfigurationError("Expected a model of classes, without layers that stay on devices")
    features = checked_columns({name: column for name, column in columns.items() if name != data.label})
    count = len(next(iter(features.values())))
    # The label is what is asked for, and any that the model takes makes a table of examples.
    label = np.full(count, data.classes[0] if data.classes else 0)
    users = ExampleColumns.of_users({**features, data.label: label}, np.zeros(count, dtype=np.int64))
    examples = users.users_examples(data)
    table = UsableTable.of(terms.model, terms.examples, examples)
    if count and (left_out := table.left_out(examples, what="examples")).count:
        raise DataError(f"Expected examples that the model can use; {left_out}")
    vector = terms.parameters(model.dense[PARAMETERS])
    numbers = terms.model.classes(vector, table.features.astype(np.float32) * np.float32(table.scale)).astype(np.int64)
    return np.array(data.classes)[numbers] if data.classes else numbers
