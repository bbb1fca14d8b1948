"""The device host as a program: ``start(config)`` runs it in this process, ``run(config)`` until a signal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from device_runtime.host.counts import RoundCounts
from device_runtime.host.ending import FleetOptions
from device_runtime.host.filled_items import UsedCatalogue, check_of, no_check
from device_runtime.host.fleet import Fleet
from device_runtime.host.housekeeping import Housekeeping
from device_runtime.host.pacing import CheckInPlan
from device_runtime.host.provision import provision
from device_runtime.isolated.training import IsolatedTrainer
from device_runtime.network.addresses import PinnedAddresses
from device_runtime.network.enclaves import Enclaves
from device_runtime.network.services import Services
from device_runtime.person.conditions import Conditions
from device_runtime.person.limits import Limits
from device_runtime.person.sensors import Sensors
from device_runtime.round.admission import Admission, attesters_of
from device_runtime.round.computing_processes import ComputingProcesses
from device_runtime.round.examples import MadeExamples
from device_runtime.round.fixed_times import FixedTimes
from device_runtime.round.gate import FILE as GATE_FILE, Gate, machine_sensors
from device_runtime.round.participation import Participant
from device_runtime.round.verification import FOLDER, Records
from device_runtime.rows.retrieval import Retrievals
from device_runtime.rows.table_cache import TableCache
from device_runtime.store.keys import at_rest, host_key, no_keyring, os_keyring
from device_runtime.store.retention import FILE as RETENTION_FILE, Retention
from device_runtime.tasks.catalogues import FOLDER as CATALOGUES, CatalogueMemory
from device_runtime.tasks.charters import FILE as CHARTERS_FILE, CharterMemory
from odp import _validate
from odp._system.files.state_folder import StateFolder, keep_out_of_git
from odp.crypto.roster import read_roster
from odp.datasets.ratings import Ratings
from odp.errors import ConfigurationError, OdpError
from odp.models.example_columns import ExampleColumns
from odp.transport.backpressure import Patience
from odp.transport.channel import parse_addresses
from odp.transport.logs import Log
from odp.transport.sweeping import stop_event
from odp.trust.enclave.pinned_values import PinnedAddressesOf, PinnedValues
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.log.client import LogMemory
from odp.trust.log.proofs import LogGuard

ROLE = "devices"
#: What this host's devices saw of the transparency log.
LOG_FILE = "log-view.json"
#: Whole tables that were downloaded.
TABLES = "tables"
#: When the host does what next.
_PLAN_FILE = "jobs.sqlite"

_POLL_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of a device host.

    Attributes:
      state: folder of the devices' stores; one host at a time.
      server: ``host:port`` of the developer's server.
      ca: PEM file of the authority of all services' certificates.
      reference_values: JSON file of what this host accepts as an enclave, and where.
      population: what the devices check in for.
      first, count: the devices that this host runs; by default the ``count`` that the given data provide.
      threads: devices that compute and make calls at a time, beside those that wait for their fixed times.
      durable: every step of a device is synced to the disk and survives a power cut; without it, it survives the death
        of the host, which is enough where one host plays thousands of devices, and faster.
      key_file: holds the key that the stores are encrypted under; default: see ``device_runtime.store.keys``.
      keyring: whether a new key may be kept in the operating system's keyring.
      retention: how long rows and records stay.
      limits: for devices whose person set none of their own.
      conditions: when devices may train; by default at any time.
      roster: file of the identities that may be clients of SecAgg+ sessions; without it any may, but for tasks that
        name a roster, which the devices then decline. Issuers of tokens may take devices by it, too.
      until_finished: end when the task has no round left.
      end_after: seconds after which the host ends; with ``until_finished`` that is an error. 0 is one look at what the
        server offers.
      most_contributions: the host ends after that many.
      keep_running: go on where a service's certificate, evidence or log is refused again and again, instead of ending.
      allow_private_addresses: names of services may lead to private and other addresses that are not public.

    Raises:
      ConfigurationError: a value is out of range.
    """

    state: Path
    server: str
    ca: Path
    reference_values: Path
    population: str
    first: int = 0
    count: int | None = None
    threads: int = 3
    durable: bool = True
    key_file: Path | None = None
    keyring: bool = True
    retention: Retention = field(default_factory=Retention)
    limits: Limits = field(default_factory=Limits)
    conditions: Conditions = field(default_factory=Conditions)
    roster: Path | None = None
    until_finished: bool = False
    end_after: float | None = None
    most_contributions: int | None = None
    keep_running: bool = False
    allow_private_addresses: bool = False

    def __post_init__(self) -> None:
        parse_addresses(self.server)
        _validate.identifier(population=self.population)
        _validate.integer(low=0, high=2**31, first=self.first)
        if self.count is not None:
            _validate.integer(low=1, high=2**20, count=self.count)
        _validate.integer(low=1, high=64, threads=self.threads)
        if self.end_after is not None:
            _validate.within(low=0.0, high=1e9, end_after=self.end_after)
        if self.most_contributions is not None:
            _validate.integer(low=1, high=2**31, most_contributions=self.most_contributions)


class Running:
    """A device host that is running. It listens on nothing, so it has no address."""

    def __init__(
        self,
        fleet: Fleet,
        stop: threading.Event,
        services: Services,
        state: StateFolder,
        plan: CheckInPlan,
        programs: Sequence[IsolatedTrainer | ComputingProcesses],
    ) -> None:
        self._fleet, self._stop, self._services, self._state = fleet, stop, services, state
        self._plan, self._programs = plan, programs
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="devices", daemon=True)
        self._thread.start()

    def statistics(self) -> list[RoundCounts]:
        """Counts per round; ``stats.json`` of the state folder has the same numbers."""
        return self._fleet.counts.rounds()

    @property
    def reason(self) -> tuple[str, str]:
        """Why a device last did not take part: "idle", "waits", "rests", "declined" or "failed", and a line."""
        return self._fleet.reason

    @property
    def outage(self) -> OdpError | None:
        """What made a service unusable when the host last looked."""
        return self._fleet.outage

    def wait(self) -> None:
        """Blocks until SIGINT, SIGTERM, ``stop`` or the end of the work. Only the main thread may call it.

        Raises:
          StateError: the state folder became unusable.
          NotNow: the host was to end with its task, and its devices rested for too long, or its time was over.
          AttestationError, CertificateError, TransparencyError: a service or its log was refused again and again;
            nothing was sent to it.
        """
        signalled = stop_event()
        while not self.join(_POLL_SECONDS):
            if signalled.is_set():
                self._stop.set()

    def join(self, timeout: float | None = None) -> bool:
        """Waits until the host has ended; False after ``timeout`` seconds. Raises as ``wait``."""
        self._thread.join(timeout)
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Ends the host after the steps that its devices are in. Idempotent."""
        self._stop.set()
        self.join()

    def _run(self) -> None:
        try:
            self._fleet.run()
        except BaseException as error:  # reported to whoever waits
            self._error = error
        finally:
            for programs in self._programs:
                programs.close()
            self._services.close()
            self._plan.close()
            self._state.close()


def start(
    config: Config,
    *,
    ratings: Ratings | None = None,
    examples: ExampleColumns | None = None,
    log: Log | None = None,
    clock: Callable[[], float] = time.time,
    sensors: Callable[[Path], Sensors] = machine_sensors,
    made_examples: MadeExamples | None = None,
    fixed_times: FixedTimes | None = None,
    housekeeping: Housekeeping | None = None,
) -> Running:
    """Starts a device host in this process.

    Args:
      config: see Config.
      ratings, examples: data to give the devices first, of one kind, one user per device from ``config.first`` on;
        devices that hold them already keep them.
      log: where events go; standard error by default.
      clock: seconds since the epoch.
      sensors: what the device whose store lies at a path can tell about itself; by default this machine's readings.
      made_examples: see Participant.
      fixed_times: see Participant; by default one with the ``threads`` of the configuration.
      housekeeping: of the state folder; by default a new one, which prunes now.

    Raises:
      ConfigurationError: a file is missing or malformed, or there are neither data nor a count.
      StateError: the folder is in use or cannot be used.
    """
    if ratings is not None and examples is not None:
        raise ConfigurationError("Expected ratings or examples for the devices, not both")
    data = ratings if ratings is not None else examples
    count = config.count
    if data is not None:
        count = data.n_users if count is None else count
        if count > data.n_users:
            raise ConfigurationError(f"Expected count={count} to be at most {data.n_users}, the users of the data")
        if count < data.n_users:
            data = data.first_users(count) if isinstance(data, ExampleColumns) else data.select_users(range(count))
    if count is None:
        raise ConfigurationError("Expected count, the number of devices to run, when no data are given")
    stopped = threading.Event()
    events = log if log is not None else Log("devices")
    newest_values = PinnedValues(config.reference_values, log=events)
    reference_values = newest_values()
    roster = None if config.roster is None else read_roster(config.roster)
    if reference_values.log is None:
        events.warning("no_log_required", reference_values=str(config.reference_values))
    pinned = PinnedAddresses(by_role=PinnedAddressesOf(newest_values), allow_private=config.allow_private_addresses)
    services = Services(config.server, config.ca, pinned=pinned, patience=Patience(wait=stopped.wait))
    try:
        vendor = reference_values.emulated_vendor
        attesters = attesters_of(
            emulated_vendor=Path(vendor) if vendor else None, on_roster=roster is not None, clock=clock
        )
        state = StateFolder.open(config.state, ROLE)
        try:
            keep_out_of_git(state.root)
            host_key(state.root, key_file=config.key_file, ring=os_keyring if config.keyring else no_keyring)
            if (protected := at_rest(state.root)) is not None:
                events.event("stores_protected", how=protected.text)
            if data is not None:
                filled = provision(state.root, data, first=config.first, clock=clock)
                events.event("devices_filled", devices=count, new=filled)
            used = check_of(data, log=events) if isinstance(data, Ratings) else no_check
            gate = Gate(limits=config.limits, conditions=config.conditions, sensors=sensors, clock=clock)
            state.write_atomically(GATE_FILE, gate.to_json())
            state.write_atomically(RETENTION_FILE, config.retention.to_json())
            plan = CheckInPlan(
                state.root / _PLAN_FILE, config.population, clock=clock,
                report=lambda what, seconds: events.warning(what, seconds=seconds),
            )  # fmt: skip
            options = FleetOptions(
                population=config.population,
                devices=range(config.first, config.first + count),
                durable=config.durable,
                until_finished=config.until_finished,
                keep_running=config.keep_running,
                end_after=config.end_after,
                most_contributions=config.most_contributions,
            )
            if housekeeping is None:
                housekeeping = Housekeeping(
                    state.root, config.retention, log=events, durable=config.durable, clock=clock
                )
                housekeeping.step()
            trainer = IsolatedTrainer(say=lambda line: events.warning("network_training", reason=line))
            processes = ComputingProcesses()
            fleet = Fleet(
                options,
                state=state,
                participant=Participant(
                    services=services,
                    enclaves=Enclaves(services, newest_values, clock=clock),
                    gate=gate,
                    retrievals=Retrievals.over(
                        services, cache=TableCache(config.state / TABLES), helper_keys=reference_values.helper_keys
                    ),
                    records=Records(config.state / FOLDER, newest_values, clock=clock),
                    log=log_guard(services, reference_values, config.state, clock=clock),
                    charters=charter_memory(reference_values, config.state),
                    catalogues=catalogue_memory(services, config.state, used=used),
                    admission=Admission(services, attesters, clock=clock),
                    roster=roster,
                    made_examples=made_examples,
                    trainer=trainer,
                    fixed_times=FixedTimes(threads=config.threads, stop=stopped)
                    if fixed_times is None
                    else fixed_times,
                    processes=processes,
                    clock=clock,
                ),
                plan=plan,
                housekeeping=housekeeping,
                stop=stopped,
                log=events,
            )
        except BaseException:
            state.close()
            raise
    except BaseException:
        services.close()
        raise
    return Running(fleet, stopped, services, state, plan, (trainer, processes))


def log_guard(
    services: Services, reference_values: ReferenceValues, state: Path, *, clock: Callable[[], float] = time.time
) -> LogGuard | None:
    """Checks assignments and models against the pinned log; None if no log is pinned.

    What was seen of the log lies in the folder ``state``, for the next run too.
    """
    if reference_values.log is None:
        return None
    return LogGuard(LogMemory(reference_values.log, state / LOG_FILE, services.log_hashes), clock=clock)


def charter_memory(reference_values: ReferenceValues, state: Path) -> CharterMemory:
    """The owners of populations: from the reference values, and from the folder ``state``."""
    return CharterMemory(state / CHARTERS_FILE, reference_values.populations)


def catalogue_memory(services: Services, state: Path, *, used: UsedCatalogue = no_check) -> CatalogueMemory:
    """The catalogues of populations, from the folder ``state``; ``used`` is as of ``CatalogueMemory``."""
    return CatalogueMemory(state / CATALOGUES, services.catalogue_steps, used=used)


def run(config: Config, *, ratings: Ratings | None = None, log: Log | None = None) -> None:
    """``start`` and ``wait``: until the work is finished, or SIGINT or SIGTERM. Raises as these two."""
    start(config, ratings=ratings, log=log).wait()
