"""The privacy cost of a person's contributions: epsilon from the list of events, never from a sum of epsilons.

- The unit is the person over all their contributions. Of each task, all rounds between the first and the last one that
  the device contributed to are charged, also those that it missed: the claim is for someone in all of them (rule P33).
- Rounds in which every contribution counts are Gaussian events; over all tasks together they are one Gaussian of
  ``sqrt(sum of mu^2)``, in closed form.
- Where a round's noise is added by devices in shares, that closed form is the one of concentrated differential privacy:
  rho of all events together, Gaussian ones included. That the graph of a session fails is charged to delta.
- A task that draws its contributions at random has no such form, and its accountant takes seconds to load. It is
  charged the (epsilon, delta) that it states for its whole life, once, which its enclave enforces: never too little,
  whatever the number of rounds. These are added to the closed form's (basic composition).
- A release of shuffled reports has no such form either: its task is charged what it states, as one that draws.
- Of a stream, all releases are one charge, which covers any part of it: it counts whole, and once.
- A contribution that was refused was not used and costs nothing. One without an answer may have been used: it counts.
- A noisy answer to an app is a line of its own, out of a budget that the person sets (``best_value.py`` draws them).
  Apps learn nothing else from a device.

Source: privacy rules P6, P12, P33.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from odp.algorithms.computing_time import fixed_seconds
from odp.algorithms.local_seam import RELEASE, LocalReporter
from odp.algorithms.registry import algorithm_for
from odp.algorithms.release import planned_entries
from odp.errors import PrivacyError
from odp.models.trained import has_program
from odp.privacy.accounting import closeness, epsilon_of_mu, epsilon_of_rho, graph_delta
from odp.privacy.adjacency import Adjacency
from odp.privacy.events import DistributedRelease, GaussianRelease, SampledRound
from odp.privacy.ledger_events import LedgerEvent, from_json, joined
from odp.privacy.local_charge import LocalCharge
from odp.privacy.local_events import LocalReport, ShuffledReports
from odp.v1 import common_pb2

MONTH_SECONDS = 30 * 24 * 3600.0
MECHANISM = "randomized_response"
#: Of a locally private answer: any two states of the person's data are neighbours, no data at all included.
ADJACENCY = Adjacency.ANY_TWO_INPUTS


@dataclass(frozen=True, kw_only=True)
class TaskTerms:
    """The costs and conditions of a task, from its verified definition.

    Attributes:
      task_sha256: the task's id.
      name, population: as the developer signed them.
      developer: the developer's public key, 32 bytes.
      tables: the local tables that it reads.
      epsilon, delta: the guarantee over the task's whole life.
      minimum_cohort: a round with fewer contributions is not released.
      rounds: the privacy events of each round.
      columns: of labelled examples, those that it reads, the label last.
      runs_program: whether a program of the developer computes on them.
      local: what a contribution costs by itself (``limits.py``); None where only releases are private.
      local_trust: reports go to the developer's server alone, and no enclave takes part: the task has no cohort. Its
        ``rounds`` are the reports of one device.
      seconds_between: two reports of such a task, at least.
      computing_seconds: what a contribution takes, of a task that is offered; 0 of what the store holds.
    """

    task_sha256: bytes
    name: str
    population: str
    developer: bytes
    tables: tuple[str, ...]
    epsilon: float
    delta: float
    minimum_cohort: int
    rounds: tuple[tuple[LedgerEvent, ...], ...] = field(repr=False)
    columns: tuple[str, ...] = ()
    runs_program: bool = False
    local: LocalCharge | None = None
    local_trust: bool = False
    seconds_between: int = 0
    computing_seconds: float = field(default=0.0, compare=False)

    @classmethod
    def of(cls, definition: common_pb2.TaskDefinition, task_sha256: bytes) -> TaskTerms:
        """The terms of a checked definition; the events are those that its enclave charges."""
        algorithm = algorithm_for(definition)
        charges: tuple[tuple[LedgerEvent, ...], ...]
        if isinstance(algorithm, LocalReporter):
            event = LocalReport(RELEASE, algorithm.local_charge.epsilon)
            charges = ((event,),) * algorithm.local_charge.most
        else:
            charges = tuple(planned_entries(algorithm))
        return dataclasses.replace(
            _terms(definition, task_sha256, charges), computing_seconds=fixed_seconds(definition)
        )

    @property
    def stated(self) -> bool:
        """Whether it is charged what it states: its rounds have no closed form together with those of other tasks."""
        kinds = (SampledRound, ShuffledReports, LocalReport)
        return any(isinstance(event, kinds) for charges in self.rounds for event in charges)

    def charges_json(self) -> str:
        """The events of all rounds, for the store: later versions of the program charge the same events."""
        return json.dumps([[event.to_json() for event in charges] for charges in self.rounds])


@functools.lru_cache(maxsize=16)
def terms_from_store(task_sha256: bytes, definition: bytes, charges: str) -> TaskTerms:
    """The terms that the store holds. Raises ValueError, ConfigurationError or DecodeError if they are damaged."""
    releases = tuple(tuple(from_json(_restated(event)) for event in charged) for charged in json.loads(charges))
    return _terms(common_pb2.TaskDefinition.FromString(definition), task_sha256, releases)


def _restated(event: Any) -> Any:
    """A stored event under the adjacency that enclaves charge.

    Earlier versions named all of them ``add_remove_user``; the same numbers hold for ``zero_out_user``, for every
    mechanism (``odp.privacy.adjacency``).
    """
    if not isinstance(event, dict) or event.get("adjacency") == Adjacency.ANY_TWO_INPUTS.value:
        return event
    if "stream" in event:
        return {**event, "stream": _restated(event["stream"])}
    releases = {"releases": [*map(_restated, event["releases"])]} if "releases" in event else {}
    return {**event, "adjacency": Adjacency.ZERO_OUT_USER.value, **releases}


def _terms(
    definition: common_pb2.TaskDefinition, task_sha256: bytes, charges: tuple[tuple[LedgerEvent, ...], ...]
) -> TaskTerms:
    algorithm = algorithm_for(definition)
    declared = sorted(algorithm.local_data, key=lambda table: table.table)
    return TaskTerms(
        task_sha256=task_sha256,
        name=definition.name,
        population=definition.population,
        developer=definition.developer_key,
        tables=tuple(sorted(algorithm.local_tables)),
        epsilon=definition.privacy.epsilon,
        delta=definition.privacy.delta,
        minimum_cohort=definition.cohort.minimum,
        rounds=charges,
        columns=tuple(name for table in declared if table.features for name in (*table.features, table.label)),
        runs_program=has_program(definition),
        local=algorithm.local_charge,
        local_trust=not algorithm.has_rounds,
        seconds_between=algorithm.seconds_between if isinstance(algorithm, LocalReporter) else 0,
    )


@dataclass(frozen=True)
class Charged:
    """A contribution that was used, or may have been: its task, round and time (seconds since the epoch)."""

    terms: TaskTerms
    round: int
    time: float


@dataclass(frozen=True)
class Spent:
    """A guarantee: (epsilon, delta), for all data of one person or none, by ``zero_out_user``."""

    epsilon: float
    delta: float


def spent(charged: Iterable[Charged], *, delta: float) -> Spent:
    """The cost of all contributions together; (0, ``delta``) without any.

    ``delta`` is that of the closed form; the deltas that sampled tasks state come on top. Epsilon is infinite where
    sampling the noise on computers uses up ``delta``.
    """
    first: dict[bytes, int] = {}
    last: dict[bytes, int] = {}
    tasks: dict[bytes, TaskTerms] = {}
    for contribution in charged:
        key = contribution.terms.task_sha256
        tasks[key] = contribution.terms
        first[key], last[key] = (
            min(first.get(key, contribution.round), contribution.round),
            max(last.get(key, contribution.round), contribution.round),
        )
    events: list[GaussianRelease | DistributedRelease] = []
    stated: list[TaskTerms] = []
    for key, terms in tasks.items():
        if terms.stated:
            stated.append(terms)
            continue
        cost = joined(enumerate(terms.rounds[first[key] : last[key] + 1], first[key]))
        events += [event for event in cost if isinstance(event, (GaussianRelease, DistributedRelease))]
    try:
        epsilon = _closed_form(events, delta=delta) if events else 0.0
    except PrivacyError:
        epsilon = math.inf
    return Spent(
        math.fsum([epsilon, *(terms.epsilon for terms in stated)]),
        math.fsum([delta, *(terms.delta for terms in stated)]),
    )


def _closed_form(events: list[GaussianRelease | DistributedRelease], *, delta: float) -> float:
    square = math.fsum(event.mu**2 for event in events)
    coordinates = sum(event.coordinates for event in events)
    if any(isinstance(event, DistributedRelease) for event in events):
        return epsilon_of_rho(
            0.5 * square, delta=delta, coordinates=coordinates, closeness=closeness(events),
            graph_delta=graph_delta(events),
        )  # fmt: skip
    return epsilon_of_mu(math.sqrt(square), delta=delta, coordinates=coordinates)


def since(charged: Iterable[Charged], *, now: float) -> list[Charged]:
    """Contributions of the last 30 days. One with a time in the future counts: the clock went back."""
    return [contribution for contribution in charged if contribution.time > now - MONTH_SECONDS]


@dataclass(frozen=True, kw_only=True)
class Answered:
    """A line of the ledger: the service, the app, the number of choices, epsilon, and the time (seconds)."""

    service: str
    app: str
    choices: int
    epsilon: float
    time: float


def with_answers(spent: Spent, answered: Iterable[Answered]) -> Spent:
    """Contributions and answers together: epsilons of pure guarantees are added (basic composition)."""
    return Spent(spent.epsilon + total(answered), spent.delta)


def total(answered: Iterable[Answered]) -> float:
    """Epsilon of all answers together."""
    return sum((answer.epsilon for answer in answered), 0.0)


def recent(answered: Iterable[Answered], *, now: float) -> list[Answered]:
    """Answers of the last 30 days; an answer with a time in the future counts."""
    return [answer for answer in answered if answer.time > now - MONTH_SECONDS]
