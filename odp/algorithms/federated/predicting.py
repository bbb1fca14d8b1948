"""What a federated model says of examples: of rows of numbers that ``ExamplesTerms.matrix`` makes of named columns.

A network is its developer's program, and runs where a ``ProgramPredictor`` runs it: on a device behind walls. Where it
has layers that stay on devices, these are found anew of the person's own examples, as in training.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from odp.algorithms.predicting import ProgramPredictor
from odp.errors import ConfigurationError
from odp.models.examples import ExamplesTerms
from odp.models.glm.trained import TrainedGlm
from odp.models.litert.program import inputs_of, targets_of
from odp.models.litert.trained import TrainedNetwork, class_outputs, probabilities
from odp.models.litert.trainer import local_steps
from odp.models.local_training import LocalTraining
from odp.models.trained import TrainedModel
from odp.numerics.arrays import Float32Array, Float64Array

# Of a person's local layers: their batches are drawn by public numbers, the same at every prediction.
_SEED, _ROUND = 0, 0


@dataclass(frozen=True)
class PersonsExamples:
    """A person's examples, as the model reads them: float32 [n, width] and [n]."""

    features: Float32Array = field(repr=False)
    targets: Float32Array = field(repr=False)


def is_personal(model: TrainedModel) -> bool:
    """Whether what the model says depends on the person's own examples, besides the one that it is asked about."""
    return isinstance(model, TrainedNetwork) and model.program.has_local


def ranked_feature(model: TrainedModel, terms: ExamplesTerms) -> str | None:
    """The feature that is an item, of a model that ranks all items; None of another model."""
    return list(terms.features)[-1] if model.ranked_items else None


def scored(
    model: TrainedModel, vector: Float32Array, features: Float32Array, predictor: ProgramPredictor
) -> Float64Array:
    """The scores of all items of a model that ranks them, float64 [n, items]; the last feature does not count.

    Raises as ``predicted``.
    """
    if not isinstance(model, TrainedNetwork):
        raise ConfigurationError("Expected a model that ranks items")
    inputs = inputs_of(model.program, features)
    return predictor.predicted(model.program, vector, inputs, None, items=model.ranked_items).astype(np.float64)


def predicted(
    model: TrainedModel,
    vector: Float32Array,
    features: Float32Array,
    *,
    predictor: ProgramPredictor | None = None,
    training: LocalTraining | None = None,
    person: PersonsExamples | None = None,
) -> Float64Array:
    """What a model says of usable examples.

    Args:
      model: of the task, as it reads the task's examples.
      vector: its parameters, float32 [size].
      features: float32 [n, width].
      predictor: runs the program of a network.
      training: of the task: how local layers are found.
      person: the person's examples, of which they are found.

    Returns:
      Probabilities float64 [n, classes] of a model of classes; else numbers float64 [n, 1].

    Raises:
      ConfigurationError: the model predicts no single number or class, or this device runs no programs.
      OdpError: as ``ProgramPredictor.predicted``.
    """
    if isinstance(model, TrainedGlm):
        means = model.means(vector, features)
    elif isinstance(model, TrainedNetwork):
        means = _of_network(model, vector, features, predictor, training, person)
    else:
        raise ConfigurationError("Expected a generalised linear model or a network, whose predictions are one number")
    if model.classes_range is not None and means.shape[1] == 1:
        return np.column_stack((1.0 - means, means))
    return means


def _of_network(
    model: TrainedNetwork, vector: Float32Array, features: Float32Array, predictor: ProgramPredictor | None,
    training: LocalTraining | None, person: PersonsExamples | None,
) -> Float64Array:  # fmt: skip
    program = model.program
    if program.prediction.size not in (class_outputs(program.classes) if program.classes else (1,)):
        raise ConfigurationError(
            f"Expected a network that predicts one number, or one of its classes={program.classes} (it gives "
            f"{program.prediction.size} numbers)"
        )
    if predictor is None:
        raise ConfigurationError("this device runs no networks")
    local = None
    if program.has_local and person is not None and training is not None:
        steps = local_steps(training, len(person.targets), seed=_SEED, round=_ROUND)
        if steps is not None:
            local = inputs_of(program, person.features), targets_of(program, person.targets), steps
    if not len(features):
        return np.zeros((0, max(1, program.classes)))
    answers = predictor.predicted(program, model.whole(vector), inputs_of(program, features), local)
    return probabilities(program, answers) if program.classes else answers.reshape(-1, 1).astype(np.float64)
