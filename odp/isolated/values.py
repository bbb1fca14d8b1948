"""What goes into the handlers of a service, and what comes out. All are values; ``Json`` is what JSON can hold.

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
    """Something that happened: columns or bytes; ``request`` is the number of the request that it followed."""

    id: int
    type: str
    time: float
    data: Columns | bytes = field(repr=False)
    request: int | None = None


@dataclass(frozen=True)
class PastRequest:
    """What an app once asked, and the rows that ``on_execute`` logged of its answer; None without an answer."""

    id: int
    app: str
    time: float
    asked: Columns = field(repr=False)
    rows: Sequence[Columns] | None = field(repr=False)


# Into handlers


@dataclass(frozen=True)
class AppRequest:
    """To ``on_request``: which app asks, and for what."""

    app: str
    asked: Columns = field(repr=False)
    time: float


@dataclass(frozen=True)
class Execution:
    """To ``on_execute``: the number of the request in the store, and what ``on_request`` made of it."""

    request: int
    app: str
    work: Columns = field(repr=False)
    time: float


@dataclass(frozen=True)
class Rendering:
    """To ``on_render``: the result of ``on_execute``."""

    request: int
    result: Columns = field(repr=False)
    time: float


@dataclass(frozen=True)
class Happening:
    """To ``on_event``: what happened on a page, or what the app tells of; ``request`` where it followed one."""

    type: str
    data: Columns = field(repr=False)
    time: float
    request: int | None = None


@dataclass(frozen=True)
class Download:
    """To ``on_download``: all rows of a new version."""

    version: str
    entries: Mapping[str, bytes] = field(repr=False)
    time: float


@dataclass(frozen=True)
class Training:
    """To ``on_training_examples``: which task of which population wants examples."""

    population: str
    task: str
    time: float


# Out of handlers


@dataclass(frozen=True)
class Accepted:
    """Of ``on_request``: ``work`` goes to ``on_execute``; the app learns that it was accepted, and nothing more."""

    work: Columns = field(default_factory=dict)


@dataclass(frozen=True)
class Declined:
    """Of ``on_request``: the app is told ``reason``, a line of at most 200 characters."""

    reason: str


@dataclass(frozen=True)
class Executed:
    """Of ``on_execute``.

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
    """Of ``on_render``: an HTML document, shown in a page that can request nothing but the event URLs."""

    html: str = field(repr=False)


@dataclass(frozen=True)
class NewEvent:
    """A row for the events: columns of ``[a-z0-9_.-]`` names."""

    type: str
    data: Columns = field(repr=False)


@dataclass(frozen=True)
class Noted:
    """Of ``on_event``: rows to append to the events, at the time of the happening, and changes of local data."""

    events: Sequence[NewEvent] = field(default=(), repr=False)
    local: Mapping[str, bytes | None] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Kept:
    """Of ``on_download``: the keys of the rows to keep; they are kept as they came."""

    keys: Collection[str] = field(repr=False)


@dataclass(frozen=True)
class Example:
    """One training example: columns by name, which the task's data specification reads."""

    columns: Columns = field(repr=False)
