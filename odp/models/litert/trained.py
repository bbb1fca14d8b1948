"""A compiled network as federated training sees it.

The program is the developer's. So this module runs nothing of it where it might be a stranger's: ``difference`` needs a
trainer, which a device's runtime gives (``on_device``), and what a developer computes of a program of their own, in a
simulation, is in ``odp.models.litert.population``.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import zlib
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from odp.errors import ConfigurationError, StateError
from odp.models.computing_cost import DRAW_SECONDS, SORTED_SECONDS, Product
from odp.models.features import Tensor
from odp.models.left_out import Tested
from odp.models.litert.program import LOGITS, Program, inputs_of, targets_of
from odp.models.litert.trainer import MOST_MEMORY, Engine, Measured, ProgramTrainer, local_steps, memory_needed
from odp.models.local_training import LocalTraining
from odp.models.trained import TrainedModel
from odp.numerics.arrays import Float32Array, Float64Array
from odp.v1 import federated_pb2

if TYPE_CHECKING:
    from odp.datasets.examples import UsersExamples
    from odp.models.examples import ExamplesTerms
    from odp.models.features import Feature
    from odp.models.litert.population import OwnProgram
    from odp.models.litert.program import TensorSpec

#: Of a program in a task definition, which is small itself: compressed, and as a flatbuffer.
MOST_COMPRESSED, MOST_FLATBUFFER = 48 * 2**10, 4 * 2**20
# Costs, as of ``odp.models.computing_cost``: of an isolated process; of a parameter on its way there and back, and in
# one step; of a step; of a multiplication; and of a class of an example that is tested.
_PROCESS_SECONDS, _SENT_SECONDS, _PASS_SECONDS, _STEP_SECONDS = 0.1, 5e-8, 3e-9, 1e-4
_PRODUCT_SECONDS, _CLASS_SECONDS = 3e-10, 2e-7
# Gradients take twice what predictions take.
_TRAINING = 3


def network_message(
    program: Program, start: Float32Array | None, local_start: Float32Array | None = None, *, operations: int = 0
) -> federated_pb2.NetworkModel:
    """The message of a task definition.

    Args:
      program: what devices run.
      start: float32 [shared_size], the first parameters; None stands for zeros.
      local_start: float32 [size - shared_size], those of local layers; None stands for zeros.
      operations: multiplications of a prediction; 0 stands for one per parameter.

    Raises:
      ConfigurationError: the program is too large for a definition, as one with large constants is.
    """
    compressed, local = zlib.compress(program.flatbuffer, 9), b""
    if program.has_local:
        first = np.zeros(program.size - program.shared_size) if local_start is None else local_start
        local = zlib.compress(first.astype("<f4").tobytes(), 9)
    if len(compressed) + len(local) > MOST_COMPRESSED or len(program.flatbuffer) > MOST_FLATBUFFER:
        raise ConfigurationError(
            f"Expected a network whose program has at most {MOST_COMPRESSED} bytes compressed and {MOST_FLATBUFFER} as "
            f"it is (got {len(compressed) + len(local)} and {len(program.flatbuffer)}): layers that are not "
            "trained are its constants, unrolled layers repeat, and what local layers start with counts"
        )
    return federated_pb2.NetworkModel(
        description=program.to_json(),
        program=compressed,
        program_sha256=hashlib.sha256(program.flatbuffer).digest(),
        start_sha256=b"" if start is None else hashlib.sha256(start.astype("<f4").tobytes()).digest(),
        local_start=local,
        operations=operations,
    )


def _reads(spec: TensorSpec, feature: Feature) -> bool:
    """Whether an input has the shape of a feature; one number is as good as a single one in a row."""
    return spec.shape == tuple(feature.shape) or (not isinstance(feature, Tensor) and spec.size == feature.size == 1)


class TrainedNetwork(TrainedModel):
    """``odp.models.trained.TrainedModel`` of one program.

    Args:
      program: what devices run.
      start_sha256: of the first parameters; empty where they are zeros.
      local_start: float32 [size - shared_size], what local parameters start with; None without any.
      operations: multiplications of a prediction, as the definition says; 0 for one per parameter.
      trainer: runs the program where this is a device.
    """

    def __init__(
        self,
        program: Program,
        start_sha256: bytes,
        *,
        local_start: Float32Array | None = None,
        operations: int = 0,
        trainer: ProgramTrainer | None = None,
    ) -> None:
        self.program = program
        self._operations = operations
        self._start_sha256 = start_sha256
        self._local_start = np.zeros(0, dtype=np.float32) if local_start is None else local_start
        self._trainer = trainer
        self._engine: Engine | None = None

    @classmethod
    def of(cls, message: federated_pb2.NetworkModel) -> Self:
        """The model of a definition.

        Raises:
          ConfigurationError: it is malformed or too large, or a hash is not that of the program.
        """
        if len(message.start_sha256) not in (0, hashlib.sha256().digest_size):
            raise ConfigurationError("Expected start_sha256 of the network to be a SHA-256, or empty")
        program = _program(message.description, message.program, message.program_sha256)
        return cls(
            program, message.start_sha256, local_start=_local_start(program, message.local_start),
            operations=message.operations,
        )  # fmt: skip

    @property
    def size(self) -> int:
        """Number of parameters that devices train together: those of local layers do not count."""
        return self.program.shared_size

    @property
    def classes_range(self) -> tuple[float, float] | None:
        """(first, last) of targets that are classes; None where they are numbers."""
        return (0.0, self.program.classes - 1.0) if self.program.classes else None

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the developer's own metrics."""
        return tuple(name for name in self.program.metrics if name != "accuracy")

    def reading(self, examples: ExamplesTerms) -> Self:
        """This model: it reads the numbers of examples.

        Raises:
          ConfigurationError: examples have not a feature per input, nor has one input all their numbers; or the input
            of a category or text is not of whole numbers.
        """
        inputs, features = self.program.features, examples.features
        wanted, shapes = [spec.shape for spec in inputs], [tuple(feature.shape) for feature in features.values()]
        one_input = wanted == [(examples.width,)]
        each = len(inputs) == len(features) and all(map(_reads, inputs, features.values()))
        if not each and not one_input:
            raise ConfigurationError(
                f"Expected features of the shapes {', '.join(map(str, wanted))}, as the network has inputs "
                f"(got {', '.join(map(str, shapes))})"
            )
        for place, (name, feature) in enumerate(features.items()):
            if not isinstance(feature, Tensor) and inputs[place if each else 0].dtype != "int32":
                raise ConfigurationError(
                    f"Expected the network's input of feature {name!r} to be of whole numbers, such as "
                    "keras.Input(.., dtype='int32'): it gets the numbers of categories or tokens"
                )
        return self

    def check_training(self, training: LocalTraining) -> None:
        """Raises ConfigurationError where the program has smaller batches or no proximal term, or devices no memory."""
        if training.reconstruction is not None and not self.program.has_local:
            raise ConfigurationError(
                "Expected reconstruction=None, or an odp.KerasModel with local layers: local=[..] names them"
            )
        if training.reconstruction is None and self.program.has_local:
            raise ConfigurationError(
                "Expected reconstruction=odp.Reconstruction(..) with a network that has local layers; odp.DPFedAvg and "
                "odp.DPFTRL have it"
            )
        if training.batch > self.program.batch:
            raise ConfigurationError(
                f"Expected batch={training.batch} to be at most batch={self.program.batch} of the odp.KerasModel"
            )
        if training.proximal and not self.program.proximal:
            raise ConfigurationError(
                f"Expected proximal={training.proximal} to be 0, or an odp.KerasModel with proximal=True"
            )
        needed = memory_needed(self.program, most_examples=training.most_read)
        if needed > MOST_MEMORY:
            raise ConfigurationError(
                f"Expected a network that devices train in {MOST_MEMORY} bytes (this one may need {needed}): it has "
                f"{self.program.size} parameters, and epochs={training.epochs} of "
                f"most_examples={training.most_examples} have {training.most_read} examples"
            )

    def training_cost(self, training: LocalTraining) -> tuple[Product, ...]:
        """Steps of the whole batch of the program, whatever part of it holds examples; and the start of a process."""
        step = _STEP_SECONDS + _PASS_SECONDS * self.program.size + _TRAINING * self._batch_seconds
        example = self.examples_per_row * DRAW_SECONDS + step / training.batch
        products = [Product(self.start_seconds), Product(example, "epochs", "most_examples"), Product(step, "epochs")]
        if training.reconstruction is not None:
            products.append(Product(example, "reconstruction.epochs", "most_examples"))
            products.append(Product(step, "reconstruction.epochs"))
        return tuple(products)

    @property
    def start_seconds(self) -> float:
        """A process of its own, and the parameters on their way there and back."""
        return _PROCESS_SECONDS + _SENT_SECONDS * self.program.size

    @property
    def program_bytes(self) -> float:
        return float(MOST_MEMORY)

    def testing_seconds(self, *, ranked: bool) -> float:
        """Loss and predictions; or with ``ranked``, the scores of all items, which each example may need of its own."""
        batch = _STEP_SECONDS + self._batch_seconds
        if ranked:
            return (batch / self.program.batch + SORTED_SECONDS) * self.ranked_items
        return 2 * batch / self.program.batch + _CLASS_SECONDS * max(1, self.program.classes)

    @property
    def examples_per_row(self) -> int:
        """Examples that a device makes of one of its rows."""
        return 1

    @property
    def _batch_seconds(self) -> float:
        """Of one prediction of a whole batch."""
        return _PRODUCT_SECONDS * self.program.batch * max(self._operations, self.program.size)

    def on_device(self, trainer: ProgramTrainer | None, training: LocalTraining) -> TrainedNetwork:
        """This model where ``difference`` is computed by ``trainer``.

        Raises:
          ConfigurationError: there is no trainer, or it cannot run the program.
        """
        if trainer is None:
            raise ConfigurationError("this device trains no networks: it was started without a trainer")
        trainer.require(self.program, most_examples=training.most_read)
        return TrainedNetwork(
            self.program, self._start_sha256, local_start=self._local_start, operations=self._operations,
            trainer=trainer,
        )  # fmt: skip

    def trained_by(self, engine: Engine) -> Self:
        """This model where ``differences`` are computed by ``engine``: for a program of one's own."""
        model = copy.copy(self)
        model._engine = engine
        model.__dict__.pop("_own_program", None)
        return model

    def start(self, matrix: Float32Array | None = None) -> Float32Array:
        """``matrix`` [size, 1], the public matrix of the definition, as a vector; zeros where it names none.

        Raises:
          ConfigurationError: it is missing, not expected, or of another shape.
        """
        if matrix is None and not self._start_sha256:
            return np.zeros(self.size, dtype=np.float32)
        if matrix is None or matrix.shape != (self.size, 1):
            raise ConfigurationError(f"Expected the {self.size} first parameters of the network")
        return matrix[:, 0].astype(np.float32)

    def public_matrix_from(self, data: bytes) -> Float32Array | None:
        """The first parameters from their bytes, read-only float32 [size, 1]; None where they are zeros.

        Raises:
          ConfigurationError: it is not the one that the definition names, or a number is not finite.
        """
        if not data and not self._start_sha256:
            return None
        if len(data) != 4 * self.size:
            raise ConfigurationError(f"Expected first parameters of {4 * self.size} bytes (got {len(data)})")
        if hashlib.sha256(data).digest() != self._start_sha256:
            raise ConfigurationError("Expected first parameters of the SHA-256 that the task definition names")
        matrix = np.frombuffer(data, dtype="<f4").astype(np.float32)[:, None]
        if not np.isfinite(matrix).all():
            raise ConfigurationError("Expected first parameters that are finite")
        matrix.flags.writeable = False
        return matrix

    def takes(self, targets: Float32Array) -> npt.NDArray[np.bool_]:
        """Of targets [n], those that are a class or a finite number, bool [n]."""
        taken = np.isfinite(targets)
        if self.program.classes:
            taken &= (targets >= 0) & (targets < self.program.classes) & (targets == np.floor(targets))
        return taken

    def usable(self, features: npt.NDArray[np.generic], targets: Float32Array) -> npt.NDArray[np.bool_]:
        """Of examples, those of finite features and a target that is a class or a finite number, bool [n]."""
        taken = self.takes(targets)
        return taken & np.isfinite(features).all(axis=1) if features.dtype.kind == "f" else taken

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

        Raises:
          StateError: this is no device.
        """
        if not (batches := list(training.batches(len(targets), seed=seed, round=round))):
            return np.zeros(self.size, dtype=np.float32)
        if self._trainer is None:
            raise StateError("Expected a trainer of programs, as a device's runtime has")
        return self._trainer.difference(
            self.program, self.whole(start), inputs_of(self.program, features), targets_of(self.program, targets),
            batches, rate=training.rate, proximal=training.proximal,
            local=local_steps(training, len(targets), seed=seed, round=round),
        )  # fmt: skip

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
        """``difference`` of consecutive users, computed in this process: for a program of one's own."""
        return self._program_in_process().differences(
            self.whole(start), examples, training, seeds=seeds, round=round, users=users, out=out
        )

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
        """``start`` and the local parameters that a person with these examples has, computed in this process.

        Returns:
          float32 [all parameters], which ``measures`` and ``classes`` take.
        """
        return self._program_in_process().reconstructed(
            self.whole(start), features, targets, training, seed=seed, round=round
        )

    def losses(self, vector: Float32Array, features: Float32Array, targets: Float32Array) -> Float64Array:
        """The loss of each example, float64 [n], computed in this process: for a program of one's own."""
        return self.measures(vector, features, targets)["loss"]

    def measures(self, vector: Float32Array, features: Float32Array, targets: Float32Array) -> dict[str, Float64Array]:
        """Loss and metrics of each example by name, float64 [n], computed in this process."""
        return self._program_in_process().measures(self.whole(vector), features, targets)

    def classes(self, vector: Float32Array, features: Float32Array) -> Float32Array:
        """The likeliest class of each example, float32 [n], computed in this process: for a program of one's own."""
        predictions = self._program_in_process().predictions(self.whole(vector), features)
        if predictions[0:1].size <= 1:
            return np.asarray(predictions.reshape(-1) > self.program.threshold, dtype=np.float32)
        return np.asarray(predictions.argmax(axis=-1), dtype=np.float32)

    @property
    def tested_alone(self) -> bool:
        """Yes: LiteRT runs batches."""
        return True

    def check_testing(self) -> None:
        """Raises ConfigurationError where the program predicts several things of an example, or one class alone."""
        program = self.program
        if program.has_local:
            raise ConfigurationError(
                "Expected a network without layers that stay on the device: an evaluation would not find them"
            )
        if program.classes and (program.classes < 2 or program.prediction.size not in class_outputs(program.classes)):
            raise ConfigurationError(
                f"Expected a network that predicts one of classes={program.classes} classes for an example (got "
                f"{program.prediction.size} numbers)"
            )

    def tested(self, vector: Float32Array, features: Float32Array, targets: Float32Array, *, ranked: bool) -> Tested:
        """What the trainer finds. May raise anything that it does; StateError where this is no device."""
        if self._trainer is None:
            raise StateError("Expected a trainer of programs, as a device's runtime has")
        inputs, wanted = inputs_of(self.program, features), targets_of(self.program, targets)
        items = self.ranked_items if ranked else 0
        return self._tested(self._trainer.measured(self.program, vector, inputs, wanted, items=items), ranked=ranked)

    def tested_here(
        self, vector: Float32Array, features: Float32Array, targets: Float32Array, *, ranked: bool
    ) -> Tested:
        """``tested``, computed in this process: for a program of one's own."""
        items = self.ranked_items if ranked else 0
        return self._tested(self._program_in_process().measured(vector, features, targets, items=items), ranked=ranked)

    def _tested(self, measured: Measured, *, ranked: bool) -> Tested:
        losses = measured.losses.astype(np.float64)
        if ranked:
            return Tested(losses, places=measured.places)
        return Tested(losses, probabilities(self.program, measured.predictions) if self.program.classes else None)

    def whole(self, vector: Float32Array) -> Float32Array:
        """Shared parameters with the start of the local ones, float32 [all]; a vector of all stays as it is."""
        return vector if len(vector) == self.program.size else np.concatenate([vector, self._local_start])

    def _program_in_process(self) -> OwnProgram:
        """The program in this process. Raises StateError on a device, where it is a stranger's."""
        if self._trainer is not None:
            raise StateError("Expected no program to run in the process of a device's runtime")
        return self._own_program

    @functools.cached_property
    def _own_program(self) -> OwnProgram:
        from odp.models.litert.population import OwnProgram

        return OwnProgram(self.program, engine=self._engine)


def class_outputs(classes: int) -> tuple[int, ...]:
    """Numbers that a prediction of classes may have: of two, one is enough."""
    return (1, 2) if classes == 2 else (classes,)


def probabilities(program: Program, predictions: Float32Array) -> Float64Array:
    """Of each class, float64 [n, classes]; predictions are logits where the threshold is 0, else probabilities."""
    outputs = predictions.reshape(len(predictions), program.prediction.size).astype(np.float64)
    with np.errstate(all="ignore"):
        if program.prediction.size == 1:
            second = 1.0 / (1.0 + np.exp(-outputs)) if program.threshold == LOGITS else outputs
            return np.concatenate((1.0 - second, second), axis=1)
        if program.threshold != LOGITS:
            return outputs
        powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))


@functools.lru_cache(maxsize=8)
def _program(description: str, compressed: bytes, sha256: bytes) -> Program:
    """The program of a definition, which parties read many times."""
    if len(compressed) > MOST_COMPRESSED:
        raise ConfigurationError(f"Expected a program of at most {MOST_COMPRESSED} bytes (got {len(compressed)})")
    reader = zlib.decompressobj()
    try:
        flatbuffer = reader.decompress(compressed, MOST_FLATBUFFER)
    except zlib.error:
        raise ConfigurationError("Expected the program of the network to be compressed by zlib") from None
    if not reader.eof or reader.unused_data:
        raise ConfigurationError(f"Expected the program of the network to have at most {MOST_FLATBUFFER} bytes")
    if hashlib.sha256(flatbuffer).digest() != sha256:
        raise ConfigurationError("Expected the program of the network to have the SHA-256 that stands beside it")
    program = Program.from_json(description, flatbuffer)
    if program.target.size != 1:
        raise ConfigurationError(
            f"Expected a network whose target is one number or class (got {program.target.size} numbers)"
        )
    return program


def _local_start(program: Program, compressed: bytes) -> Float32Array:
    """What the local parameters of a definition start with, float32 [size - shared_size], read-only."""
    if not program.has_local:
        if compressed:
            raise ConfigurationError("Expected no local_start of a network without local parameters")
        return np.zeros(0, dtype=np.float32)
    size = 4 * (program.size - program.shared_size)
    reader = zlib.decompressobj()
    try:
        data = reader.decompress(compressed[: MOST_COMPRESSED + 1], size + 1)
    except zlib.error:
        data = b""
    if len(data) != size or not reader.eof or reader.unused_data:
        raise ConfigurationError(f"Expected local_start of the network to be {size} bytes, compressed by zlib")
    start = np.frombuffer(data, dtype="<f4").astype(np.float32)
    if not np.isfinite(start).all():
        raise ConfigurationError("Expected local_start of the network to be finite")
    start.flags.writeable = False
    return start
