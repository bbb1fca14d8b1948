"""The service of a device inside an app: the developer's on-device code, held by two hosts, and its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from device_runtime.inference.shown_results import Notes, ShownResults
from device_runtime.isolated import CallLimits, HandlerFailed, IsolatedHost, Reason, ServiceCode
from device_runtime.round.examples import most_asked
from device_runtime.round.made_examples import MadeExamples, OpenedTask
from device_runtime.store.store import Store
from odp.errors import ConfigurationError, DataError
from odp.isolated import Example, Handler

#: Events that ``on_training_examples`` yields are of this type; tasks ask for them (``odp.Events(type="example")``).
EXAMPLE = "example"
#: Of the fixed time of ``on_training_examples``, what the start of its process may take.
_START_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Isolation:
    """How the code of a service is held.

    Attributes:
      limits: of every call.
      accept: what the machine may fail to enforce (``odp device doctor``); by default nothing.
    """

    limits: CallLimits = field(default_factory=CallLimits)
    accept: tuple[str, ...] = ()


class OwnService:
    """The service of a device: its handlers in two hosts, and its results.

    Each host runs one call at a time. Those that an app waits for see nothing private and share no host with those that
    do: an app would see in its own waiting how long the private ones take.
    """

    def __init__(
        self,
        code: ServiceCode,
        isolation: Isolation,
        *,
        name: str,
        path: Path,
        open_store: Callable[[Path], Store],
        notes: Notes,
        say: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        limits, accept = isolation.limits, isolation.accept
        self._name, self._open_at, self._notes, self._clock = name, open_store, notes, clock
        self._seconds = limits.seconds
        self.public = IsolatedHost(code, limits=limits, accept=accept, say=say)
        self.private = IsolatedHost(code, limits=limits, accept=accept, say=notes.add)
        self.results = ShownResults(name, self.private, lambda: open_store(path), say=notes.add, clock=clock)

    def made_examples(self) -> MadeExamples:
        """What makes the examples that tasks may ask for, in a time that the limits fix."""
        return MadeExamples(maker=self, code_seconds=self._seconds + _START_SECONDS)

    def most_asked(self, model: OpenedTask) -> int:
        """The most examples of this service that the task reads."""
        return most_asked(model.definition, service=self._name, type=EXAMPLE)

    def make(self, path: Path, model: OpenedTask) -> Sequence[Example]:
        """Makes examples by the service. Raises HandlerFailed, StateError, after a line on the person's page."""
        with self._notes.errors(), self._open_at(path) as store:
            return self.examples(store, population=model.terms.population, task=model.terms.name)

    def keep(self, store: Store, made: Sequence[Example]) -> None:
        """Puts them in the place of earlier ones. Raises as ``make``."""
        data = store.data(self._name)
        with self._notes.errors():
            try:
                data.replace_events(EXAMPLE, [example.columns for example in made], time=self._clock())
            except (DataError, ConfigurationError):
                # What was too large, or no name, is private.
                raise HandlerFailed(Handler.ON_TRAINING_EXAMPLES, Reason.NOT_STORED) from None

    def examples(self, store: Store, *, population: str, task: str) -> Sequence[Example]:
        """What ``on_training_examples`` yields. Raises HandlerFailed, StateError."""
        return self.private.training_examples(
            store.data(self._name), population=population, task=task, now=self._clock()
        )

    def close(self) -> None:
        """Ends the processes; waits for a call that is under way."""
        self.results.close()
        self.public.close()
        self.private.close()
