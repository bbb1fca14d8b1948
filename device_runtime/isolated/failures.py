"""The reasons for which a developer's handler can fail: a closed set, so that a failure cannot carry data."""

from __future__ import annotations

import enum

from odp.errors import OdpError
from odp.isolated import Handler


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
