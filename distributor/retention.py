"""Which models a distributor deletes by age: those that no open round can need and no device uses any more.

A round trains on the newest version of its task, so that one stays until the version behind the last round is there:
then no round is open. Of a public table, which has no last version, the newest one stays. Everything else of them goes
when nobody asked for it for some days. Versions that newer ones replaced go at once, by their number
(``distributor.enclave``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from odp import _validate

#: Days that a model which nobody asks for is kept.
KEEP_DAYS = 30.0


@dataclass(frozen=True)
class Held:
    """A stored model: ``last`` is the version behind its task's last round, None for a public table.

    ``used`` is when it was published or asked for, in seconds since 1970, to the hour.
    """

    model: bytes
    task: bytes
    version: int
    last: int | None
    used: float


def check_keep_days(keep_days: float) -> None:
    """Raises ConfigurationError unless it is from one day, in which late devices finish, to a century."""
    _validate.within(low=1.0, high=36_525.0, keep_days=keep_days)


def forgettable(held: Iterable[Held], *, now: float, seconds: float) -> tuple[bytes, ...]:
    """The ids of the models without use in the ``seconds`` before ``now`` that no open round can need."""
    models = tuple(held)
    newest: dict[bytes, int] = {}
    for model in models:
        newest[model.task] = max(model.version, newest.get(model.task, 0))

    def free(model: Held) -> bool:
        return model.version < newest[model.task] if model.last is None else newest[model.task] >= model.last

    return tuple(model.model for model in models if now - model.used > seconds and free(model))
