"""What an entry of a ledger lists: events that cost, and releases that an earlier charge of a stream covers.

All releases of a stream are one event (``events.StreamRelease``), charged in full before the first of them. Each later
release of the stream is listed as covered: it adds nothing to epsilon, and only a ledger that holds the charge takes it
(``ledger_state.py``). No accountant takes a covered release, so none can be mistaken for a free event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from odp import _validate
from odp.errors import ConfigurationError
from odp.privacy import events as privacy_events
from odp.privacy.adjacency import Adjacency
from odp.privacy.events import Event, StreamRelease

COVERED = "covered_by_stream"

_KEYS = ("mechanism", "place", "stream")


@dataclass(frozen=True)
class CoveredRelease:
    """One release of a stream after the one that charged it.

    Attributes:
        stream: the charged event, whole: a release of a stream with any other number is not covered.
        place: of this release in the stream, at least 1: the round of the task that charged the stream holds 0, and
            every round after it the next place.

    Raises:
        ConfigurationError: no stream, or a place outside of it.
    """

    stream: StreamRelease
    place: int

    def __post_init__(self) -> None:
        if not isinstance(self.stream, StreamRelease):
            raise ConfigurationError("Expected stream to be a StreamRelease")
        _validate.integer(low=1, high=self.stream.rounds - 1, place=self.place)

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self.stream.name

    @property
    def adjacency(self) -> Adjacency:
        """The adjacency of the stream."""
        return self.stream.adjacency

    def to_json(self) -> dict[str, object]:
        """Plain values, keys sorted; ``from_json`` gives back an equal release."""
        return {
            "mechanism": COVERED,
            "place": self.place,
            "stream": self.stream.to_json(),
        }


LedgerEvent = Event | CoveredRelease
"""Everything that an entry of a ledger can list."""


def charged(events: Iterable[LedgerEvent]) -> tuple[Event, ...]:
    """The events that a population is charged for: without covered releases, whose stream was charged before."""
    return tuple(event for event in events if not isinstance(event, CoveredRelease))


def joined(rounds: Iterable[tuple[int, Iterable[LedgerEvent]]]) -> tuple[Event, ...]:
    """The cost for one user of numbered rounds of a task, with what each lists.

    Whoever joins any release of a stream is charged for all of it, and once, also without the round that opened it.
    """
    cost: list[Event] = []
    streams: set[tuple[StreamRelease, int]] = set()
    for round, events in rounds:
        for event in events:
            if isinstance(event, CoveredRelease):
                opened = (event.stream, round - event.place)
            elif isinstance(event, StreamRelease):
                opened = (event, round)
            else:
                cost.append(event)
                continue
            if opened not in streams:
                streams.add(opened)
                cost.append(opened[0])
    return tuple(cost)


def from_json(value: object) -> LedgerEvent:
    """The event or covered release that ``to_json`` wrote.

    Raises:
        ConfigurationError, PrivacyError: as ``events.from_json``; or the stream is of another mechanism.
    """
    if not isinstance(value, Mapping) or value.get("mechanism") != COVERED:
        return privacy_events.from_json(value)
    fields = _validate.json_object(value, _KEYS, where="a covered release")
    stream = privacy_events.from_json(fields["stream"])
    if not isinstance(stream, StreamRelease):
        raise ConfigurationError("Expected the stream of a covered release to be a matrix mechanism")
    return CoveredRelease(stream, fields["place"])
