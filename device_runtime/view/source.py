"""What the view shows and whom it tells of an event: the seam between the pages and the device's store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class ResultPage:
    """One rendered result. Its ``repr`` shows nothing of what was rendered.

    Attributes:
      id: of the request that asked for it, 16 bytes in hexadecimal.
      service: the developer's name of their service.
      title: what the person reads in the list.
      time: when it was rendered, seconds since the epoch.
      html: as the developer's code rendered it: hostile until the view made it harmless.
    """

    id: str
    service: str
    title: str
    time: float
    html: str = field(repr=False)


class Results(Protocol):
    """Where rendered results come from."""

    def results(self) -> Sequence[ResultPage]:
        """All that may still be shown, newest first; their ``html`` may be empty here."""
        ...

    def result(self, id: str) -> ResultPage | None:
        """One of them with its ``html``; None where there is none (any more)."""
        ...


class Recorder(Protocol):
    """Takes what the person did on a rendered page; it stays on the device."""

    def __call__(self, result: ResultPage, type: str, values: Mapping[str, str]) -> None:
        """``type`` is an identifier, ``values`` the checked query of the event URL."""
        ...
