"""What a trained model says of examples: the means of its law, and by name why an example cannot be used."""

from __future__ import annotations

import numpy as np
import pytest

import odp
from odp.algorithms.federated.predicting import predicted
from odp.algorithms.predicting import Predictions, rows_of
from odp.errors import ConfigurationError, DataError
from odp.models.examples import ExamplesTerms
from odp.models.glm.trained import TrainedGlm
from odp.models.rated_items import RatedItems
from odp.v1 import common_pb2

X = np.array([[0.5, -1.0], [2.0, 0.25], [0.0, 0.0]], dtype=np.float32)
W = np.array([[0.4, -0.3], [-0.2, 0.1], [0.0, 0.5]])
B = np.array([0.1, -0.2, 0.3])


def terms(features: dict[str, odp.Tensor | odp.Category]) -> ExamplesTerms:
    definition = common_pb2.TaskDefinition()
    odp.Examples(features, label="y").write(definition)
    definition.examples.label_high = 1.0
    return ExamplesTerms.of(definition.examples)


def model(family: str, classes: int) -> tuple[TrainedGlm, np.ndarray, np.ndarray]:
    """A model, its parameters, and what its means are of."""
    shape = odp.Glm(family, features=2, **({"classes": classes} if classes else {}))
    vector = np.zeros(shape.size, dtype=np.float32)
    weights, biases = shape.split(vector)
    weights[:], biases[:] = W[: shape.outputs], B[: shape.outputs]
    trained = TrainedGlm(shape).reading(terms({"x": odp.Tensor((2,), -3, 3)}))
    return trained, vector, X @ weights.T.astype(np.float64) + biases


@pytest.mark.parametrize(
    ("family", "classes", "mean"),
    [
        ("linear", 0, lambda z: z),
        ("poisson", 0, np.exp),
        ("logistic", 0, lambda z: np.column_stack((1 / (1 + np.exp(z[:, 0])), 1 / (1 + np.exp(-z[:, 0]))))),
        ("multinomial", 3, lambda z: np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)),
    ],
)
def test_predictions_of_a_generalised_linear_model_are_the_means_of_its_law(family, classes, mean) -> None:
    trained, vector, z = model(family, classes)
    np.testing.assert_allclose(predicted(trained, vector, X), mean(z), rtol=1e-5)


def test_labels_are_names_where_there_are_names_and_numbers_of_a_model_of_numbers() -> None:
    probabilities = np.array([[0.2, 0.8], [0.6, 0.4]])
    named = Predictions(probabilities.max(axis=1), probabilities, ("no", "yes"), 3)
    assert named.labels == ["yes", "no"]
    assert named.rows()[0] == {"prediction": "yes", "probability": 0.8, "probabilities": {"no": 0.2, "yes": 0.8}}
    assert Predictions(np.array([1.5]), None, (), 3).rows() == [{"prediction": 1.5}]


def test_columns_become_rows_as_in_training_and_others_are_ignored() -> None:
    examples = terms({"age": odp.Tensor((), 0, 100, 0.01), "kind": odp.Category(("film", "book"))})
    rows = rows_of(examples, {"age": np.array([50, 400]), "kind": np.array(["book", "film"]), "more": np.arange(2)})
    np.testing.assert_allclose(rows, [[0.5, 1.0], [1.0, 0.0]])


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"age": np.array([1.0])}, "'kind' is missing"),
        ({"age": np.array([1.0, np.nan]), "kind": np.array(["film", "book"])}, r"example 1 .*'age' is not a number"),
        ({"age": np.array([1.0, 2.0]), "kind": np.array(["film", "disc"])}, r"example 1 .*'kind' is none of its 2"),
        ({"age": np.array([1.0, 2.0]), "kind": np.array(["film"])}, r"'kind' to be of shape \[2\]"),
        ({"age": np.array([[1.0, 2.0]]), "kind": np.array(["film"])}, r"'age' to be of shape \[1\] \(got \[1, 2\]\)"),
        ({"age": np.array(["old"]), "kind": np.array(["film"])}, "example 0"),
    ],
)
def test_an_example_that_cannot_be_used_is_named(columns, said) -> None:
    examples = terms({"age": odp.Tensor((), 0, 100), "kind": odp.Category(("film", "book"))})
    with pytest.raises(DataError, match=said):
        rows_of(examples, columns)


def test_a_model_that_says_nothing_of_an_example_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="generalised linear model or a network"):
        predicted(RatedItems(items=3, rank=1), np.zeros(3, np.float32), X)  # type: ignore[arg-type]
