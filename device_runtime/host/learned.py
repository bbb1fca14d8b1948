"""What becomes of a device's turns, in words for its app: nothing here depends on the device's data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from device_runtime.store.schema import State
from device_runtime.store.store import Store
from odp.errors import OdpError

#: How often a host is asked whether it has ended; a look at the store as well opens its file.
_SLICE_SECONDS, _LOOK_SECONDS = 0.2, 1.0
#: The kind of reason of a host that only waits for the server: news after some looks, since each round has such a gap.
_IDLE, _IDLE_LOOKS = "idle", 5


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
        tasks: dict[tuple[str, float, float, bool], list[int]] = {}
        for contribution in self.contributions:
            tasks.setdefault(
                (contribution.task, contribution.epsilon, contribution.delta, contribution.local_trust), []
            ).append(contribution.round)
        sentences = [_sentence(*task, rounds=rounds) for task, rounds in tasks.items()]
        if self.reason:
            sentences.append(f"did not contribute{' again' if sentences else ''}: {self.reason}")
        return "; ".join(sentences)

    def __repr__(self) -> str:
        return f"<Learned in {self.population!r}: {self}>"


def _sentence(task: str, epsilon: float, delta: float, local_trust: bool, *, rounds: Sequence[int]) -> str:
    """The contributions to one task."""
    listed = f"round {rounds[0]}" if len(rounds) == 1 else f"{len(rounds)} rounds, {rounds[0]} to {rounds[-1]},"
    what = f"reported {len(rounds)} times to" if local_trust else f"contributed to {listed} of"
    return f"{what} task {task!r} (ε = {epsilon:g}, δ = {delta:g} for all of it)"


def contributions_of(open_store: Callable[[], Store]) -> dict[tuple[bytes, int], Taken]:
    """The contributions that a device's ledger has as sent, in order, by task and round.

    Only the ledger is read: how long that takes does not depend on the device's data.
    """
    with open_store() as store:
        terms, ledger = {each.task_sha256: each for each in store.tasks()}, store.ledger()
    return {
        (line.task_sha256, line.round): Taken(
            task=terms[line.task_sha256].name,
            round=line.round + 1,
            epsilon=line.epsilon,
            delta=line.delta,
            local_trust=terms[line.task_sha256].local_trust,
        )
        for line in ledger
        if line.state is State.SENT
    }


def outcome_of(population: str, contributions: tuple[Taken, ...], ended: Host, *, wanted: int) -> Learned:
    """The outcome of a host that has ended. Raises its outage where it made no contribution."""
    if len(contributions) >= wanted:
        return Learned(population=population, contributions=contributions)
    if ended.outage is None:
        return Learned(population=population, contributions=contributions, reason=why(ended.reason))
    if not contributions:
        raise ended.outage
    return Learned(population=population, contributions=contributions, reason=str(ended.outage))


def why(reason: tuple[str, str]) -> str:
    """Why a device did not take part again, from what its host says."""
    what, line = reason
    words = {"declined": "the device declined", "failed": "the attempt failed", "rests": "the device rests"}
    return f"{words[what]}: {line}" if what in words else line


class Host(Protocol):
    """``device_runtime.host.program.Running`` is one."""

    @property
    def reason(self) -> tuple[str, str]:
        """Why a device last did not take part: a kind and a line."""

    @property
    def outage(self) -> OdpError | None:
        """What made a service unusable when the host last looked."""

    def join(self, timeout: float | None = None) -> bool:
        """Whether it has ended within that many seconds."""


def wait_for(
    host: Host, say: Callable[[str], None] | None, contributions: Callable[[], Mapping[tuple[bytes, int], Taken]]
) -> None:
    """Waits in slices until a host has ended, so that Ctrl-C is handled after one slice.

    Args:
      host: of one device.
      say: gets a line for each contribution, for each new reason why there is none, and for each new outage; None gets
        nothing.
      contributions: that the device made so far, as ``device_runtime.host.learned.contributions_of`` reads them.

    Raises whatever ended the host.
    """
    if say is None:
        while not host.join(_SLICE_SECONDS):
            pass
        return
    before, reason, ended = contributions(), (_IDLE, ""), False
    idle, outage = 0, ""
    while not ended:
        ended = host.join(_LOOK_SECONDS)
        now = contributions()
        for key in (key for key in now if key not in before):
            say(f"contributed to round {now[key].round} of task {now[key].task!r}")
        before = now
        if host.reason != reason and host.reason[0] != _IDLE:
            say(why(host.reason))
        reason = host.reason
        idle = idle + 1 if reason[0] == _IDLE and reason[1] else 0
        if idle == _IDLE_LOOKS and not ended:
            say(f"{why(reason)}; the device waits for one")
        if (trouble := str(host.outage or "")) != outage and trouble and not ended:
            say(f"{trouble}; the device tries again")
        outage = trouble
