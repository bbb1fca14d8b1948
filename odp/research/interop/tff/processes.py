"""A task of this platform as a learning process of TensorFlow Federated. Needs that (`make tff-env`).

==============================  ==========================================================================
of the task                     of the process
==============================  ==========================================================================
``odp.Glm``                     a FunctionalModel: weights [outputs, features], biases [outputs]
model of ``from_tff``           the FunctionalModel or the ReconstructionModel that it was made of
``reconstruction``              reconstruction optimizer, and an empty batch between its batches and the others
local epochs, batches, order    the data sets of clients: ``client_datasets``
``rate``, ``proximal``          client optimizer
``clip``, cohort, noise         a differentially private aggregation: sum of clipped differences over a fixed
                                number, plus Gaussian noise
``server`` and its numbers      server optimizer
==============================  ==========================================================================

What the process does not have: the exact noise, the grid of integers, the enclave and the ledger. Its noise is drawn
from a floating-point generator, so its runs are for comparison, and nobody's data are protected by them. What it would
compute differently is refused by name (``odp.research.interop.carried``).

The proximal term is in the client optimizer, as ``build_unweighted_fed_prox`` of TensorFlow Federated 0.87 adds
μ (w0 - w) to a gradient: the term with the other sign, which drives clients away from w0.
"""

from __future__ import annotations

import collections
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp

from odp.algorithms.dense.optimizers import OptimizerKind, ServerOptimizer
from odp.algorithms.federated.reading import UsableTable
from odp.algorithms.federated.terms import Terms
from odp.datasets.examples import UsersExamples
from odp.errors import ConfigurationError
from odp.evaluation.users import user_seeds
from odp.models.glm.shape import POISSON_LIMIT, Family, Glm
from odp.models.glm.trained import TrainedGlm
from odp.numerics.arrays import Float32Array, Int64Array
from odp.research.interop.carried import carried_terms
from odp.research.interop.tff.models import ModelFromTff
from odp.tasks.task import Task


def to_tff(task: Task, *, noise: bool = True) -> Any:
    """A ``tff.learning.templates.LearningProcess`` that trains as the task does.

    Its ``next`` takes the state and one data set per client of the round (``client_datasets``).

    Args:
      task: that trains an ``odp.Glm`` or a model of ``from_tff`` by ``odp.DPFedAvg`` or ``odp.DPSGD``.
      noise: whether to add noise of the task's size.

    Raises:
      ConfigurationError: the task trains another model, or has a training or a setting that is not carried over
        (``odp.research.interop.carried``); the message names it.
    """
    terms, source = _terms(task, noise=noise), _source(task)
    deviation = terms.blocks[0].grid.noise_std * terms.clip if noise else 0.0
    query = tfp.NormalizedQuery(tfp.GaussianSumQuery(terms.clip, deviation), denominator=terms.blocks[0].cohort)
    aggregator = tff.aggregators.DifferentiallyPrivateFactory(query)
    client, server = _Client(terms.local.rate, terms.local.proximal), _Server(terms.optimizer)
    reconstruction = terms.local.reconstruction
    if reconstruction is not None and source is not None:
        return tff.learning.algorithms.build_fed_recon(
            source.source,
            loss_fn=source.loss_fn,
            client_optimizer_fn=client,
            server_optimizer_fn=server,
            reconstruction_optimizer_fn=_Client(reconstruction.rate, 0.0),
            dataset_split_fn=_split,
            client_weighting=tff.learning.ClientWeighting.UNIFORM,
            model_aggregator_factory=aggregator,
        )
    return tff.learning.algorithms.build_unweighted_fed_avg(
        glm_model(_shape(terms)) if source is None else source.source,
        client_optimizer_fn=client,
        server_optimizer_fn=server,
        model_aggregator=aggregator,
    )


def client_datasets(task: Task, people: UsersExamples, *, round: int, seed: int = 1) -> list[Any]:
    """What every user trains on in a round: a ``tf.data.Dataset`` of batches each, in the task's order.

    The order is that of ``odp.simulate(task, .., seed=seed)``; numbers are clamped and scaled, and examples that the
    model cannot use are left out: a warning says how many, and why.

    Raises:
      ConfigurationError: as ``to_tff``.
      DataError: examples have another number of features than the task declares, a label is none that the model
        takes, or no example can be used.
    """
    terms, source = _terms(task, noise=False), _source(task)
    table = UsableTable.of(terms.model, terms.examples, people)
    left_out = table.left_out(people, what="examples")
    if left_out.count:
        warnings.warn(f"trained {left_out.sentence('examples')}", stacklevel=2)
    local, usable = terms.local, table.usable(people)
    datasets = []
    for user, own_seed in enumerate(user_seeds(people, seed)):
        features, targets = usable.of(user)
        batches = list(local.batches(len(targets), seed=int(own_seed), round=round))
        if local.reconstruction is not None:
            local_batches = local.local_batches(len(targets), seed=int(own_seed), round=round)
            batches = [*local_batches, np.zeros(0, dtype=np.int64), *batches]
        structure = (_model(terms).design(features), targets) if source is None else source.batch_of(features, targets)
        datasets.append(_batched(structure, batches))
    return datasets


def parameters_of(process: Any, state: Any) -> Float32Array:
    """The parameters in a state of ``to_tff``'s process as the task's vector, float32 [size]: shared ones alone."""
    weights = tf.nest.flatten(process.get_model_weights(state).trainable)
    return np.concatenate([np.asarray(part, dtype=np.float32).reshape(-1) for part in weights])


def _batched(structure: Any, batches: Sequence[Int64Array]) -> Any:
    """A ``tf.data.Dataset`` of these rows of a structure of arrays."""
    order = np.concatenate([*batches, np.zeros(0, dtype=np.int64)])
    arrays = tf.nest.map_structure(lambda values: tf.constant(values[order]), structure)
    ends = np.cumsum([len(rows) for rows in batches], dtype=np.int64)
    places = np.stack([np.concatenate(([0], ends[:-1])), ends], axis=1) if batches else np.zeros((0, 2), np.int64)
    return tf.data.Dataset.from_tensor_slices(places).map(
        lambda place: tf.nest.map_structure(lambda values: values[place[0] : place[1]], arrays)
    )


def _split(batches: Any) -> tuple[Any, Any]:
    """What lies before the empty batch, for local parameters, and what comes after it."""
    local = batches.take_while(lambda *batch: tf.shape(tf.nest.flatten(batch)[0])[0] > 0)
    return local, batches.skip(local.reduce(tf.constant(1, tf.int64), lambda count, *_: count + 1))


def glm_model(shape: Glm) -> Any:
    """A ``tff.learning.models.FunctionalModel`` with the loss of a generalised linear model, from zeros on."""
    weights = np.zeros((shape.outputs, shape.features), dtype=np.float32)
    biases = np.zeros(shape.outputs, dtype=np.float32)

    @tf.function
    def predict(model_weights: Any, x: Any, training: bool) -> Any:
        (slopes, offsets), _ = model_weights
        return tf.matmul(x, slopes, transpose_b=True) + offsets

    def loss(output: Any, label: Any, sample_weight: Any = None) -> Any:
        return tf.reduce_mean(_losses(shape, output, label))

    spec = (tf.TensorSpec([None, shape.features], tf.float32), tf.TensorSpec([None], tf.float32))
    return tff.learning.models.FunctionalModel(
        initial_weights=((weights, biases), ()), predict_on_batch_fn=predict, loss_fn=loss, input_spec=spec
    )


def _losses(shape: Glm, z: Any, targets: Any) -> Any:
    """``Glm.losses`` of predictors [n, outputs] in TensorFlow, whose gradient is mean minus target."""
    if shape.family is Family.MULTINOMIAL:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(tf.cast(targets, tf.int32), z)
    z = z[:, 0]
    if shape.family is Family.LOGISTIC:
        return tf.nn.sigmoid_cross_entropy_with_logits(targets, z)
    if shape.family is Family.POISSON:
        # The limit is one of the mean: the gradient goes through it.
        z += tf.stop_gradient(tf.clip_by_value(z, -POISSON_LIMIT, POISSON_LIMIT) - z)
        return tf.exp(z) - targets * z
    return tf.square(z - targets) / 2


class _Client(tff.learning.optimizers.Optimizer):
    """Gradient descent with a proximal term: the pull to the weights of the first step, which its state keeps."""

    def __init__(self, rate: float, proximal: float) -> None:
        self._rate, self._proximal = rate, proximal

    def initialize(self, specs: Any) -> Any:
        starts = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), specs)
        return collections.OrderedDict(first=tf.constant(1.0), starts=starts)

    def next(self, state: Any, weights: Any, gradients: Any) -> tuple[Any, Any]:
        first, starts = state["first"], []
        moved = []
        for weight, slope, start in zip(*map(tf.nest.flatten, (weights, gradients, state["starts"])), strict=True):
            starts.append(tf.where(first > 0, weight, start))
            moved.append(weight - self._rate * (slope + self._proximal * (weight - starts[-1])))
        packed_starts = tf.nest.pack_sequence_as(weights, starts)
        return (
            collections.OrderedDict(first=tf.zeros_like(first), starts=packed_starts),
            tf.nest.pack_sequence_as(weights, moved),
        )


class _Server(tff.learning.optimizers.Optimizer):
    """``odp.algorithms.dense.optimizers.ServerOptimizer``, whose moments have no corrections of their bias."""

    def __init__(self, numbers: ServerOptimizer) -> None:
        self._numbers = numbers

    def initialize(self, specs: Any) -> Any:
        slots = range(self._numbers.slots)
        starts = [0.0, self._numbers.adaptivity**2]
        return collections.OrderedDict(
            (f"moments{slot}", tf.nest.map_structure(lambda s, slot=slot: tf.fill(s.shape, starts[slot]), specs))
            for slot in slots
        )

    def next(self, state: Any, weights: Any, gradients: Any) -> tuple[Any, Any]:
        numbers = self._numbers
        moments = [tf.nest.flatten(part) for part in state.values()]
        slopes, moved = tf.nest.flatten(gradients), []
        moments_by_slot: list[list[Any]] = [[] for _ in moments]
        for place, weight in enumerate(tf.nest.flatten(weights)):
            new, move = self._step([part[place] for part in moments], -slopes[place])
            moved.append(weight + numbers.rate * move)
            for slot, moment in enumerate(new):
                moments_by_slot[slot].append(moment)
        packed = [tf.nest.pack_sequence_as(weights, part) for part in moments_by_slot]
        return collections.OrderedDict(zip(state, packed, strict=True)), tf.nest.pack_sequence_as(weights, moved)

    def _step(self, moments: list[Any], mean: Any) -> tuple[list[Any], Any]:
        numbers = self._numbers
        if numbers.kind is OptimizerKind.SGD:
            moved = numbers.momentum * moments[0] + mean
            return [moved], moved
        first = numbers.momentum * moments[0] + (1.0 - numbers.momentum) * mean
        squares, past = tf.square(mean), moments[1]
        if numbers.kind is OptimizerKind.YOGI:
            second = past - (1.0 - numbers.second_moment) * squares * tf.sign(past - squares)
        else:
            second = numbers.second_moment * past + (1.0 - numbers.second_moment) * squares
        return [first, second], first / (tf.sqrt(second) + numbers.adaptivity)


def _terms(task: Task, *, noise: bool) -> Terms:
    terms = carried_terms(task, noise=noise)
    if _source(task) is None:
        _shape(terms)
    return terms


def _source(task: Task) -> ModelFromTff | None:
    if not isinstance(task.model, ModelFromTff):
        return None
    if task.model.loss_fn is None and isinstance(task.model.source.initial_weights[0], Mapping):
        raise ConfigurationError("Expected a FunctionalModel with its weights in a sequence (got weights by name)")
    return task.model


def _shape(terms: Terms) -> Glm:
    return _model(terms).shape


def _model(terms: Terms) -> TrainedGlm:
    if not isinstance(terms.model, TrainedGlm):
        raise ConfigurationError(
            "Expected a task that trains an odp.Glm, or a model of odp.research.interop.tff.from_tff"
        )
    return terms.model
