"""Restores an enclave's memory from the records that its host stored.

The population's record decides; the others are believed as far as they fit it. A round whose release was sealed is
over, whatever else the host brings back. A charged round goes on only with the very contributions and the noise that
were charged; otherwise it is void, and its charge stays (rule P31).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from odp.crypto.hpke import HpkeKey
from odp.errors import PrivacyError, StateError
from odp.privacy.matrix.sensitivity import ParticipationRecord
from odp.trust.enclave.identity import EnclaveIdentity
from trusted_aggregator.boundary.interface import Status, parse_order
from trusted_aggregator.enclave.opened_task import OpenedTask
from trusted_aggregator.enclave.state import EnclaveState
from trusted_aggregator.modes.tree.enclave_half import RootRound
from trusted_aggregator.rounds.enclave_half import Round
from trusted_aggregator.state import records as names
from trusted_aggregator.state.ledger_writes import restored_ledger
from trusted_aggregator.state.population import Population
from trusted_aggregator.state.records import SealedRecord, Writes
from trusted_aggregator.state.rollback import HandedOver
from trusted_aggregator.state.sealed_state import PopulationRecord, RoundRecord, TaskRecord, VoidedKey

# Opened where what they belong to is.
_BY_THEMSELVES = (names.ROUND_PREFIX, names.PARTICIPATION_PREFIX, names.LEDGER_PREFIX, names.LEDGER_STATE_PREFIX)

#: (task_sha256, round) to the stored ciphertexts of that round.
Contributions = Callable[[bytes, int], Iterable[bytes]]


def restore(state: EnclaveState, records: Mapping[str, bytes], contributions: Contributions) -> Writes:
    """Fills a new ``state``; returns the records that the host has to store or erase first.

    A round whose secret is erased is as one without records; they have to go, since none of them would open under the
    secret of the task's next round.

    Raises:
      HandedOver: a successor has a population; the secrets of its streams are erased.
      StateError: a record was changed, is missing, or a population was rolled back.
    """
    plaintexts = {
        key: state.sealer.open(key, data)
        for key, data in records.items()
        if not key.startswith((*_BY_THEMSELVES, *names.LATER_PREFIXES))
    }

    def opened(prefix: str) -> list[bytes]:
        return [data for key, data in plaintexts.items() if key.startswith(prefix)]

    populations, holdings, streams = state.populations, state.holdings, state.streams
    handed_over: dict[str, HandedOver] = {}
    for data in opened(names.POPULATION_PREFIX):
        record = PopulationRecord.decode(data, lambda head: restored_ledger(head, state.sealer, records))
        stored_state = names.split_state(records.get(names.ledger_state_key(record.name), b""))[0]
        try:
            populations[record.name] = Population(state.identity, record.name, record=record, stored_state=stored_state)
        except HandedOver as error:
            handed_over[record.name] = error
        holdings.end(record.abandoned)
    tasks = [OpenedTask.restored(TaskRecord.decode(data)) for data in opened(names.TASK_PREFIX)]
    if handed_over:
        # The enclave may have died before its successor's host told it.
        streams.erase([task.sha256 for task in tasks if task.population in handed_over])
        raise next(iter(handed_over.values()))
    for task in tasks:
        if task.population not in populations:
            raise StateError(f"the sealed records lack population {task.population!r}: restore the state folder")
        if not holdings.is_ended(task.sha256):
            holdings.add_task(task)
    erased = list(streams.restore(records, populations, holdings))
    for key, data in records.items():
        if not key.startswith(names.ROUND_PREFIX):
            continue
        sealer = state.keys.sealer(names.task_of(key))
        if sealer is None or not _restored(state, RoundRecord.decode(sealer.open(key, data)), contributions):
            erased += [SealedRecord(name, None) for name in (key, names.noise_beside(key))]
    erased += streams.end(task for task, _ in holdings.lost)
    state.resume()
    changed = [population for population in populations.values() if population.changed]
    return (*(write for population in changed for write in population.writes(state.sealer)), *erased)


def held_round(
    task: OpenedTask, record: RoundRecord, identity: EnclaveIdentity, participation: ParticipationRecord | None
) -> Round:
    """The round of a record, without contributions; ``participation`` is of its stream."""
    order = parse_order(record.order)
    rounds = RootRound if identity.policy.leaves else task.rounds
    held = rounds(
        task_sha256=task.sha256,
        order=order,
        record=record,
        query=task.queries[order.round],
        policy=identity.policy,
        sampling=task.sampling(order.round),
        most=task.most(identity.policy.population_delta, participation),
    )
    held.participation = participation
    return held


def _restored(state: EnclaveState, record: RoundRecord, contributions: Contributions) -> bool:
    """Whether the round is open or charged, and now in memory."""
    order, holdings = parse_order(record.order), state.holdings
    if holdings.is_ended(order.task_sha256):
        return False
    if (task := holdings.task(order.task_sha256)) is None:
        raise StateError(f"the sealed records lack the task of round {order.round}: restore the state folder")
    population = state.populations[task.population]
    standing = population.find(task.id, order.round)
    charge = None if standing is None else standing.charge
    if standing is not None and charge is None:
        return False
    opening = VoidedKey(task.sha256, order.round, HpkeKey.from_bytes(record.hpke_key).public)
    if opening in population.voided:  # its host brings it back
        return False
    try:
        participation = state.streams.participation(task, order.round, population)
    except PrivacyError:
        over = True
    else:
        over = record.policy_sha256 != state.identity.policy.sha256
    if over:
        if charge is not None:
            population.mark_void(task_id=task.id, round=order.round)
            holdings.lost.append((task.sha256, order.round))
        return False
    restored = held_round(task, record, state.identity, participation)
    restored.resubmit(contributions(task.sha256, order.round))
    if charge is not None:
        restored.restore_charge(charge.contributions, charge.id_set_sha256)
        as_charged = (charge.contributions, charge.id_set_sha256, charge.noise_id)
        if (*restored.freeze(), record.noise_id) != as_charged:
            restored.erase()
            population.mark_void(task_id=task.id, round=order.round)
            holdings.lost.append((task.sha256, order.round))
            return False
        restored.status = Status.CHARGED
    holdings.add_round(restored)
    return True
