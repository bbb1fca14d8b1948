"""What federated training asks of a model: the seam that each kind of model fulfils, and the closed table of kinds."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from odp.errors import ConfigurationError
from odp.numerics.arrays import Float32Array, Float64Array

if TYPE_CHECKING:
    from odp.datasets.examples import UsersExamples
    from odp.models.computing_cost import Product
    from odp.models.examples import ExamplesTerms
    from odp.models.left_out import Tested
    from odp.models.local_training import LocalTraining
    from odp.v1 import common_pb2


class TestedModel(Protocol):
    """A model whose parameters are one vector, float32 [size], and that devices can test on examples.

    Examples are rows of numbers, float32 [n, width]: the features of the task side by side, clamped and scaled, or the
    numbers of categories and tokens (``ExamplesTerms.matrix``). Targets are float32 [n]; classes are whole numbers.

    What has a body here is of a model without a program that ranks no items.
    """

    @property
    def size(self) -> int:
        """Number of parameters that devices train together."""

    @property
    def classes_range(self) -> tuple[float, float] | None:
        """(first, last) of targets that are classes; None where they are numbers."""

    def reading(self, examples: ExamplesTerms) -> TestedModel:
        """The model as it reads examples of these features.

        Raises:
          ConfigurationError: it does not read such examples.
        """

    def check_training(self, training: LocalTraining) -> None:
        """Raises ConfigurationError where devices cannot train the model so."""
        return

    def takes(self, targets: Float32Array) -> npt.NDArray[np.bool_]:
        """Of targets [n], those that the model knows: its classes, or numbers of its law; bool [n]."""

    def usable(self, features: npt.NDArray[np.generic], targets: Float32Array) -> npt.NDArray[np.bool_]:
        """Of examples, those of finite features and a target that the model knows, bool [n]."""

    @property
    def ranked_items(self) -> int:
        """Items that the model ranks for a person, whose number is the last feature of an example; 0 for none."""
        return 0

    @property
    def tested_alone(self) -> bool:
        """Whether the last bits of a result may depend on the examples beside it: then users are tested one by one."""
        return False

    def check_testing(self) -> None:
        """Raises ConfigurationError where the model says nothing of an example that a metric could be made of."""
        return

    @property
    def start_seconds(self) -> float:
        """What one test takes before its first example, on a device of the reference speed."""

    @property
    def program_bytes(self) -> float:
        """Memory of the process that runs the model's program, whatever that computes; 0 where it has none."""
        return 0.0

    def testing_seconds(self, *, ranked: bool) -> float:
        """What a test takes for each of its examples."""

    def tested(self, vector: Float32Array, features: Float32Array, targets: Float32Array, *, ranked: bool) -> Tested:
        """The model on one device's examples, as ``difference``.

        With ``ranked``, the places of their items among all of ``ranked_items`` but the other ones of the examples.
        """

    def tested_here(
        self, vector: Float32Array, features: Float32Array, targets: Float32Array, *, ranked: bool
    ) -> Tested:
        """``tested`` in a simulation, as ``differences``."""
        return self.tested(vector, features, targets, ranked=ranked)

    def on_device(self, trainer: Any, training: LocalTraining) -> TestedModel:
        """The model as a device runs it.

        ``trainer`` runs programs (``odp.models.litert.trainer.ProgramTrainer``); None where the device runs none.

        Raises:
          ConfigurationError: the device cannot run it, whatever it holds.
        """
        return self


class TrainedModel(TestedModel, Protocol):
    """A model that devices can train, too."""

    def reading(self, examples: ExamplesTerms) -> TrainedModel:
        """The model as it reads examples of these features.

        Raises:
          ConfigurationError: it does not read such examples.
        """

    def training_cost(self, training: LocalTraining) -> tuple[Product, ...]:
        """What one device's training takes, by ``LocalTraining.caps``."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of what ``measures`` gives besides the loss."""
        return ()

    def on_device(self, trainer: Any, training: LocalTraining) -> TrainedModel:
        """The model as a device trains it.

        ``trainer`` runs programs (``odp.models.litert.trainer.ProgramTrainer``); None where the device runs none.

        Raises:
          ConfigurationError: the device cannot train it, whatever it holds.
        """
        return self

    def trained_by(self, engine: Any) -> TrainedModel:
        """The model as a simulation trains it, whose program, if it has one, is trained by ``engine``.

        ``engine`` is an ``odp.models.litert.trainer.Engine``.
        """
        return self

    def public_matrix_from(self, data: bytes) -> Float32Array | None:
        """The public matrix float32 [rows, columns] that the definition names by its hash, from its bytes, or None.

        Raises:
          ConfigurationError: ``data`` is not the matrix, or there is none.
        """

    def start(self, matrix: Float32Array | None = None) -> Float32Array:
        """The parameters before the first round, float32 [size]: a function of the task definition alone.

        ``matrix`` is the public matrix that the definition names by its hash, where it names one.

        Raises:
          ConfigurationError: it is missing, or not expected.
        """

    def difference(
        self,
        start: Float32Array,
        features: Float32Array,
        targets: Float32Array,
        training: LocalTraining,
        *,
        seed: int,
        round: int,
    ) -> Float32Array:
        """What one device's training moves the parameters by, float32 [size]; zeros where it is not finite.

        Examples are usable ones. Without examples, zeros.
        """

    def differences(
        self,
        start: Float32Array,
        examples: UsersExamples,
        training: LocalTraining,
        *,
        seeds: npt.NDArray[np.uint64],
        round: int,
        users: slice,
        out: Float32Array,
    ) -> Float32Array:
        """``difference`` of consecutive users, float32 [users, size], written to ``out``; up to float32 rounding."""

    def losses(self, vector: Float32Array, features: Float32Array, targets: Float32Array) -> Float64Array:
        """The loss of each example, float64 [n]."""

    def measures(self, vector: Float32Array, features: Float32Array, targets: Float32Array) -> dict[str, Float64Array]:
        """``loss`` and each of ``metrics`` of each example, float64 [n]."""

    def classes(self, vector: Float32Array, features: Float32Array) -> Float32Array:
        """The likeliest class of each example, float32 [n]; of a model of classes alone."""


@runtime_checkable
class PartlyLocalModel(TrainedModel, Protocol):
    """A model some of whose parameters stay on devices, which find them anew in every round."""

    def reconstructed(
        self,
        start: Float32Array,
        features: Float32Array,
        targets: Float32Array,
        training: LocalTraining,
        *,
        seed: int,
        round: int,
    ) -> Float32Array:
        """Shared parameters ``start`` [size] and those of a person with these examples: what ``measures`` takes."""


@dataclass(frozen=True)
class _Kind:
    """Modules and classes of what a developer writes, and of what parties train; the latter has ``of(message)``.

    ``program`` says whether devices run a program of the developer for it, ``trains`` whether they can train it.
    """

    written: tuple[tuple[str, str], ...]
    trained: tuple[str, str]
    program: bool = True
    trains: bool = True


#: By the model's field of a task definition.
_KINDS: Mapping[str, _Kind] = MappingProxyType(
    {
        "glm": _Kind((("odp.models.glm.shape", "Glm"),), ("odp.models.glm.trained", "TrainedGlm"), program=False),
        "network": _Kind(
            (
                ("odp.models.litert.keras_model", "KerasModel"),
                ("odp.models.litert.compiled_model", "CompiledModel"),
            ),
            ("odp.models.litert.trained", "TrainedNetwork"),
        ),
        "two_tower": _Kind(
            (("odp.models.litert.two_tower", "TwoTower"),), ("odp.models.litert.trained_towers", "TrainedTowers")
        ),
        "rated_items": _Kind(
            (("odp.models.rated_items", "RatedItems"),),
            ("odp.models.rated_items", "RatedItems"),
            program=False,
            trains=False,
        ),
    }
)


def trained_models() -> tuple[type, ...]:
    """The classes that a developer can write as the model of a federated training."""
    return tuple(_imported(place) for kind in _KINDS.values() if kind.trains for place in kind.written)


def tested_models() -> tuple[type, ...]:
    """Those that a developer can write as the model of an evaluation."""
    return tuple(_imported(place) for kind in _KINDS.values() for place in kind.written)


def load_kinds() -> None:
    """Imports what parties train, of every kind: for programs that can open no file later."""
    for kind in _KINDS.values():
        _imported(kind.trained)


def has_program(definition: common_pb2.TaskDefinition) -> bool:
    """Whether devices run a program of the developer for a task: known without opening the program."""
    kind = definition.WhichOneof("trained_model")
    return kind in _KINDS and _KINDS[kind].program


def model_of(definition: common_pb2.TaskDefinition) -> TrainedModel:
    """The model of a task definition, to be trained.

    Raises:
      ConfigurationError: it has none that can be, or a number of it is out of range.
    """
    return cast("TrainedModel", _model(definition, [name for name, kind in _KINDS.items() if kind.trains]))


def tested_model_of(definition: common_pb2.TaskDefinition) -> TestedModel:
    """The model of a task definition, to be tested.

    Raises:
      ConfigurationError: it has none, or a number of it is out of range.
    """
    return cast("TestedModel", _model(definition, list(_KINDS)))


def _model(definition: common_pb2.TaskDefinition, kinds: list[str]) -> Any:
    kind = definition.WhichOneof("trained_model")
    if definition.HasField("model") or kind not in kinds:
        raise ConfigurationError(f"Expected task {definition.name!r} to have a model of {', '.join(kinds)}")
    return _imported(_KINDS[kind].trained).of(getattr(definition, kind))


def _imported(place: tuple[str, str]) -> Any:
    module, name = place
    return getattr(importlib.import_module(module), name)
