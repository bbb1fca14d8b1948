"""The settings of an aggregator, of the root of a tree, and of a leaf; and the record of tasks that are idle.

The host notes the time of a server's last call about each task, so that it can erase idle tasks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from odp import _validate
from odp.errors import ConfigurationError
from odp.transport.channel import parse_address
from odp.transport.program_config import ProgramConfig
from odp.transport.sweeping import DAY, SweepClock
from odp.trust.enclave.policy import EnclavePolicy
from trusted_aggregator.host.leaves import GRACE_SECONDS
from trusted_aggregator.host.storage import Storage
from trusted_aggregator.modes.hosting import ModeOptions

#: Days after which a task that no server asks about is forgotten, with its open rounds.
IDLE_DAYS = 30.0

_NOTE_SECONDS = 3600.0
ROLE = "aggregator"


class IdleTasks:
    """Records work on tasks. ``clock`` gives seconds since the epoch, ``monotonic`` seconds that never go back."""

    def __init__(
        self,
        storage: Storage,
        *,
        idle_seconds: float = IDLE_DAYS * DAY,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._storage, self._idle_seconds, self._clock = storage, idle_seconds, clock
        self._sweeps = SweepClock(clock=clock, monotonic=monotonic)
        self._noted: dict[bytes, float] = {}

    def resume(self, tasks: Iterable[bytes]) -> None:
        """Records the start of work on tasks that have no record."""
        for task in tasks:
            self._storage.note_work(task, self._clock(), unless_noted=True)

    def note(self, task: bytes) -> None:
        """Records that a server works on a task; rounded to the hour, since a server calls several times a second."""
        now = self._clock()
        if not 0 <= now - self._noted.get(task, float("-inf")) < _NOTE_SECONDS:
            self._storage.note_work(task, now)
            self._noted[task] = now

    def forget(self, task: bytes) -> None:
        """Drops the record of a task that is over."""
        self._storage.forget_work(task)
        self._noted.pop(task, None)

    def overdue(self) -> list[bytes]:
        """Tasks that no server asked about for too long."""
        return self._storage.idle(self._sweeps.now() - self._idle_seconds)


@dataclass(frozen=True, kw_only=True)
class Config(ProgramConfig):
    """Settings of an aggregator.

    ``platform`` is the folder of the emulated hardware (default: inside ``state``); programs of one machine share it.
    ``modes`` are options of single modes of aggregation. Nothing here touches the noise (rule P23).

    Devices connect to ``listen``; servers order rounds at ``control_listen``, with certificates under the CA.
    ``idle_days`` is how long a task is kept that no server asks about. ``leaves`` are the control listeners of the
    leaves of the tree whose root this is, in the order of their numbers; a round that could close waits
    ``leaf_grace_seconds`` for one that does not answer. With a policy of role "leaf" the program is a leaf itself.
    ``database`` is the URL of a PostgreSQL database for what it stores; default: files in ``state``.
    """

    listen: str = "127.0.0.1:7202"
    control_listen: str = "127.0.0.1:7212"
    idle_days: float = IDLE_DAYS
    platform: Path | None = None
    policy: EnclavePolicy = field(default_factory=lambda: EnclavePolicy(role="aggregator"))
    modes: ModeOptions = field(default_factory=ModeOptions)
    leaves: tuple[str, ...] = ()
    leaf_grace_seconds: float = GRACE_SECONDS
    database: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.policy.role not in (ROLE, "leaf"):
            raise ConfigurationError(f"Expected policy.role={self.policy.role!r} to be {ROLE!r} or 'leaf'")
        if self.policy.role == ROLE and self.policy.leaves != len(self.leaves):
            raise ConfigurationError(
                f"Expected as many leaves as the policy names, {self.policy.leaves}, got {len(self.leaves)}"
            )
        if self.policy.role == "leaf" and self.leaves:
            raise ConfigurationError(
                "Expected no leaves of a leaf: a tree has a root and its leaves, and nothing between"
            )
        _validate.within(low=0.0, high=86_400.0, leaf_grace_seconds=self.leaf_grace_seconds)
        for address in self.leaves:
            parse_address(address)
        _validate.within(low=1.0, high=3650.0, idle_days=self.idle_days)
