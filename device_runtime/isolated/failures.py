"""How a call of a developer's handler fails: by a reason of a closed set, which cannot carry data."""

from __future__ import annotations

import enum

from odp.errors import OdpError
from odp.isolated import Handler


class Reason(enum.Enum):
    """Why; the text is for the person."""

    RAISED = "its code raised an error"
    ENDED = "its process ended"
    DEADLINE = "it did not answer in time"
    LIMIT = "it used more processor time or memory than it may"
    MALFORMED = "what it sent is not an answer, or larger than an answer may be"
    FORBIDDEN = "it tried to read or write what it may not"
    TOO_MUCH = "it read more than it may"
    NOT_STORED = "what it wanted to store is more than the store may hold"
    NOT_LOADED = "its module could not be loaded"
    RESTING = "it failed too often in a row"


class HandlerFailed(OdpError):
    """A handler failed: nothing was written and nothing was passed on.

    Of a handler that reads private data, neither that it failed nor why may be told to the app that asked.
    """

    def __init__(self, handler: Handler, reason: Reason, *, seconds: float = 0.0) -> None:
        rest = f"; it is called again in {seconds:.0f} s" if reason is Reason.RESTING else ""
        super().__init__(f"{handler.value} of the service failed: {reason.value}{rest}")
        self.handler = handler
        self.reason = reason
        self.seconds = seconds
