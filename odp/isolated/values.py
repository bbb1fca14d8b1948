"""The inputs and outputs of a service's handlers. All are value objects; ``Json`` is any JSON value.

Times are in seconds since the epoch. None of them shows its private content in its ``repr``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
#: Columns by name.
Columns = Mapping[str, Json]


# What stores give


@dataclass(frozen=True)
class Event:
    """An event: columns or bytes; ``request`` is the number of the request that it followed."""

    id: int
    type: str
    time: float
    data: Columns | bytes = field(repr=False)
    request: int | None = None


@dataclass(frozen=True)
class PastRequest:
    """An earlier request of an app, and the rows that ``on_execute`` logged for it; None without an answer."""

    id: int
    app: str
    time: float
    asked: Columns = field(repr=False)
    rows: Sequence[Columns] | None = field(repr=False)


# Into handlers


@dataclass(frozen=True)
class AppRequest:
    """Input of ``on_request``: the app, and its request."""

    app: str
    asked: Columns = field(repr=False)
    time: float


@dataclass(frozen=True)
class Execution:
    """Input of ``on_execute``: the number of the request in the store, and the ``work`` of ``on_request``."""

    request: int
    app: str
    work: Columns = field(repr=False)
    time: float


@dataclass(frozen=True)
class Rendering:
    """Input of ``on_render``: the result of ``on_execute``."""

    request: int
    result: Columns = field(repr=False)
    time: float


@dataclass(frozen=True)
class Happening:
    """Input of ``on_event``: an event of a page or from the app; ``request`` if it followed one."""

    type: str
    data: Columns = field(repr=False)
    time: float
    request: int | None = None


@dataclass(frozen=True)
class Download:
    """Input of ``on_download``: all rows of a new version."""

    version: str
    entries: Mapping[str, bytes] = field(repr=False)
    time: float


@dataclass(frozen=True)
class Training:
    """Input of ``on_training_examples``: the task and the population that want examples."""

    population: str
    task: str
    time: float


# Out of handlers


@dataclass(frozen=True)
class Accepted:
    """Result of ``on_request``: ``work`` goes to ``on_execute``; the app learns only that the request was accepted."""

    work: Columns = field(default_factory=dict)


@dataclass(frozen=True)
class Declined:
    """Result of ``on_request``: the app gets ``reason``, a line of at most 200 characters."""

    reason: str


@dataclass(frozen=True)
class Executed:
    """Result of ``on_execute``.

    Attributes:
      result: goes to ``on_render``.
      rows: logged with the request, for later events and training.
      local: changes of local data; None deletes a key.
    """

    result: Columns = field(repr=False)
    rows: Sequence[Columns] = field(default=(), repr=False)
    local: Mapping[str, bytes | None] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Rendered:
    """Result of ``on_render``: an HTML document, shown in a page that can request nothing but the event URLs."""

    html: str = field(repr=False)


@dataclass(frozen=True)
class NewEvent:
    """A new row of the events: columns with names of ``[a-z0-9_.-]``."""

    type: str
    data: Columns = field(repr=False)


@dataclass(frozen=True)
class Noted:
    """Result of ``on_event``: rows to append to the events, at the time of the event, and changes of local data."""

    events: Sequence[NewEvent] = field(default=(), repr=False)
    local: Mapping[str, bytes | None] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Kept:
    """Result of ``on_download``: the keys of the rows to keep, unchanged."""

    keys: Collection[str] = field(repr=False)


@dataclass(frozen=True)
class Example:
    """One training example: columns by name, which the task's data specification reads."""

    columns: Columns = field(repr=False)
