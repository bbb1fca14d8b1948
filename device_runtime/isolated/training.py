"""Trains and tests a developer's network on this device: LiteRT in its process, without network, files or other data.

Guarantee: whatever a program does (crash, loop, take memory, answer nonsense), ``difference`` returns a finite vector
of the declared length or raises, within its limits of time and memory; ``measured`` returns arrays of the declared
shapes, or raises. Nothing of the program runs in this process.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from device_runtime.isolated.code import LIBRARIES, ServiceCode
from device_runtime.isolated.conversation import Conversation, call_of
from device_runtime.isolated.limits import CallLimits, HandlerFailed
from device_runtime.isolated.process import CallProcess, Lane, Walls
from device_runtime.isolated.replies import Unacceptable
from device_runtime.isolated.stores import MemoryStore
from odp import _validate
from odp._system.closing import Closing
from odp._system.extras import require
from odp.errors import ConfigurationError, StateError
from odp.isolated import Columns, Handler
from odp.models.litert import service
from odp.models.litert.program import Array, Program
from odp.models.litert.trainer import MOST_MEMORY, LocalSteps, Measured, memory_needed
from odp.numerics.arrays import Float32Array, Int64Array
from odp.protocol.terms import STEPS

_READ_BYTES = 2**32 - 1
_OUTPUT_BYTES = 2**27


class _TrainerCode(ServiceCode):
    """``odp.models.litert.service``, which the template loads as it is: it is no developer's."""

    @property
    def libraries(self) -> tuple[str, ...]:
        return (*LIBRARIES, *service.LIBRARIES)

    def imports(self) -> list[str]:
        return list(service.PRELOADED)


class IsolatedTrainer(Closing):
    """Processes that run programs, each for one contribution. A context manager; ``close`` ends them.

    As ``odp.models.litert.trainer.ProgramTrainer``, it runs each call in a process of its own. A program that fails is
    not paused: it may have failed for one person's data alone. For one thread, but for ``require``.

    Args:
      seconds: of one contribution, by the wall clock and of its processor.
      say: a callback for lines to the person.

    Raises:
      ConfigurationError: a limit is out of range.
    """

    def __init__(
        self,
        *,
        seconds: float = STEPS[-1],
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        _validate.within(low=STEPS[0], high=STEPS[-1], seconds=seconds)
        self._limits = CallLimits(
            seconds=seconds, processor_seconds=math.ceil(seconds), memory_bytes=MOST_MEMORY,
            output_bytes=_OUTPUT_BYTES, read_bytes=_READ_BYTES,
        )  # fmt: skip
        self._restricted = False
        code = _TrainerCode(service.__name__, service.LocalTrainer.__name__, {})
        self._lane = Lane(code, self._limits, Walls((), say))

    def require(self, program: Program, *, most_examples: int) -> None:
        """As ``ProgramTrainer.require``; finds out once whether this machine restricts the processes.

        Raises:
          ConfigurationError: ai-edge-litert is missing, the program may need more memory than the limit, or this
            machine does not keep a promise of ``odp.isolated.walls.PROMISES``.
        """
        require(*service.LIBRARIES, to="train networks on this device")
        needed = memory_needed(program, most_examples=most_examples)
        if needed > MOST_MEMORY:
            raise ConfigurationError(
                f"this device trains networks in {MOST_MEMORY} bytes, and this one with "
                f"most_examples={most_examples} may need {needed}"
            )
        with self._lane.lock:
            if not self._restricted:
                try:
                    self.prepare()
                except StateError as error:
                    raise ConfigurationError(f"this device cannot train networks: {error}") from None
                self._lane.stop()
                self._restricted = True

    def prepare(self) -> None:
        """Starts the next process.

        Raises:
          StateError: it could not be started, or this machine does not keep a promise.
        """
        self._lane.restrictions()

    def process(self) -> TrainingProcess:
        """A process for one contribution. Raises StateError as ``prepare``."""
        return TrainingProcess(self._lane.take(), self._limits, self._lane.end)

    def difference(
        self,
        program: Program,
        start: Float32Array,
        features: Sequence[Array],
        targets: Array,
        batches: Sequence[Int64Array],
        *,
        rate: float,
        proximal: float = 0.0,
        local: LocalSteps | None = None,
    ) -> Float32Array:
        """As ``TrainingProcess.difference``. Raises StateError, too, as ``prepare``."""
        with self.process() as process:
            return process.difference(
                program, start, features, targets, batches, rate=rate, proximal=proximal, local=local
            )

    def measured(
        self, program: Program, vector: Float32Array, features: Sequence[Array], targets: Array, *, items: int = 0
    ) -> Measured:
        """As ``TrainingProcess.measured``. Raises StateError, too, as ``prepare``."""
        with self.process() as process:
            return process.measured(program, vector, features, targets, items=items)

    def predicted(
        self,
        program: Program,
        vector: Float32Array,
        features: Sequence[Array],
        local: tuple[Sequence[Array], Array, LocalSteps] | None,
        *,
        items: int = 0,
    ) -> Float32Array:
        """As ``TrainingProcess.predicted``. Raises StateError, too, as ``prepare``."""
        with self.process() as process:
            return process.predicted(program, vector, features, local, items=items)

    def close(self) -> None:
        """Ends all processes. A later call starts them again."""
        self._lane.close()


class LastingProcess(Closing):
    """Asks programs of what no person is in, call after call in one process. For one thread; ``close`` ends it.

    A process has the time of one contribution, so another one takes its place after half of that, and after a failure.
    """

    def __init__(self, trainer: IsolatedTrainer, *, seconds: float = STEPS[-1]) -> None:
        self._trainer, self._seconds = trainer, seconds
        self._process: TrainingProcess | None = None
        self._taken = 0.0

    def predicted(
        self,
        program: Program,
        vector: Float32Array,
        features: Sequence[Array],
        local: tuple[Sequence[Array], Array, LocalSteps] | None,
        *,
        items: int = 0,
    ) -> Float32Array:
        """As ``IsolatedTrainer.predicted``; there are no ``local`` steps, which would be a person's."""
        if local is not None:
            raise ConfigurationError("Expected no local steps: they are of a person's examples")
        if self._process is None or self._taken > self._seconds / 2:
            self.close()
            self._process = self._trainer.process()
        began = time.monotonic()
        try:
            return self._process.predicted(program, vector, features, None, items=items)
        except BaseException:
            self.close()
            raise
        finally:
            self._taken += time.monotonic() - began

    def close(self) -> None:
        """Ends the process. Idempotent."""
        if self._process is not None:
            self._process.close()
        self._process, self._taken = None, 0.0


class TrainingProcess(Closing):
    """A process that runs a program for one contribution. A context manager, which ends it; for one thread."""

    def __init__(self, process: CallProcess, limits: CallLimits, end: Callable[[CallProcess], None]) -> None:
        self._process, self._limits, self._end = process, limits, end
        self._conversation = Conversation(process.channel, limits)

    @property
    def descriptor(self) -> int:
        """Of the socket to it: the only thing that its user needs in a forked process."""
        return self._process.channel.fileno()

    def lent(self) -> None:
        """Closes this process's socket to it: a forked one has its copy."""
        self._process.channel.close()

    def close(self) -> None:
        """Ends it."""
        self._end(self._process)

    def require(self, program: Program, *, most_examples: int) -> None:
        """Accepts all: ``IsolatedTrainer.require`` was asked before data were read."""

    def difference(
        self,
        program: Program,
        start: Float32Array,
        features: Sequence[Array],
        targets: Array,
        batches: Sequence[Int64Array],
        *,
        rate: float,
        proximal: float = 0.0,
        local: LocalSteps | None = None,
    ) -> Float32Array:
        """As ``ProgramTrainer.difference``.

        Raises:
          HandlerFailed: the program failed, or took all of the time.
          DataError: what came back is no difference.
        """
        if not batches:
            return np.zeros(program.shared_size, dtype=np.float32)
        arrays = service.arrays_of(program, start, features, targets, batches, local=local)
        reply = self._reply_of(arrays, service.work_of(program, rate=rate, proximal=proximal, local=local))
        return service.difference_of(reply, program)

    def measured(
        self, program: Program, vector: Float32Array, features: Sequence[Array], targets: Array, *, items: int = 0
    ) -> Measured:
        """As ``ProgramTrainer.measured``. Raises as ``difference``."""
        every = np.arange(len(targets), dtype=np.int64)
        arrays = service.arrays_of(program, vector, features, targets, [every])
        reply = self._reply_of(arrays, service.measuring(program, items=items))
        return service.measured_of(reply, program, examples=len(targets), items=items)

    def predicted(
        self,
        program: Program,
        vector: Float32Array,
        features: Sequence[Array],
        local: tuple[Sequence[Array], Array, LocalSteps] | None,
        *,
        items: int = 0,
    ) -> Float32Array:
        """As ``odp.algorithms.predicting.ProgramPredictor.predicted``. Raises as ``difference``."""
        count, rows = len(features[0]), np.arange(len(features[0]), dtype=np.int64)
        targets = np.zeros((count, *program.target.shape), dtype=program.target.dtype)
        every, steps = list(features), None
        if local is not None:
            local_features, local_targets, steps = local
            every = [np.concatenate(parts) for parts in zip(local_features, features, strict=True)]
            targets, rows = np.concatenate((local_targets, targets)), rows + len(local_targets)
        arrays = service.arrays_of(program, vector, every, targets, [rows], local=steps)
        reply = self._reply_of(arrays, service.predicting(program, local=steps, items=items))
        return service.predictions_of(reply, program, examples=count, items=items)

    def _reply_of(self, arrays: Mapping[str, bytes], work: Columns) -> Columns:
        """What one call gives back."""
        store = MemoryStore()
        store.change(arrays, time=0.0)
        call = call_of(Handler.ON_EXECUTE, {"request": 1, "app": "training", "work": work, "time": 0.0})
        try:
            reply = self._conversation.reply(
                Handler.ON_EXECUTE, store, call, end=time.monotonic() + self._limits.seconds
            )
        except Unacceptable as error:
            raise HandlerFailed(Handler.ON_EXECUTE, error.reason) from None
        result: Columns = reply.value["result"]
        return result
