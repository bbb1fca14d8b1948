"""Whose a population is: who may found it and change its charter, the end of its tasks, and its ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from odp.crypto import domains
from odp.errors import PrivacyError
from odp.signed.charter import Charter, charter_sha256, check_founding, check_succession, open_charter
from odp.signed.task import open_task, task_sha256
from odp.trust.enclave.identity import EnclaveIdentity
from odp.v1 import aggregator_enclave_pb2, aggregator_pb2, population_pb2
from trusted_aggregator.boundary import wire
from trusted_aggregator.boundary.interface import open_abandon_order
from trusted_aggregator.enclave.state import EnclaveState
from trusted_aggregator.state.limits import MOST_CHANGES, MOST_POPULATIONS
from trusted_aggregator.state.population import Population


class Owners:
    """Calls of those who own populations. Thread-safe."""

    def __init__(self, state: EnclaveState) -> None:
        self._state = state
        # How often each charter changed since the launch.
        self._changes: Counter[str] = Counter()

    def set_charter(self, signed: population_pb2.SignedCharter) -> aggregator_enclave_pb2.RecordWrites:
        """Founds a population, or changes its owners; tasks of former owners end. Idempotent.

        Raises:
            ConfigurationError: the charter is malformed.
            SignatureError, PrivacyError: it is not signed by those who may, does not follow the one in force, or a
                limit is reached.
            StateError: the population was rolled back.
        """
        charter, state = open_charter(signed), self._state
        with state.lock:
            population = state.populations.get(charter.population)
            if population is not None and population.record.charter_bytes:
                current = population_pb2.SignedCharter.FromString(population.record.charter_bytes)
                if charter_sha256(current) == charter.sha256:
                    return wire.written(population.writes(state.sealer) if population.is_pending else ())
            state.require_holder()
            population = changeable(charter, state.populations, state.identity, changes=self._changes)
            tasks = state.holdings.tasks_of(charter.population)
            ended = [task.sha256 for task in tasks if task.developer_key not in charter.owners]
            population.set_charter(charter, abandoned=ended, voided=state.openings(ended))
            state.populations[charter.population] = population
            self._changes[charter.population] += 1
            return wire.written(state.end(ended, population))

    def charter(self, request: aggregator_enclave_pb2.AskCharter) -> population_pb2.SignedCharter:
        """The charter in force of a population; empty where it is not founded."""
        with self._state.lock:
            population = self._state.populations.get(request.population)
            charter = None if population is None else population.charter
            return population_pb2.SignedCharter() if charter is None else charter.signed

    def abandon(self, request: aggregator_pb2.AbandonTaskRequest) -> aggregator_enclave_pb2.RecordWrites:
        """Ends a task by an order of an owner of its population: contributions, sums and noise are erased. Idempotent.

        What it has charged stays charged; nothing of it is accepted or released any more.

        Raises:
            SignatureError, ConfigurationError: task or order are not valid, or not of one task.
            PrivacyError: the signer does not own the population, or too many tasks were ended and this one is not held.
            StateError: the population was rolled back.
        """
        definition, task = open_task(request.task), task_sha256(request.task)
        open_abandon_order(request.order, task_sha256=task, signature=request.signature)
        state = self._state
        with state.lock:
            population = state.population(definition.population)
            if task in population.record.abandoned:
                return wire.written(population.writes(state.sealer) if population.is_pending else ())
            population.require_owner(request.signature.key, of=f"the end of task {definition.name!r}")
            is_held = state.holdings.task(task) is not None
            population.abandon(task, held=is_held, voided=state.openings([task]))
            return wire.written(state.end([task], population))

    def ledger(self, request: aggregator_pb2.GetLedgerRequest) -> aggregator_pb2.GetLedgerResponse:
        """Head of the population's ledger and its signature; empty for an unknown task.

        The host has the entries, and the head stands for them.

        Raises StateError where another copy of this enclave has charged since.
        """
        state = self._state
        with state.lock:
            if (task := state.holdings.task(request.task_sha256)) is None:
                populations = state.populations.values()
                population = next((each for each in populations if each.knows(request.task_sha256)), None)
            else:
                population = state.populations[task.population]
            if population is None:
                return aggregator_pb2.GetLedgerResponse()
            data = population.ledger.head.encode()
            signature = state.identity.signing.sign(domains.LEDGER, data)
            return aggregator_pb2.GetLedgerResponse(head=data, signature=signature)


def changeable(
    charter: Charter, populations: Mapping[str, Population], identity: EnclaveIdentity, *, changes: Mapping[str, int]
) -> Population:
    """The population that ``charter`` founds or changes, after all checks.

    ``changes`` counts the charters of each population since the enclave was launched.

    Raises:
        SignatureError, PrivacyError: it is not signed by those who may, does not follow the charter in force, founds
            what was founded before, or a limit is reached.
        StateError: a population of this name was founded on this platform, and its record is lost.
    """
    population = populations.get(charter.population)
    if population is None or population.charter is None:
        check_founding(charter, identity.policy.founder_keys)
        if len(populations) >= MOST_POPULATIONS:
            raise PrivacyError(
                f"population {charter.population!r} cannot be founded: this enclave has {MOST_POPULATIONS}, the most "
                "that it takes; found it at another aggregator"
            )
        return Population(identity, charter.population) if population is None else population
    if not charter.sequence:
        raise PrivacyError(
            f"population {charter.population!r} was founded before, by another charter: take another population, or "
            "have its owners add your key"
        )
    check_succession(charter, population.charter)
    if changes.get(charter.population, 0) >= MOST_CHANGES:
        raise PrivacyError(
            f"population {charter.population!r} changed its charter {MOST_CHANGES} times since the enclave started, "
            "the most that its event log takes: start the enclave again"
        )
    return population
