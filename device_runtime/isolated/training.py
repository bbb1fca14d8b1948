"""Trains and tests a developer's network on this device: LiteRT in its process, without network, files or other data.

Guarantee: whatever a program does (crash, loop, take memory, answer nonsense), ``IsolatedTrainer.difference`` returns a
finite vector of the declared length or raises, within its limits of time and memory; ``measured`` returns arrays of the
declared shapes, or raises. It runs nothing of the program in
this process.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from device_runtime.isolated.code import LIBRARIES, ServiceCode
from device_runtime.isolated.host import Asked, IsolatedHost
from device_runtime.isolated.limits import CallLimits, HandlerFailed, Reason
from device_runtime.isolated.stores import MemoryStore
from device_runtime.round.fixed_times import seconds_left
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

# Programs whose processes are kept ready.
_MOST_HOSTS = 2
_READ_BYTES = 2**32 - 1
_OUTPUT_BYTES = 2**27
_APP = "training"


class _TrainerCode(ServiceCode):
    """``odp.models.litert.service``, which the template loads as it is: it is no developer's."""

    @property
    def libraries(self) -> tuple[str, ...]:
        return (*LIBRARIES, *service.LIBRARIES)

    def imports(self) -> list[str]:
        return list(service.PRELOADED)


class IsolatedTrainer(Closing):
    """``odp.models.litert.trainer.ProgramTrainer`` of a device. A context manager; ``close`` ends its processes.

    Trainings run one after the other, and the time of one begins when it is asked for: none goes on after it, nor after
    the time of the contribution that it is for. A device host gives each training the trainer for that whole time
    (``FixedTimes.place``). A program that fails is not paused: it may have failed for one person's data alone.

    Args:
      seconds: of one training, by the wall clock and of its processor.
      memory_bytes: of address space of one training.
      accept: promises (``odp.isolated.walls.PROMISES``) that the person does without where the machine does not keep
        them.
      say: a callback for lines to the person.

    Raises:
      ConfigurationError: a limit is out of range.
    """

    def __init__(
        self,
        *,
        seconds: float = STEPS[-1],
        memory_bytes: int = MOST_MEMORY,
        accept: Collection[str] = (),
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        _validate.within(low=STEPS[0], high=STEPS[-1], seconds=seconds)
        self._limits = CallLimits(
            seconds=seconds, processor_seconds=math.ceil(seconds), memory_bytes=memory_bytes,
            output_bytes=_OUTPUT_BYTES, read_bytes=_READ_BYTES, failures=None,
        )  # fmt: skip
        self._accept, self._say = accept, say
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._restricted = False
        self._hosts: OrderedDict[bytes, IsolatedHost] = OrderedDict()

    def require(self, program: Program, *, most_examples: int) -> None:
        """As ``ProgramTrainer.require``; starts processes, and so finds out whether this machine restricts them.

        Raises:
          ConfigurationError: ai-edge-litert is missing, the program may need more memory than the limit, or this
            machine does not keep a promise that ``accept`` does not name.
        """
        require(*service.LIBRARIES, to="train networks on this device")
        needed = memory_needed(program, most_examples=most_examples)
        if needed > self._limits.memory_bytes:
            raise ConfigurationError(
                f"this device trains networks in {self._limits.memory_bytes} bytes, and this one with "
                f"most_examples={most_examples} may need {needed}"
            )
        if self._restricted:
            return  # asking again would wait for the training that is under way
        try:
            self._host(program).restrictions()
            self._restricted = True
        except StateError as error:
            raise ConfigurationError(f"this device cannot train networks: {error}") from None

    def prepare(self, program: Program) -> None:
        """As ``ProgramTrainer.prepare``: the processes of a program. Waits for the training that is under way."""
        with self._turn:
            self._host(program).restrictions()

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
          HandlerFailed: the program failed, or another one took all of the time.
          DataError: what came back is no difference.
          StateError: its process could not be started, or not restricted.
        """
        if not batches:
            return np.zeros(program.shared_size, dtype=np.float32)
        arrays = service.arrays_of(program, start, features, targets, batches, local=local)
        reply = self._reply_of(program, arrays, service.work_of(program, rate=rate, proximal=proximal, local=local))
        return service.difference_of(reply, program)

    def measured(
        self, program: Program, vector: Float32Array, features: Sequence[Array], targets: Array, *, items: int = 0
    ) -> Measured:
        """As ``ProgramTrainer.measured``. Raises as ``difference``."""
        every = np.arange(len(targets), dtype=np.int64)
        arrays = service.arrays_of(program, vector, features, targets, [every])
        reply = self._reply_of(program, arrays, service.measuring(program, items=items))
        return service.measured_of(reply, program, examples=len(targets), items=items)

    def _reply_of(self, program: Program, arrays: Mapping[str, bytes], work: Columns) -> Columns:
        """What one call gives back."""
        store = MemoryStore()
        store.change(arrays, time=0.0)
        accepted = Asked(store.add_request(_APP, {}, time=0.0), _APP, work)
        seconds = min(self._limits.seconds, seconds_left())
        end = time.monotonic() + seconds
        if seconds <= 0 or not self._turn.acquire(timeout=seconds):
            raise HandlerFailed(Handler.ON_EXECUTE, Reason.DEADLINE)
        try:
            left = end - time.monotonic()
            if left <= 0:
                raise HandlerFailed(Handler.ON_EXECUTE, Reason.DEADLINE)
            return self._host(program).execute(store, accepted, now=0.0, seconds=left).result
        finally:
            self._turn.release()

    def close(self) -> None:
        """Ends all processes. A later call starts them again."""
        with self._lock:
            hosts = list(self._hosts.values())
            self._hosts.clear()
        for host in hosts:
            host.close()

    def _host(self, program: Program) -> IsolatedHost:
        digest = hashlib.sha256(program.flatbuffer).digest()
        with self._lock:
            if (host := self._hosts.pop(digest, None)) is None:
                code = _TrainerCode(service.__name__, service.LocalTrainer.__name__, {})
                host = IsolatedHost(code, limits=self._limits, accept=self._accept, say=self._say)
            self._hosts[digest] = host
            oldest = self._hosts.popitem(last=False)[1] if len(self._hosts) > _MOST_HOSTS else None
        if oldest is not None:
            oldest.close()
        return host
