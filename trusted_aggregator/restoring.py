"""An enclave's memory made again from the records that it had its host store.

The population's record decides; the others are believed as far as they fit it. A round whose release was sealed is
over, whatever else the host brings back. A charged round goes on only with the very contributions and the noise that
were charged; otherwise it is void, and its charge stays (rule P31).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from odp.enclave.identity import EnclaveIdentity
from odp.errors import StateError
from odp.privacy.ledger import ReleaseState
from trusted_aggregator import records as names
from trusted_aggregator.holdings import Holdings
from trusted_aggregator.interface import Status
from trusted_aggregator.opened_task import OpenedTask
from trusted_aggregator.orders import parse_order
from trusted_aggregator.population import Population
from trusted_aggregator.rounds import Round
from trusted_aggregator.sealed_state import PopulationRecord, RoundRecord, Sealer, TaskRecord

#: (task_sha256, round) to the stored ciphertexts of that round.
Contributions = Callable[[bytes, int], Iterable[bytes]]


def restore(
    identity: EnclaveIdentity, sealer: Sealer, records: Mapping[str, bytes], contributions: Contributions
) -> tuple[dict[str, Population], Holdings]:
    """Populations by name, and what is held of them.

    Raises StateError where a record was changed, is missing, or a population was rolled back.
    """
    plaintexts = {
        key: sealer.open(key, data) for key, data in records.items() if not key.startswith(names.LATER_PREFIXES)
    }

    def opened(prefix: str) -> list[bytes]:
        return [data for key, data in plaintexts.items() if key.startswith(prefix)]

    populations: dict[str, Population] = {}
    holdings = Holdings()
    for data in opened(names.POPULATION_PREFIX):
        record = PopulationRecord.decode(data)
        populations[record.name] = Population(identity, record.name, record=record)
        holdings.end(record.abandoned)
    for data in opened(names.TASK_PREFIX):
        task = OpenedTask.restored(TaskRecord.decode(data))
        if task.population not in populations:
            raise StateError(f"the sealed records lack population {task.population!r}: restore the state folder")
        if not holdings.is_ended(task.sha256):
            holdings.add_task(task)
    for data in opened(names.ROUND_PREFIX):
        _restore_round(RoundRecord.decode(data), identity, populations, holdings, contributions)
    return populations, holdings


def held_round(task: OpenedTask, record: RoundRecord, identity: EnclaveIdentity) -> Round:
    """The round of a record, without contributions."""
    order = parse_order(record.order)
    return Round(
        task_sha256=task.sha256,
        order=order,
        record=record,
        query=task.queries[order.round],
        policy=identity.policy,
        sampling=task.sampling,
        most=task.most(identity.policy.population_delta),
    )


def _restore_round(
    record: RoundRecord,
    identity: EnclaveIdentity,
    populations: Mapping[str, Population],
    holdings: Holdings,
    contributions: Contributions,
) -> None:
    order = parse_order(record.order)
    if holdings.is_ended(order.task_sha256):
        return
    task = holdings.task(order.task_sha256)
    if task is None:
        raise StateError(f"the sealed records lack the task of round {order.round}: restore the state folder")
    population = populations[task.population]
    newest = population.find(task.id, order.round)
    if newest is not None and newest.state is not ReleaseState.CHARGED:
        return
    restored = held_round(task, record, identity)
    restored.resubmit(contributions(task.sha256, order.round), identity.hpke)
    if newest is not None:
        as_charged = (newest.contributions, newest.id_set_sha256, newest.noise_id)
        if (*restored.freeze(), record.noise_id) != as_charged:
            restored.erase()
            population.mark_void(task_id=task.id, round=order.round)
            holdings.lost.append((task.sha256, order.round))
            return
        restored.status = Status.CHARGED
    holdings.add_round(restored)
