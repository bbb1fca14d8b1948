"""The base class of a developer's on-device code, and the rights of its handlers to read and write data.

The rights are enforced outside of the handler's process.
Nothing private leaves because of this table:

- events, requests and local data are private; downloads are the same for everybody;
- the answer of ``on_request`` is all that the calling app gets, and ``on_request`` reads nothing private;
- downloads are all else that it reads, and ``on_download``, which chooses what is kept of them, reads nothing private;
- every call runs in a process of its own, so that no handler finds in memory what another left there.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from odp.isolated.values import (
    Accepted,
    AppRequest,
    Declined,
    Download,
    Event,
    Example,
    Executed,
    Execution,
    Happening,
    Kept,
    NewEvent,
    Noted,
    PastRequest,
    Rendered,
    Rendering,
    Training,
)


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


class Stores(Protocol):
    """The data that a handler reads, of its own service on this device; ``RIGHTS`` limits the tables.

    A read that the handler has no right to raises PermissionError here, and ends the call where code goes around that.
    """

    def events(self, *, type: str | None = None, since: float = -math.inf, most: int = 1000) -> Sequence[Event]:
        """The newest ``most`` events, oldest first: of a type or of all, from ``since`` on."""

    def requests(self, *, most: int = 1000) -> Sequence[PastRequest]:
        """The newest ``most`` requests, oldest first."""

    def local(self, key: str) -> bytes | None:
        """One value of the local data, or None."""

    def local_keys(self, *, prefix: str = "") -> Sequence[str]:
        """Keys of the local data, ascending."""

    def downloaded(self, key: str) -> bytes | None:
        """One value of the downloads, or None."""

    def downloaded_keys(self, *, prefix: str = "") -> Sequence[str]:
        """Keys of the downloads, ascending."""


class IsolatedService:
    """On-device code: subclass it in a module of its own and override the handlers that are needed.

    For every call of a handler:

    - It runs in a process of its own, made for this call: no network, no file, no other process, no thread, no
      environment, and limits of processor time, memory, wall time and output. The module is run anew in each,
      so what a handler leaves in memory is gone. It imports the standard library, numpy, and its own package.
    - It is given its input and ``stores``, and may read the tables that ``odp.isolated.RIGHTS`` says.
    - What it returns is checked by the runtime, outside of that process, and all of what it writes is stored in one
      transaction, or none of it.
    - Where it raises, ends, passes its deadline or another limit, returns something else than its contract says or
      writes what it may not, then nothing is written and nothing is passed on. The person can see that it failed and
      by which of a closed set of reasons; the asking app sees that of ``on_request`` only.
    - After three failures of a handler in a row it is not called for a minute, then for twice as long, up to an hour.
    """

    def on_request(self, request: AppRequest, stores: Stores) -> Accepted | Declined:
        """An app asks for something.

        When: first, once per request. Reads: downloads. Writes: nothing.
        Kept on success: the runtime adds the request to the requests; ``work`` goes to ``on_execute``.
        On failure: the request is not stored, and the app learns that it failed.

        The default accepts and passes on what was asked.
        """
        return Accepted(request.asked)

    def on_execute(self, execution: Execution, stores: Stores) -> Executed:
        """Computes the personal result of an accepted request.

        When: after ``on_request``. Reads: everything. Writes: rows of its request, local data.
        Kept on success: those; ``result`` goes to ``on_render`` and to nobody else, and is not stored.
        On failure: the request stays without rows; nothing is rendered, and the app does not learn the reason.
        """
        raise NotImplementedError

    def on_render(self, rendering: Rendering, stores: Stores) -> Rendered:
        """Creates the page of a result.

        When: after ``on_execute``, each time the result is shown. Reads: downloads. Writes: nothing.
        Kept on success: nothing; the page is shown, and cannot request anything but the event URLs.
        On failure: nothing is shown.
        """
        raise NotImplementedError

    def on_event(self, happening: Happening, stores: Stores) -> Noted:
        """Handles an event: the person followed an event URL of a page, or the app reported something.

        When: once per happening. Reads: everything. Writes: events (rows are added), local data.
        Kept on success: those. On failure: the happening is lost.

        The default keeps it as an event of its type.
        """
        return Noted((NewEvent(happening.type, happening.data),))

    def on_download(self, download: Download, stores: Stores) -> Kept:
        """Selects the rows of a new version of the developer's data that this device keeps.

        When: once per version, before any other handler sees it. Reads: that version only. Writes: downloads (the
        named rows replace all earlier ones). Kept on success: those. On failure: the earlier version stays.

        The default keeps all.
        """
        return Kept(tuple(download.entries))

    def on_training_examples(self, training: Training, stores: Stores) -> Iterable[Example]:
        """Yields the examples that a task trains on.

        When: before a contribution is computed. Reads: everything. Writes: nothing.
        Kept on success: nothing; the examples go to the task's computation, whose result leaves under the task's
        differential privacy. On failure: the device does not take part in that round.
        """
        raise NotImplementedError
