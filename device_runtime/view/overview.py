"""What a device reports to its own person: data that were read, sent and charged, and whether it would train now.

Everything comes from the device's store. This makes no network call.
"""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from device_runtime.person.conditions import Reading
from device_runtime.person.decisions import Person
from device_runtime.person.ledger import (
    ADJACENCY as OF_ANSWERS,
    MECHANISM,
    Answered,
    Charged,
    Spent,
    TaskTerms,
    recent,
    since,
    spent,
    with_answers,
)
from device_runtime.person.limits import Limits, local_epsilon, require_report_allowed
from device_runtime.round.gate import Gate
from device_runtime.store.app_data import MOST_READ, AppData, services
from device_runtime.store.keyed_ratings import ratings_by_key
from device_runtime.store.keys import at_rest, folder_of
from device_runtime.store.retention import Retention
from device_runtime.store.schema import Participation, State
from device_runtime.store.store import Store
from odp.errors import NotNow, PrivacyError
from odp.models.examples import TABLE
from odp.privacy.adjacency import Adjacency
from odp.privacy.local_charge import LocalCharge

FORMAT = 1


def overview(store: Store, gate: Gate, *, now: float) -> dict[str, Any]:
    """The privacy page of one device, JSON-able. An epsilon of None is infinite; times are seconds since the epoch.

    Raises:
      StateError: the store is damaged.
    """
    return {
        **overview_for_app(store, gate, now=now),
        "examples": store.count_examples(),
        "empty_contributions": store.empty_contributions(),
        "services": {service: _counts(store.data(service)) for service in services(store)},
    }


def overview_for_app(store: Store, gate: Gate, *, now: float) -> dict[str, Any]:
    """What an app is given of ``overview``: no counts of rows, which code that sees private data could set.

    Counting takes as long as there are rows, so nothing is counted here.
    """
    person, terms = store.person(), {task.task_sha256: task for task in store.tasks()}
    limits = person.limits or gate.limits
    charged = store.charged()
    developers = sorted({contribution.terms.developer for contribution in charged})
    return {
        "format": FORMAT,
        "adjacency": Adjacency.ZERO_OUT_USER.value,
        "read": _read(store.ledger(), terms),
        "contributions": _contributions(store.ledger(), terms, limits),
        "local": _local(store.charged(refused=True)),
        "spent": _both(charged, limits, now, store.answers()),
        "answers": [
            {**dataclasses.asdict(answer), "mechanism": MECHANISM, "adjacency": OF_ANSWERS.value}
            for answer in store.answers()
        ],
        "developers": [
            {
                "developer": developer.hex(),
                **_both(
                    [contribution for contribution in charged if contribution.terms.developer == developer], limits, now
                ),
            }
            for developer in developers
        ],
        "limits": dataclasses.asdict(limits),
        "limits_set_by": "host" if person.limits is None else "person",
        "paused_since": person.paused,
        "opted_out_since": person.opted_out,
        "opt_outs": dict(person.opt_outs),
        "at_rest": _protection(store),
        "kept_for_days": _retention(store),
    }


def export(store: Store, gate: Gate, *, now: float) -> dict[str, Any]:
    """All data that the store has about its person, JSON-able: the privacy page, the data, the parameters.

    Left out are the device's secret and seed, which say nothing about the person and would let others act for the
    device, and the bytes of uploads that are queued, which are derived from the data.
    """
    parameters = {task.task_sha256: store.local_parameters(task.task_sha256) for task in store.tasks()}
    return {
        "device_id": store.identity().device_id.hex(),
        "exported": now,
        "privacy": overview(store, gate, now=now),
        "examples": list(store.examples(TABLE).everything()),
        "ratings": [
            {"item": item, "value": value, **({} if name is None else {"id": name})}
            for item, value, name in store.all("SELECT item, value, id FROM ratings ORDER BY item")
        ]
        + [{"item": key, "value": value} for key, value in ratings_by_key(store).items()],
        "local_parameters": [
            {"task": task.hex(), "version": stored[0], "base64": base64.b64encode(stored[1]).decode()}
            for task, stored in parameters.items()
            if stored is not None
        ],
        "services": {service: _everything(store.data(service)) for service in services(store)},
        "assignments": [
            {
                "task": assignment.task_sha256.hex(),
                "round": assignment.round,
                "time": assignment.time,
                "outcome": assignment.outcome,
            }
            for assignment in store.assignments()
        ],
    }


def _protection(store: Store) -> dict[str, str] | None:
    protection = at_rest(folder_of(store.path))
    return None if protection is None else {**dataclasses.asdict(protection), "text": protection.text}


def _retention(store: Store) -> dict[str, float | None] | None:
    retention = Retention.stored(folder_of(store.path))
    return None if retention is None else dataclasses.asdict(retention)


def _counts(data: AppData) -> dict[str, int]:
    """Rows per table of one service."""
    return {
        "events": data.count("events"),
        "examples": data.count("examples"),
        "requests": data.count("requests"),
        "local": data.count("local_data"),
        "downloads": data.count("downloads"),
    }


def _everything(data: AppData) -> dict[str, Any]:
    """All rows of one service; bytes as base64."""

    def text(value: bytes | None) -> str:
        return base64.b64encode(value or b"").decode()

    events = data.events(most=MOST_READ)
    return {
        "events": [
            {
                "type": event.type,
                "time": event.time,
                "request": event.request,
                **({"base64": text(event.data)} if isinstance(event.data, bytes) else {"data": dict(event.data)}),
            }
            for event in events
        ],
        "examples": list(data.examples.everything()),
        "requests": [dataclasses.asdict(request) for request in data.requests(most=MOST_READ)],
        "local": {key: text(data.get(key)) for key in data.local_keys()},
        "downloads": {key: text(data.downloaded(key)) for key in data.downloaded_keys()},
    }


def explain(
    store: Store, gate: Gate, *, population: str | None = None, task: tuple[TaskTerms, int] | None = None
) -> tuple[Reading, ...]:
    """Whether the device would train now: every condition and limit, met or not.

    ``task`` is a task and the round that would be asked for; without one, the device would train if it would in one of
    the tasks that it knows, or knows none yet and would ask.
    """
    person = store.person()
    readings = [
        Reading("pause", person.paused is None, "not paused", "paused" if person.paused is not None else "not paused"),
        _opt_out(person, None if task is None else task[0]),
    ]
    if task is not None:
        readings += _of_task(store, gate, *task)
    else:
        if population is not None:
            readings.append(_population(person, population))
        readings.append(_known_tasks(store, gate, population))
    return (*readings, *gate.readings(store))


def _of_task(store: Store, gate: Gate, terms: TaskTerms, round: int) -> list[Reading]:
    """The terms of a task and the person's limits, for one round of it."""
    person, key = store.person(), (terms.task_sha256, round)
    earlier = store.participation(*key)
    done = earlier is not None and (earlier.state is not State.PREPARED or earlier.sealed is None)
    limits = person.limits or gate.limits
    return [
        _population(person, terms.population),
        Reading(
            "round",
            round < len(terms.rounds) and not done,
            "a round that is open to this device",
            "the task has no round left" if round >= len(terms.rounds) else "settled" if done else f"round {round}",
        ),
        _tried(
            "limits",
            "within them",
            f"{terms.name!r} is within the limits",
            lambda: limits.check(
                terms,
                round=min(round, len(terms.rounds) - 1),
                past=store.charged(but=key),
                answered=store.answers(),
                now=gate.clock(),
            ),
        ),
        *(
            [
                _tried(
                    "reports",
                    "one more report is allowed",
                    terms.local.in_words,
                    lambda: require_report_allowed(terms, store.charged(but=key, refused=True), limits),
                )
            ]
            if terms.local is not None
            else []
        ),
    ]


def _known_tasks(store: Store, gate: Gate, population: str | None) -> Reading:
    """Whether some known task has nothing of its own that stops the device from training."""
    person, verdicts, would = store.person(), [], False
    for terms in store.tasks():
        if population is not None and terms.population != population:
            continue
        findings = [_opt_out(person, terms), *_of_task(store, gate, terms, next_round(store, terms))]
        unmet = next((finding for finding in findings if not finding.met), None)
        would = would or unmet is None
        verdicts.append(f"{terms.name}: {'yes' if unmet is None else unmet.read}")
    return Reading(
        "tasks", would or not verdicts, "a task that it would train", "; ".join(verdicts) or "no task is known yet"
    )


def _population(person: Person, population: str) -> Reading:
    return _tried("population", "an allowed one", population, lambda: person.check_in(population), only="population")


def _opt_out(person: Person, terms: TaskTerms | None) -> Reading:
    this = terms is not None and person.opted_out_of(terms)
    return Reading(
        "opt-out",
        person.opted_out is None and not this,
        "not opted out",
        _opted_out(person.opted_out is not None, this),
    )


def next_round(store: Store, terms: TaskTerms) -> int:
    """The round that the device would take part in next: one that is still to be sent, or the first that is not
    settled.
    """
    task_lines = [line for line in store.ledger() if line.task_sha256 == terms.task_sha256]
    queued = [line.round for line in task_lines if line.state is State.PREPARED and line.sealed is not None]
    if queued:
        return queued[-1]
    return max([store.offered(terms.task_sha256), *(line.round + 1 for line in task_lines)])


def _opted_out(all_of_them: bool, this: bool) -> str:
    if all_of_them:
        return "opted out of everything"
    return "opted out of this task" if this else "not opted out"


def _tried(name: str, wanted: str, well: str, check: Callable[[], None], *, only: str | None = None) -> Reading:
    try:
        check()
    except NotNow as error:
        if only is None or only in error.names:
            return Reading(name, False, wanted, str(error))
    except PrivacyError as error:
        return Reading(name, False, wanted, str(error))
    return Reading(name, True, wanted, well)


def _read(ledger: Iterable[Participation], terms: dict[bytes, TaskTerms]) -> list[dict[str, Any]]:
    """Tables that were read, by task: the number of rounds, the columns, and what the task does with them."""
    rounds: dict[tuple[str, str], int] = {}
    latest: dict[tuple[str, str], TaskTerms] = {}
    for line in ledger:
        task_terms = terms[line.task_sha256]
        for table in task_terms.tables:
            rounds[table, task_terms.name] = rounds.get((table, task_terms.name), 0) + 1
            latest[table, task_terms.name] = task_terms
    return [
        {
            "table": table,
            "task": task,
            "rounds": count,
            "columns": list(latest[table, task].columns),
            "program": latest[table, task].runs_program,
            "local_trust": latest[table, task].local_trust,
            "epsilon": latest[table, task].epsilon,
            "delta": latest[table, task].delta,
        }
        for (table, task), count in sorted(rounds.items())
    ]


def _contributions(
    ledger: Iterable[Participation], terms: dict[bytes, TaskTerms], limits: Limits
) -> list[dict[str, Any]]:
    contributions, so_far = [], []
    for line in ledger:
        task = terms[line.task_sha256]
        if line.state is not State.REFUSED:
            so_far.append(Charged(task, line.round, line.time))
        charges = [event.to_json() for event in task.rounds[line.round]]
        contributions.append(
            {
                "task": line.task_sha256.hex(),
                "name": task.name,
                "population": task.population,
                "developer": task.developer.hex(),
                "tables": list(task.tables),
                "round": line.round,
                "time": line.time,
                "state": _state(line),
                "refusal": None if line.refusal is None else line.refusal.name,
                "policy_sha256": line.policy_sha256.hex(),
                "image_digest": line.image_digest,
                "record": line.record.hex(),
                "charged": line.state is not State.REFUSED,
                "charges": charges,
                "local": None if task.local is None else task.local.to_json(),
                "local_trust": task.local_trust,
                "task_epsilon": line.epsilon,
                "task_delta": line.delta,
                "so_far": _numbers(spent(so_far, delta=limits.delta)),
            }
        )
    return contributions


def _state(line: Participation) -> str:
    if line.state is State.PREPARED:
        return "queued" if line.sealed is not None else "cancelled"
    return str(line.state.value).lower()


def _both(charged: list[Charged], limits: Limits, now: float, answered: Sequence[Answered] = ()) -> dict[str, Any]:
    return {
        "total": _numbers(with_answers(spent(charged, delta=limits.delta), answered)),
        "30_days": _numbers(
            with_answers(spent(since(charged, now=now), delta=limits.delta), recent(answered, now=now))
        ),
    }


def _local(uploads: list[Charged]) -> dict[str, Any]:
    """What reports that are private by themselves cost together, and those of each task."""
    reports = [upload for upload in uploads if upload.terms.local is not None]
    sent: dict[bytes, list[Charged]] = {}
    for report in reports:
        sent.setdefault(report.terms.task_sha256, []).append(report)
    return {
        "adjacency": LocalCharge.adjacency.value,
        "reports": len(reports),
        "epsilon": local_epsilon(reports),
        "tasks": [_reports_of(task_reports[0].terms, len(task_reports)) for task_reports in sent.values()],
    }


def _reports_of(terms: TaskTerms, sent: int) -> dict[str, Any]:
    charge = terms.local
    assert charge is not None
    certificate = charge.certificate
    return {
        "task": terms.task_sha256.hex(),
        "name": terms.name,
        "sent": sent,
        **charge.to_json(),
        "in_words": charge.in_words,
        "certificate": None if certificate is None else certificate.in_words,
    }


def _numbers(value: Spent) -> dict[str, float | None]:
    return {"epsilon": value.epsilon if math.isfinite(value.epsilon) else None, "delta": value.delta}
