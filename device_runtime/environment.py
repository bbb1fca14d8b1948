"""What an app's device stands on: its store, the key of it, the machine, and the developer's code.

The code is held by two hosts, and its results are shown to the person.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from device_runtime.host.housekeeping import Housekeeping
from device_runtime.inference.shown_results import Notes, ShownResults
from device_runtime.isolated import CallLimits, HandlerFailed, IsolatedHost, Reason, ServiceCode
from device_runtime.isolated.precedence import Precedence
from device_runtime.person.conditions import Conditions
from device_runtime.person.limits import Limits
from device_runtime.person.sensors import Sensors
from device_runtime.round.examples import MadeExamples, most_asked
from device_runtime.round.gate import FILE as GATE_FILE, Gate, machine_sensors
from device_runtime.store.keys import DESCRIPTOR, HostKey, host_key, no_keyring, os_keyring
from device_runtime.store.retention import FILE as RETENTION_FILE, Retention
from device_runtime.store.store import Store, store_path
from device_runtime.tasks.local_assignment import Offered
from odp._system.files.private_files import private_folder
from odp._system.files.state_folder import keep_out_of_git, state_errors, write_atomically
from odp.errors import ConfigurationError, DataError, StateError
from odp.isolated import Example, Handler
from odp.transport.logs import Log

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
        self._precedence = Precedence()
        self.private = IsolatedHost(code, limits=limits, accept=accept, say=notes.add, precedence=self._precedence)
        self.results = ShownResults(name, self.private, lambda: open_store(path), say=notes.add, clock=clock)

    def undisturbed(self) -> contextlib.AbstractContextManager[None]:
        """Keeps the handlers that see private data from the store within: an app that waits for it notices none."""
        return self._precedence.taken()

    def keep_examples(self, store: Store, *, population: str, task: str) -> None:
        """Has examples made, in place of earlier ones. Raises HandlerFailed, StateError."""
        made = self.examples(store, population=population, task=task)
        self._precedence.in_turn(store.data(self._name), lambda: self.keep(store, made))

    def made_examples(self) -> MadeExamples:
        """What makes the examples that tasks may ask for, in a time that the limits fix."""
        return MadeExamples(maker=self, code_seconds=self._seconds + _START_SECONDS, precedence=self._precedence)

    def most_asked(self, work: Offered) -> int:
        """The most examples of this service that the task reads."""
        return most_asked(work.definition, service=self._name, type=EXAMPLE)

    def make(self, path: Path, work: Offered) -> Sequence[Example]:
        """Makes examples by the service. Raises HandlerFailed, StateError, after a line on the person's page."""
        with self._notes.errors(), self._open_at(path) as store:
            return self.examples(store, population=work.terms.population, task=work.terms.name)

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


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Which store of the folder is the device's, how it is opened, and what the machine says of itself.

    Attributes:
      name: of the service, in its store and for the person; by default its file's.
      index: of the device, where the folder holds those of several people.
      create: make the store where there is none.
      key_file: holds the key that the store is encrypted under; by default see ``device_runtime.store.keys``.
      keyring: whether a new key may be kept in the operating system's keyring.
      sensors: readings of the device whose store lies at a path; by default this machine's.
      clock: seconds since the epoch.
      isolation: how the service's code is held.
    """

    name: str | None = None
    index: int = 0
    create: bool = True
    key_file: Path | None = None
    keyring: bool = True
    sensors: Callable[[Path], Sensors] = machine_sensors
    clock: Callable[[], float] = time.time
    isolation: Isolation = field(default_factory=Isolation)


#: A store of its own, on the machine that the program runs on.
THIS_MACHINE = Environment()


@dataclass(frozen=True)
class DeviceFolder:
    """A device's folder that is ready to use.

    Attributes:
      path: of the store.
      key: that the store is encrypted under.
      gate: the limits and conditions of a person who set none, and the clock.
      housekeeping: removes rows that were kept for their time.
    """

    path: Path
    key: HostKey
    gate: Gate
    housekeeping: Housekeeping

    @classmethod
    def prepared(
        cls,
        state: Path,
        environment: Environment,
        limits: Limits | None,
        conditions: Conditions | None,
        retention: Retention | None,
    ) -> DeviceFolder:
        """Makes the folder and its store where there are none, stores the settings, and removes rows past their time.

        Settings that are None are those that the folder was last used with.

        Raises:
          StateError: the store cannot be used, was made with another key, or is missing and is not to be made.
        """
        path, clock = store_path(state, environment.index), environment.clock
        if not environment.create and not path.exists():
            raise StateError(f"device store {path} does not exist; check --state and --device")
        with state_errors(state):
            private_folder(state, marker=DESCRIPTOR)
        key = host_key(state, key_file=environment.key_file, ring=os_keyring if environment.keyring else no_keyring)
        Store.open_or_create(path, key=key).close()
        stored_gate = Gate.load(state)
        gate = Gate(
            limits=limits or stored_gate.limits, conditions=conditions or stored_gate.conditions,
            sensors=environment.sensors,
            clock=clock,
        )  # fmt: skip
        retention = retention or Retention.stored(state) or Retention()
        if environment.create:
            keep_out_of_git(state)
            # For the commands of the person, which look at the device from outside of the app.
            write_atomically(state / GATE_FILE, gate.to_json())
            write_atomically(state / RETENTION_FILE, retention.to_json())
        housekeeping = Housekeeping(state, retention, log=Log("devices", stream=io.StringIO()), clock=clock)
        if environment.create:
            housekeeping.step()
        return cls(path, key, gate, housekeeping)
