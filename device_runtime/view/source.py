"""The seam between the pages of the view and the device's store: results to show, and a recorder of events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class ResultPage:
    """One rendered result. Its ``repr`` shows nothing of the page.

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
    """The source of rendered results."""

    def results(self) -> Sequence[ResultPage]:
        """All results that may still be shown, newest first; their ``html`` may be empty here."""

    def result(self, id: str) -> ResultPage | None:
        """One of them with its ``html``; None if it does not exist (any more)."""


class Recorder(Protocol):
    """Takes what the person did on a rendered page; it stays on the device."""

    def __call__(self, result: ResultPage, type: str, values: Mapping[str, str]) -> None:
        """``type`` is an identifier, ``values`` the checked query of the event URL."""
