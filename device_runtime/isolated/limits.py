"""What one call of a developer's handler may use."""

from __future__ import annotations

from dataclasses import dataclass

from odp import _validate


@dataclass(frozen=True, kw_only=True)
class CallLimits:
    """Limits of one call.

    Attributes:
      seconds: from the call to its answer, by the wall clock; then its process is killed.
      processor_seconds: of all threads of its process together, its start included.
      memory_bytes: of address space, beyond what the runtime itself takes in that process.
      output_bytes: the longest message of the process, hence its whole answer.
      reads: how often it may read from the stores, and ``read_bytes`` how much in total.
      failures: after this number in a row, a handler is paused for a minute, then twice as long, up to an hour; None
        pauses none: where calls have the data of different people, one person's must not pause the others' calls.
    """

    seconds: float = 5.0
    processor_seconds: int = 5
    memory_bytes: int = 256 * 2**20
    output_bytes: int = 4 * 2**20
    reads: int = 10_000
    read_bytes: int = 64 * 2**20
    failures: int | None = 3

    def __post_init__(self) -> None:
        _validate.within(low=0.01, high=600.0, seconds=self.seconds)
        _validate.integer(low=1, high=600, processor_seconds=self.processor_seconds)
        _validate.integer(low=2**20, high=2**36, memory_bytes=self.memory_bytes)
        _validate.integer(low=2**10, high=2**27, output_bytes=self.output_bytes)
        _validate.integer(low=0, high=2**20, reads=self.reads)
        _validate.integer(low=0, high=2**32, read_bytes=self.read_bytes)
        if self.failures is not None:
            _validate.integer(low=1, high=1000, failures=self.failures)
