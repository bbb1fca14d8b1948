"""The rights of each handler of a service to read and write data; enforced outside of the handler's process.

Nothing private leaves because of this table:

- events, requests and local data are private; downloads are the same for everybody;
- the answer of ``on_request`` is all that the calling app gets, and ``on_request`` reads nothing private;
- downloads are all else that it reads, and ``on_download``, which chooses what is kept of them, reads nothing private;
- every call runs in a process of its own, so that no handler finds in memory what another left there.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass


class DataKind(enum.Enum):
    """The kinds of data in a service's stores, in the service's own namespace."""

    EVENTS = "events"
    REQUESTS = "requests"
    LOCAL = "local"
    DOWNLOADS = "downloads"

    @property
    def private(self) -> bool:
        """Whether it contains data about the person."""
        return self is not DataKind.DOWNLOADS


class Handler(enum.Enum):
    """The handlers of a service, by the names of their methods."""

    ON_REQUEST = "on_request"
    ON_EXECUTE = "on_execute"
    ON_RENDER = "on_render"
    ON_EVENT = "on_event"
    ON_DOWNLOAD = "on_download"
    ON_TRAINING_EXAMPLES = "on_training_examples"


class Receiver(enum.Enum):
    """The receiver of a handler's result, besides the tables that it may write."""

    APP = "the app that asked"
    ON_RENDER = "on_render, and nobody else"
    PAGE = "the sandboxed page"
    TRAINING = "training, under the task's differential privacy"
    NOBODY = "nobody"


@dataclass(frozen=True)
class Rights:
    """The rights of one handler: the tables that it may read or write, and the receiver of its result."""

    reads: frozenset[DataKind]
    writes: frozenset[DataKind]
    receiver: Receiver


_ALL = frozenset(DataKind)
_NONE: frozenset[DataKind] = frozenset()
_PUBLIC = frozenset({DataKind.DOWNLOADS})

RIGHTS: Mapping[Handler, Rights] = {
    # What it accepts goes to on_execute; the app learns whether it accepts, and the reason of a refusal.
    Handler.ON_REQUEST: Rights(_PUBLIC, _NONE, Receiver.APP),
    Handler.ON_EXECUTE: Rights(_ALL, frozenset({DataKind.REQUESTS, DataKind.LOCAL}), Receiver.ON_RENDER),
    Handler.ON_RENDER: Rights(_PUBLIC, _NONE, Receiver.PAGE),
    Handler.ON_EVENT: Rights(_ALL, frozenset({DataKind.EVENTS, DataKind.LOCAL}), Receiver.NOBODY),
    # Of a new version of the downloads it sees that version, and none of what the device holds.
    Handler.ON_DOWNLOAD: Rights(_NONE, _PUBLIC, Receiver.NOBODY),
    Handler.ON_TRAINING_EXAMPLES: Rights(_ALL, _NONE, Receiver.TRAINING),
}
