"""The closed table of algorithms: from the training of a task definition to its object, imported when asked for."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Any, cast

from odp.algorithms.capabilities import CountsUsable, Inquiry, Recommender, Starting
from odp.algorithms.seam import Algorithm
from odp.errors import ConfigurationError
from odp.v1 import common_pb2


@dataclass(frozen=True)
class Entry:
    """One algorithm: its package (its module ``algorithm`` has the class ``TaskAlgorithm``), and what developers write.

    ``training`` is a class of the package's module ``config``, for an ``odp.Task``; ``question`` one of its module
    ``task``, a task of its own; ``task`` one of its module ``config``, a task without rounds. At most one of them is
    there. ``shared`` names modules that ``_FEDERATED`` has in its place.
    Of a ``local`` one, devices report to the server alone: no enclave has its code.
    """

    package: str
    training: str = ""
    question: str = ""
    task: str = ""
    shared: tuple[str, ...] = ()
    local: bool = False


#: What federated trainings have in common.
_FEDERATED = "odp.algorithms.federated"
_MEASURING = ("experiment",)


#: Every algorithm by its training. The first one is what an ``odp.Task`` is trained by unless it says otherwise.
TABLE: Mapping[str, Entry] = MappingProxyType(
    {
        "dpam": Entry("odp.algorithms.dpam", training="DPAM"),
        "implicit_dpam": Entry("odp.algorithms.implicit", training="ImplicitDPAM"),
        "fedavg": Entry("odp.algorithms.fedavg", training="DPFedAvg", shared=("algorithm", *_MEASURING)),
        "dpsgd": Entry("odp.algorithms.dpsgd", training="DPSGD", shared=("algorithm", *_MEASURING)),
        "dpftrl": Entry("odp.algorithms.dpftrl", training="DPFTRL", shared=_MEASURING),
        # What "dpsgd" becomes where the model is a matrix factorization.
        "item_gradients": Entry("odp.algorithms.item_gradients"),
        "implicit_gradients": Entry("odp.algorithms.implicit_gradients"),
        "private_fl": Entry("odp.algorithms.private_fl", training="PrivateFL", shared=_MEASURING),
        "quantiles": Entry("odp.algorithms.quantiles", question="Quantiles"),
        "model_evaluation": Entry("odp.algorithms.model_evaluation", question="Evaluation"),
        "heavy_hitters": Entry("odp.algorithms.heavy_hitters", question="HeavyHitters"),
        "statistics": Entry("odp.algorithms.statistics", question="Statistics"),
        # A question that is made with a training, and not written by itself.
        "usable_count": Entry("odp.algorithms.usable_count"),
        # Questions above under another trust.
        "local_statistics": Entry("odp.algorithms.local_statistics", local=True),
        "local_heavy_hitters": Entry("odp.algorithms.local_heavy_hitters", local=True),
        "draw_and_discard": Entry("odp.algorithms.draw_and_discard", task="DrawAndDiscard", local=True),
        "shuffled_statistics": Entry("odp.algorithms.shuffled_statistics"),
    }
)


_OF_IMPLICIT = {"dpam": "implicit_dpam", "item_gradients": "implicit_gradients"}


def is_here(module: str) -> bool:
    """Whether this process could import a module: an enclave has no code that only other parties run."""
    return importlib.util.find_spec(module) is not None


def part_of(training: str, module: str) -> ModuleType:
    """A module of an algorithm."""
    entry = TABLE[training]
    return importlib.import_module(f"{_FEDERATED if module in entry.shared else entry.package}.{module}")


def training_of(definition: common_pb2.TaskDefinition) -> str | None:
    """The name of a definition's training in ``TABLE``; another name, or None, where there is no such algorithm.

    Signed definitions write ``implicit_dpam`` as ``dpam`` over implicit data, and ``implicit_gradients`` likewise. This
    is the one place that knows it.
    """
    training: str | None = definition.WhichOneof("training")
    implicit = definition.WhichOneof("local_data") == "implicit"
    return _OF_IMPLICIT.get(training, training) if training and implicit else training


def algorithm_for(definition: common_pb2.TaskDefinition) -> Algorithm:
    """The algorithm of a task.

    Raises:
      ConfigurationError: the training is missing, or of an algorithm that this version does not know, or that an
        enclave has no code of.
    """
    training = training_of(definition)
    if training is None or training not in TABLE:
        raise ConfigurationError(
            f"Expected training={training!r} of task {definition.name!r} to be one of {', '.join(TABLE)}"
        )
    entry = TABLE[training]
    if entry.local and not is_here(entry.package):
        raise ConfigurationError(
            f"Expected a task with rounds: devices of task {definition.name!r} report to its server alone"
        )
    algorithm: Algorithm = part_of(training, "algorithm").TaskAlgorithm(definition)
    return algorithm


def _capable(definition: common_pb2.TaskDefinition, kind: type[object], otherwise: str) -> Algorithm:
    """The algorithm of a task, of this kind. Raises ConfigurationError: the task does ``otherwise``."""
    algorithm = algorithm_for(definition)
    if not isinstance(algorithm, kind):
        raise ConfigurationError(f"task {definition.name!r} {otherwise.format(training_of(definition))}")
    return algorithm


def recommender_for(definition: common_pb2.TaskDefinition) -> Recommender:
    """The algorithm of a task whose model scores items.

    Raises:
      ConfigurationError: as ``algorithm_for``, or the task has no such model.
    """
    return cast(Recommender, _capable(definition, Recommender, "asks for {}: it has no model to predict with"))


def starting_for(definition: common_pb2.TaskDefinition) -> Starting:
    """The algorithm of a task whose items can begin other models.

    Raises:
      ConfigurationError: as ``algorithm_for``, or they cannot.
    """
    return cast(
        Starting, _capable(definition, Starting, "asks for {}: only items of a factorized model can begin other models")
    )


def usable_question(**fields: Any) -> Any:
    """The question that counts usable rows: of name, population, privacy, cohort and the definition of a training.

    Raises:
      ConfigurationError, PrivacyError: as ``odp.algorithms.choices.Question``.
    """
    return part_of("usable_count", "task").UsableQuestion(**fields)


def is_count(definition: common_pb2.TaskDefinition) -> bool:
    """Whether a task counts usable rows. Raises ConfigurationError as ``algorithm_for``."""
    return isinstance(algorithm_for(definition), CountsUsable)


def counting_for(definition: common_pb2.TaskDefinition) -> CountsUsable:
    """The algorithm of a task that counts usable rows.

    Raises:
      ConfigurationError: as ``algorithm_for``, or the task does something else.
    """
    return cast(CountsUsable, _capable(definition, CountsUsable, "counts no usable rows: it asks for {}"))


def inquiry_for(definition: common_pb2.TaskDefinition) -> Inquiry:
    """The algorithm of a task that asks a question.

    Raises:
      ConfigurationError: as ``algorithm_for``, or the task trains a model.
    """
    return cast(Inquiry, _capable(definition, Inquiry, "trains a model; it has no results to show"))
