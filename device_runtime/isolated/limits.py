"""What one call of a developer's handler may use, and the reasons for which it can fail.

The reasons are a closed set, so that a failure cannot carry data.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from odp import _validate
from odp.errors import OdpError
from odp.isolated import Handler


@dataclass(frozen=True, kw_only=True)
class CallLimits:
    """Limits of one call.

    Attributes:
      seconds: from the call to its answer, by the wall clock; then its process is killed.
      processor_seconds: of all threads of its process together, its start included.
      memory_bytes: of address space, beyond what the runtime itself takes in that process.
      output_bytes: the longest message of the process, hence its whole answer.
      reads: how often it may read from the stores, and ``read_bytes`` how much in total.
      failures: after this number in a row, a handler is paused for a minute, then twice as long, up to an hour.
    """

    seconds: float = 5.0
    processor_seconds: int = 5
    memory_bytes: int = 256 * 2**20
    output_bytes: int = 4 * 2**20
    reads: int = 10_000
    read_bytes: int = 64 * 2**20
    failures: int = 3

    def __post_init__(self) -> None:
        _validate.within(low=0.01, high=600.0, seconds=self.seconds)
        _validate.integer(low=1, high=600, processor_seconds=self.processor_seconds)
        _validate.integer(low=2**20, high=2**36, memory_bytes=self.memory_bytes)
        _validate.integer(low=2**10, high=2**27, output_bytes=self.output_bytes)
        _validate.integer(low=0, high=2**20, reads=self.reads)
        _validate.integer(low=0, high=2**32, read_bytes=self.read_bytes)
        _validate.integer(low=1, high=1000, failures=self.failures)


class Reason(enum.Enum):
    """The reason; its text is for the person."""

    RAISED = "its code raised an error"
    ENDED = "its process ended"
    DEADLINE = "it exceeded its time limit"
    LIMIT = "it exceeded its limit of processor time or memory"
    MALFORMED = "its output is not a valid answer, or is larger than the limit"
    FORBIDDEN = "it tried to read or write without the right to"
    TOO_MUCH = "it exceeded its limit of reads"
    NOT_STORED = "its data exceed the limit of the store"
    NOT_LOADED = "its module could not be loaded"
    RESTING = "it failed too many times in a row"


class HandlerFailed(OdpError):
    """A handler failed: nothing was stored and nothing was returned.

    Of a handler that reads private data, neither that it failed nor why may be told to the app that asked.
    """

    def __init__(self, handler: Handler, reason: Reason, *, seconds: float = 0.0) -> None:
        rest = f"; the next call is possible in {seconds:.0f} s" if reason is Reason.RESTING else ""
        super().__init__(f"{handler.value} of the service failed: {reason.value}{rest}")
        self.handler = handler
        self.reason = reason
        self.seconds = seconds
