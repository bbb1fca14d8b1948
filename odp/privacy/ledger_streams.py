"""The streams of one task in a ledger: which round of the task holds which release of a charged stream.

Guarantee: a covered release has the newest charge of its name to the same task before it, equal in every number, and
every place of that charge has at most one release. So all of them together are at most the mechanism that was charged.

- The round that charges a stream holds place 0, and round ``r`` after it place ``r`` minus that round: since a task
  charges every round once, no place comes twice. A void round uses up its place.
- Another charge of the same name opens a new stream and ends the one before: a stream whose state was lost starts anew,
  and is paid for in full.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from odp.errors import PrivacyError
from odp.privacy.events import StreamRelease
from odp.privacy.ledger_events import CoveredRelease, LedgerEvent


class OpenStream(NamedTuple):
    """The newest stream of one name, and the round of the task that charged it."""

    event: StreamRelease
    round: int


def advanced(
    streams: Mapping[str, OpenStream], events: Iterable[LedgerEvent], *, round: int
) -> Mapping[str, OpenStream]:
    """The streams of a task, by name, after ``round`` with the ``events`` of its charge.

    Raises:
        PrivacyError: a release is not covered, or the round has two releases of one stream.
    """
    here: set[str] = set()
    opened: dict[str, OpenStream] = {}
    for event in events:
        if not isinstance(event, (StreamRelease, CoveredRelease)):
            continue
        if event.name in here:
            raise PrivacyError(f"stream {event.name!r} has two releases in round {round}: charge one of each stream")
        here.add(event.name)
        if isinstance(event, StreamRelease):
            opened[event.name] = OpenStream(event, round)
        else:
            _require_covered(streams.get(event.name), event, round)
    return {**streams, **opened} if opened else streams


def _require_covered(stream: OpenStream | None, event: CoveredRelease, round: int) -> None:
    what = f"place {event.place} of stream {event.name!r} in round {round} is not covered"
    if stream is None:
        raise PrivacyError(f"{what}: no stream of this name was charged to the task")
    if event.stream != stream.event:
        raise PrivacyError(f"{what}: the stream that was charged in round {stream.round} has other numbers")
    if event.place != round - stream.round:
        raise PrivacyError(
            f"{what}: the stream was charged in round {stream.round}, so place {round - stream.round} is due"
        )
