"""A network that was compiled elsewhere, as the model of a federated training: in memory and in a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from odp.errors import ConfigurationError
from odp.models.litert.program import MOST_DESCRIPTION, MOST_PARAMETERS, Program
from odp.models.litert.trained import MOST_FLATBUFFER, TrainedNetwork, network_message
from odp.numerics.archives import UNREADABLE, unpacked_bytes
from odp.numerics.arrays import Float32Array

if TYPE_CHECKING:
    from odp.v1 import common_pb2, federated_pb2

_NAMES = ("description", "flatbuffer", "start")
# With some room for numpy's headers: an archive of 1 MiB unpacks to a thousand times as much.
_MOST_UNPACKED = MOST_DESCRIPTION + MOST_FLATBUFFER + 4 * MOST_PARAMETERS + 2**16


@dataclass(frozen=True, eq=False)
class CompiledModel:
    """A compiled network and the weights that its training begins with. Needs no TensorFlow.

    ``odp.KerasModel(..).compiled`` and ``odp.research.interop.tff.from_tff`` make one. ``save`` and ``load`` carry it
    to a machine where tasks are made without TensorFlow.

    Attributes:
      program: what devices run.
      start: float32 [program.size], weights of shared layers, then those of local ones.

    Raises:
      ConfigurationError: ``start`` has another shape or a number that is not finite, or the program is too large for a
        task.
    """

    program: Program
    start: Float32Array
    _message: federated_pb2.NetworkModel = field(init=False, repr=False)

    def __post_init__(self) -> None:
        size = self.program.size
        if self.start.shape != (size,) or self.start.dtype != np.float32 or not np.isfinite(self.start).all():
            raise ConfigurationError(
                f"Expected start to be {size} finite weights, float32 (got {self.start.dtype} of shape "
                f"{list(self.start.shape)})"
            )
        message = network_message(
            self.program, *np.split(self.start, [self.size]), operations=_operations(self.program)
        )
        TrainedNetwork.of(message)
        object.__setattr__(self, "_message", message)

    @property
    def size(self) -> int:
        """Number of weights that devices train together: those of local layers do not count."""
        return self.program.shared_size

    @property
    def public_matrix(self) -> Float32Array:
        """The weights that training begins with, float32 [size, 1]; the definition names them by their hash.

        Those of local layers are in the definition itself.
        """
        return self.start[: self.size, None]

    def write(self, definition: common_pb2.TaskDefinition) -> None:
        """Writes itself into a definition."""
        definition.network.CopyFrom(self._message)

    def save(self, path: str | Path) -> None:
        """Writes a file that ``load`` reads: an archive of numpy with the description, the flatbuffer and ``start``."""
        parts = (self.program.to_json().encode(), self.program.flatbuffer)
        arrays: tuple[npt.NDArray[Any], ...] = (*(np.frombuffer(part, dtype=np.uint8) for part in parts), self.start)
        with Path(path).open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **dict(zip(_NAMES, arrays, strict=True)))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The model in a file of ``save``.

        Raises:
          ConfigurationError: there is no such file, or it is another one.
        """
        try:
            with Path(path).open("rb") as file:
                if unpacked_bytes(file) > _MOST_UNPACKED:
                    raise ValueError
                file.seek(0)
                with np.load(file, allow_pickle=False) as archive:
                    description, flatbuffer, start = (np.asarray(archive[name]) for name in _NAMES)
            if not all(array.dtype == np.uint8 and array.ndim == 1 for array in (description, flatbuffer)):
                raise ValueError
            text = description.tobytes().decode()
        except OSError as error:
            if error.strerror is None:
                raise ConfigurationError(f"Expected {path} to be a file of odp.CompiledModel.save") from None
            raise ConfigurationError(f"cannot read the compiled model {path}: {error.strerror}") from None
        except UNREADABLE:
            raise ConfigurationError(f"Expected {path} to be a file of odp.CompiledModel.save") from None
        return cls(Program.from_json(text, flatbuffer.tobytes()), start)


def _operations(program: Program) -> int:
    """Multiplications of a prediction; 0 where ai-edge-litert, which reads programs, is missing or cannot read it."""
    try:
        from odp.models.litert.work import multiplications
    except ImportError:
        return 0
    try:
        return multiplications(program)
    except Exception:  # a malformed file makes the reader fail in its own ways; whoever runs the program refuses it
        return 0
