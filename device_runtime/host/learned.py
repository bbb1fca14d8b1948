"""What became of a device's turns, in words for its app: nothing here depends on the device's data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_SENT = "sent"


@dataclass(frozen=True, kw_only=True)
class Taken:
    """One contribution.

    Attributes:
      task: its name.
      round: from 1 on.
      epsilon, delta: the guarantee of the whole task, of all its rounds together.
      local_trust: it was a report that is private by itself.
    """

    task: str
    round: int
    epsilon: float
    delta: float
    local_trust: bool = False

    def __str__(self) -> str:
        what = "reported to" if self.local_trust else f"contributed to round {self.round} of"
        return f"{what} task {self.task!r} (ε = {self.epsilon:g}, δ = {self.delta:g} for all of it)"


@dataclass(frozen=True, kw_only=True)
class Learned:
    """The outcome of ``Device.learn``.

    Attributes:
      population: what the device checked in for.
      contributions: those that the enclave accepted, in order.
      reason: why there are no more of them; empty where there are as many as were wanted.
    """

    population: str
    contributions: tuple[Taken, ...]
    reason: str = ""

    def __str__(self) -> str:
        told = [str(one) for one in self.contributions]
        if self.reason:
            told.append(f"did not contribute{' again' if told else ''}: {self.reason}")
        return "; ".join(told)

    def __repr__(self) -> str:
        return f"<Learned in {self.population!r}: {self}>"


def taken(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Taken, ...]:
    """The contributions that were sent between two overviews of a device (``device_runtime.view.overview``)."""
    known = _sent(before)
    return tuple(
        Taken(
            task=one["name"],
            round=one["round"] + 1,
            epsilon=one["task_epsilon"],
            delta=one["task_delta"],
            local_trust=one["local_trust"],
        )
        for key, one in _sent(after).items()
        if key not in known
    )


def why(reason: tuple[str, str]) -> str:
    """Why a device did not take part again, from what its host says."""
    what, line = reason
    words = {"declined": "the device declined", "failed": "the attempt failed", "rests": "the device rests"}
    return f"{words[what]}: {line}" if what in words else line


def _sent(overview: Mapping[str, Any]) -> dict[tuple[str, int], Any]:
    return {(one["task"], one["round"]): one for one in overview["contributions"] if one["state"] == _SENT}
