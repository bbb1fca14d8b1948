"""The privacy report of a task: every number behind a claim, as plain values. ``rendering.py`` renders them.

One report for `odp demo` and `odp privacy report`: what a person reads and what a program reads are the same values.
"""

from __future__ import annotations

import collections
import importlib.metadata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from odp import _validate
from odp.errors import ConfigurationError, PrivacyError
from odp.privacy import accounting, composition, concentrated
from odp.privacy.events import (
    DistributedRelease,
    Event,
    GaussianRelease,
    LocalReport,
    SampledRound,
    Sampling,
    ShuffledReports,
    adjacency_of,
    releases_of,
)
from odp.privacy.ledger import Ledger
from odp.privacy.ledger_entry import Budget, Entry, ReleaseState
from odp.privacy.local_charge import LocalCharge
from odp.privacy.reconstruction import ReconstructionCertificate

_UNIT = (
    "one enrolled device over its whole life in the population;"
    " a person with r devices has group privacy, mu becomes r mu"
)
_FULL_PARTICIPATION = "every eligible device may contribute; no amplification by sampling is claimed"
_NOT_COVERED = (
    "who connected, when and how often, the number of uploads, and padded sizes: server and hosts see connections",
    "availability, and side channels of real enclave hardware",
    "what is computed outside this population's ledger on the same people",
)
_NOT_CHARGED = (
    ("local parameters of a device (its rows, its bias)", "they stay on the device"),
    ("the server's steps, the model, inference", "functions of releases and of public constants"),
    ("public item features, clips, ridges, start values", "functions of the task definition"),
    ("number of contributions of a round", "an observer of connections can count uploads"),
    ("noise of a round that never closed", "it left nothing"),
)
_ASSUMED = (
    "the enclave runs the measured code and keeps its memory secret",
    "encryption, signatures and hashes hold: the guarantee is computational where it rests on them",
    "a device follows its own code; contributions of others cannot weaken a user's guarantee, because "
    "every bound is enforced",
)
_DRAW_ASSUMED = "the enclave's draw of contributions is secret: amplification holds against everybody who cannot see it"
_SHARES_ASSUMED = (
    "of the devices in a sum, at least the declared sharers are honest and add their share of the noise; each keeps its"
    " own bound, and takes part in one session of a round",
    "that follows where at most the declared fraction of the task's roster works for the server; of a "
    "task without a roster it is an assumption about whoever the host lets into a session, and nothing enforces it",
    "the devices that work for the server are fixed before the order of a session is drawn",
)
_SHARES_ACCOUNTANT = f"{concentrated.ACCOUNTANT}; closeness of the sum of shares: Kairouz, Liu, Steinke 2021"
_REPORTS_ASSUMED = (
    "of the reports of a round, at least the stated number come from honest devices that randomise them; the shuffler"
    " keeps their order and their senders secret"
)
_REPORTS_ACCOUNTANT = (
    "basic composition of local reports and of shuffled ones: exact sum of the clones bound (Feldman, McMillan, Talwar"
    " 2021), and privacy blanket (Balle et al. 2019)"
)
_RENYI_ACCOUNTANT = "Renyi differential privacy of all events, shares as discrete Gaussians and caps as a part of delta"
_AUDIT = (
    "record and replay (tier 1): the project's tests remove a user and compare every release with its declared"
    " sensitivity; no canaries were planted in this run"
)
_RECOMPUTE = (
    "the ledger's events, sensitivities and noise are all that epsilon follows from: `Ledger.decode(data).verify()`,"
    " or the few lines of docs/accounting.md"
)
_ADVISED_EXPECTED_LOSS = 0.1


def privacy_report(
    ledger: Ledger,
    task_id: str,
    *,
    planned_rounds: Sequence[Sequence[Event]] | None,
    n_users: int | None,
    task_budget: Budget,
    population_budget: Budget,
    minimum_cohort: int | None,
    tuning_charged: bool = False,
    emulated: bool | None = True,
    cross_check: bool = False,
    hashes: Mapping[str, str] | None = None,
    local: LocalCharge | None = None,
) -> dict[str, Any]:
    """What a task reveals about one user, spent so far or, before its first charge, as planned.

    Args:
        ledger: the population's ledger.
        task_id: the task, as in the ledger.
        planned_rounds: events of every planned round, in order; None where only the ledger is known.
        n_users: distinct enrolled devices, measured; None takes the ledger's own measurement.
        task_budget, population_budget: the limits; epsilon is stated at their deltas.
        minimum_cohort: uploads below which a round closes unreleased; None where it is not known.
        tuning_charged: whether all runs that chose the settings are in the ledger.
        emulated: whether the enclaves are emulated; None where no evidence was read.
        cross_check: also compute epsilon by PLD, RDP, and for replacing one user; takes seconds.
        local: what a report costs its device by itself, where the task has such reports.
        hashes: further values to compare: digests of code, policy, model.

    Returns:
        Values that ``json.dumps`` accepts. ``epsilon.at_tenth`` or ``at_tenfold`` is None where no such delta exists,
        ``epsilon.mu`` where a round was sampled, and what is not known is None. ``epsilon.if_alone`` is that of a
        device all of whose companions work for the server, where noise is added in shares.

    Raises:
        ConfigurationError: no planned rounds, or a number out of range; no plan and no charge of the task.
        PrivacyError: delta times ``n_users`` is 1 or more, or ``task_budget`` is not the one that the ledger enforced.
    """
    charged = [entry for entry in ledger.entries if entry.task_id == task_id and entry.state is ReleaseState.CHARGED]
    if minimum_cohort is not None:
        _validate.integer(low=1, high=10**9, minimum_cohort=minimum_cohort)
    users = max((entry.population_size for entry in ledger.entries), default=1) if n_users is None else n_users
    accounting.check_delta(task_budget.delta, users)
    planned = None if planned_rounds is None else [event for events in planned_rounds for event in events]
    if planned is not None and (not planned or not all(planned_rounds or ())):
        raise ConfigurationError("Expected at least one planned round, and privacy events in each: no release is free")
    if planned is None and not charged:
        raise ConfigurationError(f"Expected the ledger to hold charges of task {task_id}, or a plan to report on")
    if charged and charged[0].task_budget != task_budget:
        raise PrivacyError(
            f"task_budget={task_budget} is not {charged[0].task_budget}, which the ledger holds for {task_id}"
        )
    done = ledger.task_events(task_id)
    basis: Sequence[Event] = done or planned or ()
    delta, adjacency = task_budget.delta, adjacency_of(basis)
    left = ledger.state.remaining(task_id, task_budget=task_budget, population_budget=population_budget)
    draws = sorted({event.sampling for event in basis if isinstance(event, SampledRound)}, key=str)
    shares = any(isinstance(event, DistributedRelease) for event in basis)
    reports = any(isinstance(event, (LocalReport, ShuffledReports)) for event in basis)
    shuffled = any(isinstance(event, ShuffledReports) for event in basis)
    states = {entry.round: entry.state for entry in ledger.entries if entry.task_id == task_id}
    return {
        "format": "odp-privacy-report-2",
        "task_id": task_id,
        "population": ledger.population,
        "unit": _UNIT,
        "adjacency": {"name": adjacency.value, "in_words": adjacency.in_words},
        "sampling": _sampling(draws),
        "status": "spent" if done else "planned",
        "epsilon": {
            "mu": None if draws or shares or reports else accounting.mu(basis),
            "delta": delta,
            "at_delta": accounting.epsilon(basis, delta=delta),
            "at_tenth": _epsilon_or_none(basis, delta / 10),
            "at_tenfold": _epsilon_or_none(basis, delta * 10),
            "of_plan": None if planned is None else accounting.epsilon(planned, delta=delta),
            "if_alone": accounting.epsilon_if_alone(basis, delta=delta) if shares or shuffled else None,
        },
        "local": None if local is None else {**local.to_json(), "in_words": local.in_words},
        "delta_times_users": delta * users,
        "added_delta": accounting.added_delta(basis),
        "graph_delta": accounting.graph_delta(basis),
        "warnings": _warnings(basis, delta, users, population_budget),
        "events": _rows(planned, done),
        "rounds": {
            "planned": None if planned_rounds is None else len(planned_rounds),
            "charged": len(states),
            "released": sum(state is ReleaseState.SEALED for state in states.values()),
            "void": sum(state is ReleaseState.VOID for state in states.values()),
            "unreleased": sum(state is ReleaseState.CHARGED for state in states.values()),
        },
        "cohorts": [_cohort(entry, states[entry.round]) for entry in charged],
        "budget": {
            "task": {"epsilon": task_budget.epsilon, "delta": delta, "left": left.task_epsilon},
            "population": {
                "epsilon": population_budget.epsilon,
                "delta": population_budget.delta,
                "spent": ledger.state.epsilon_of_population(delta=population_budget.delta),
                "left": left.population_epsilon,
                "tasks": len({entry.task_id for entry in ledger.entries}),
            },
        },
        "accountant": {
            "name": _accountant(basis, sampled=bool(draws), shares=shares),
            "discretisation": composition.interval_for(collections.Counter(basis)) if draws and not shares else None,
            "library": f"dp-accounting {importlib.metadata.version('dp-accounting')}",
        },
        "reconstruction": None if local is None else _reconstruction(local.certificate),
        "cross_check": _cross_check(basis, delta) if cross_check else None,
        "users": users,
        "minimum_cohort": minimum_cohort,
        "tuning_charged": tuning_charged,
        "enclaves": "not checked" if emulated is None else "emulated" if emulated else "hardware",
        "assumptions": [
            *_ASSUMED,
            *([_DRAW_ASSUMED] if draws else []),
            *(_SHARES_ASSUMED if shares else ()),
            *([_REPORTS_ASSUMED] if shuffled else []),
        ],
        "not_covered": list(_NOT_COVERED),
        "not_charged": [{"what": what, "why": why} for what, why in _NOT_CHARGED],
        "audit": _AUDIT,
        "hashes": {"task": task_id, **(hashes or {}), "ledger_head": ledger.head.hex()},
        "recompute": _RECOMPUTE,
    }


def report_of_ledger(ledger: Ledger, task_id: str, *, cross_check: bool = False) -> dict[str, Any]:
    """The report from a stored ledger alone: no plan, no minimum, no evidence; the rest as ``privacy_report``.

    ``task_id`` may be its first digits.

    Raises:
        ConfigurationError: none or several tasks of the ledger have such an id.
    """
    matching = sorted({entry.task_id for entry in ledger.entries if entry.task_id.startswith(task_id.lower())})
    if len(matching) != 1:
        listed = ", ".join(sorted({entry.task_id[:12] for entry in ledger.entries})) or "none"
        raise ConfigurationError(
            f"{len(matching)} tasks of the ledger have an id that starts with {task_id!r}; its tasks: {listed}"
        )
    last = next(entry for entry in reversed(ledger.entries) if entry.task_id == matching[0])
    return privacy_report(
        ledger,
        matching[0],
        planned_rounds=None,
        n_users=None,
        task_budget=last.task_budget,
        population_budget=ledger.entries[-1].population_budget,
        minimum_cohort=None,
        emulated=None,
        cross_check=cross_check,
    )


def _sampling(draws: Iterable[Sampling]) -> dict[str, Any]:
    described = [
        {"probability": draw.probability, "population_bound": draw.population_bound, "cap": draw.cap} for draw in draws
    ]
    if not described:
        return {"mode": "full", "in_words": _FULL_PARTICIPATION, "draws": []}
    words = "; ".join(
        f"each of up to {draw['population_bound']} contributions counts with probability {draw['probability']:g}, drawn"
        f" inside the enclave; of a draw beyond {draw['cap']} none counts"
        for draw in described
    )
    return {
        "mode": "enclave_poisson",
        "in_words": f"{words}; all releases of a round share one draw",
        "draws": described,
    }


def _cohort(entry: Entry, state: ReleaseState) -> dict[str, Any]:
    """Uploads of a round; the number of drawn contributions is secret, its expectation is not."""
    sampled = next((event.sampling for event in entry.events if isinstance(event, SampledRound)), None)
    expected = None if sampled is None else sampled.probability * entry.contributions
    return {
        "round": entry.round,
        "state": state.name,
        "uploads": entry.contributions,
        "expected_drawn": expected,
        "epsilon_so_far": entry.task_epsilon,
    }


def _epsilon_or_none(events: Sequence[Event], delta: float) -> float | None:
    try:
        return accounting.epsilon(events, delta=delta)
    except (ConfigurationError, PrivacyError):  # ten delta is no probability, or sampling alone exceeds a tenth of it
        return None


def _reconstruction(certificate: ReconstructionCertificate | None) -> dict[str, object] | None:
    return None if certificate is None else {**certificate.to_json(), "in_words": certificate.in_words}


def _accountant(events: Sequence[Event], *, sampled: bool, shares: bool) -> str:
    rest = [event for event in events if not isinstance(event, (LocalReport, ShuffledReports))]
    if not rest:
        return _REPORTS_ACCOUNTANT
    name = _accountant_of_sums(sampled=sampled, shares=shares)
    return name if len(rest) == len(events) else f"{name}; {_REPORTS_ACCOUNTANT}"


def _accountant_of_sums(*, sampled: bool, shares: bool) -> str:
    if shares:
        return _RENYI_ACCOUNTANT if sampled else _SHARES_ACCOUNTANT
    return accounting.SAMPLED_ACCOUNTANT if sampled else accounting.ACCOUNTANT


def _cross_check(events: Sequence[Event], delta: float) -> dict[str, float | None] | None:
    if any(isinstance(event, (LocalReport, ShuffledReports)) for event in events):
        return None  # the library's accountants take none of them
    if any(isinstance(event, DistributedRelease) for event in events):
        rdp = accounting.epsilon_rdp(events, delta=delta)
        return {"pld": None, "pld_discretisation": None, "rdp": rdp, "replace_one_pld": None}
    return {
        "pld": accounting.epsilon_pld(events, delta=delta),
        "pld_discretisation": 1e-4,
        "rdp": accounting.epsilon_rdp(events, delta=delta),
        "replace_one_pld": accounting.epsilon_replace_one(events, delta=delta),
    }


def _warnings(events: Sequence[Event], delta: float, n_users: int, population_budget: Budget) -> list[str]:
    warnings = []
    for whose, value in (("task", delta), ("population", population_budget.delta)):
        if value * n_users > _ADVISED_EXPECTED_LOSS:
            warnings.append(
                f"delta of the {whose} times users is {value * n_users:.3g}, above {_ADVISED_EXPECTED_LOSS}:"
                f" use {accounting.default_delta(n_users):g} for {n_users} users"
            )
    shares = any(isinstance(event, DistributedRelease) for event in events)
    proved = concentrated.PROVED_UP_TO if shares else accounting.PROVED_UP_TO
    if accounting.epsilon(events, delta=delta) > proved:
        warnings.append(f"epsilon is above {proved:g}: such a guarantee protects nobody")
    return warnings


def _rows(planned: Sequence[Event] | None, done: Sequence[Event]) -> list[dict[str, Any]]:
    """One row per distinct released tensor in the order of the plan; shares refer to the releases so far, or to the
    plan.

    Shares are of mu^2, of sampled rounds before amplification; reports of local randomisers have none.
    """
    flat_plan = [release for event in planned or () for release in _released(event)]
    flat_done = [release for event in done for release in _released(event)]
    total = sum(_square(release) for release in flat_done or flat_plan)
    draws: dict[_Release, Sampling] = {
        release: event.sampling
        for event in (*(planned or ()), *done)
        if isinstance(event, SampledRound)
        for release in releases_of(event)
    }
    in_plan, in_ledger = collections.Counter(flat_plan), collections.Counter(flat_done)
    return [
        _row(
            release,
            draws.get(release),
            planned=None if planned is None else in_plan[release],
            done=in_ledger[release],
            share=(in_ledger[release] if done else in_plan[release]) * _square(release) / total if total else 0.0,
        )
        for release in dict.fromkeys((*flat_plan, *flat_done))
    ]


_Release = GaussianRelease | DistributedRelease | LocalReport | ShuffledReports


def _released(event: Event) -> tuple[_Release, ...]:
    return (event,) if isinstance(event, LocalReport) else releases_of(event)


def _square(release: _Release) -> float:
    return release.mu**2 if isinstance(release, (GaussianRelease, DistributedRelease)) else 0.0


def _row(
    release: _Release,
    draw: Sampling | None,
    *,
    planned: int | None,
    done: int,
    share: float,
) -> dict[str, Any]:
    noised = release if isinstance(release, (GaussianRelease, DistributedRelease)) else None
    return {
        **release.to_json(),
        "noise_multiplier": None if noised is None else noised.noise_multiplier,
        "sampling_probability": None if draw is None else draw.probability,
        "planned": planned,
        "done": done,
        "mu_each": None if noised is None else noised.mu,
        "share_of_mu_squared": share,
    }
