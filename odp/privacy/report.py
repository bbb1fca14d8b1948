"""The privacy report of a task: every number that a claim rests on, as plain values and as text made from them."""

from __future__ import annotations

import collections
import importlib.metadata
from collections.abc import Sequence
from typing import Any

from odp import _validate
from odp.errors import ConfigurationError, PrivacyError
from odp.privacy import accounting
from odp.privacy.events import ADJACENCY, GaussianRelease
from odp.privacy.ledger import Budget, Ledger, ReleaseState

_UNIT = (
    "one enrolled device over its whole life in the population;"
    " a person with r devices has group privacy, mu becomes r mu"
)
_ADJACENCY_IN_WORDS = "two populations that differ by all contributions of one user, absent from one of them"
_SAMPLING = "every eligible device may contribute; no amplification by sampling is claimed"
_NOT_COVERED = (
    "who connected, when and how often, the number of uploads, and padded sizes: server and hosts see connections",
    "availability, and side channels of real enclave hardware",
    "what is computed outside this population's ledger on the same people",
)
_ADVISED_EXPECTED_LOSS = 0.1


def privacy_report(
    ledger: Ledger,
    task_id: str,
    *,
    planned_rounds: Sequence[Sequence[GaussianRelease]],
    n_users: int,
    task_budget: Budget,
    population_budget: Budget,
    minimum_cohort: int,
    tuning_charged: bool = False,
    emulated: bool = True,
    cross_check: bool = False,
) -> dict[str, Any]:
    """What a task reveals about one user, spent so far or, before its first charge, as planned.

    Args:
        ledger: the population's ledger.
        task_id: the task, as in the ledger.
        planned_rounds: events of every planned round, in order.
        n_users: distinct enrolled devices, measured.
        task_budget, population_budget: the limits; epsilon is stated at their deltas.
        minimum_cohort: uploads below which a round closes unreleased.
        tuning_charged: whether all runs that chose the settings are in the ledger.
        emulated: whether the enclaves are emulated.
        cross_check: also compute epsilon by PLD, RDP, and for replacing one user; takes seconds.

    Returns:
        Values that ``json.dumps`` accepts. ``epsilon.at_tenth`` or ``at_tenfold`` is None where no such delta exists.

    Raises:
        ConfigurationError: no planned rounds, or a number out of range.
        PrivacyError: delta times ``n_users`` is 1 or more, or ``task_budget`` is not the one that the ledger enforced.
    """
    _validate.integer(low=1, high=10**9, minimum_cohort=minimum_cohort)
    accounting.check_delta(task_budget.delta, n_users)
    planned = [event for events in planned_rounds for event in events]
    if not planned or not all(planned_rounds):
        raise ConfigurationError("Expected at least one planned round, and privacy events in each: no release is free")
    recorded = next((entry for entry in ledger.entries if entry.task_id == task_id), None)
    if recorded is not None and recorded.task_budget != task_budget:
        raise PrivacyError(
            f"task_budget={task_budget} is not {recorded.task_budget}, which the ledger holds for {task_id}"
        )
    done = ledger.task_events(task_id)
    basis: Sequence[GaussianRelease] = done or planned
    delta = task_budget.delta
    states = {entry.round: entry.state for entry in ledger.entries if entry.task_id == task_id}
    left = ledger.remaining(task_id, task_budget=task_budget, population_budget=population_budget)
    return {
        "format": "odp-privacy-report-1",
        "task_id": task_id,
        "population": ledger.population,
        "unit": _UNIT,
        "adjacency": {"name": ADJACENCY, "in_words": _ADJACENCY_IN_WORDS},
        "sampling": _SAMPLING,
        "status": "spent" if done else "planned",
        "epsilon": {
            "mu": accounting.mu(basis),
            "delta": delta,
            "at_delta": accounting.epsilon(basis, delta=delta),
            "at_tenth": _epsilon_or_none(basis, delta / 10),
            "at_tenfold": _epsilon_or_none(basis, delta * 10),
            "of_plan": accounting.epsilon(planned, delta=delta),
        },
        "delta_times_users": delta * n_users,
        "added_delta": accounting.added_delta(basis),
        "warnings": _warnings(basis, delta, n_users, population_budget),
        "events": _rows(planned, done),
        "rounds": {
            "planned": len(planned_rounds),
            "charged": len(states),
            "released": sum(state is ReleaseState.SEALED for state in states.values()),
            "void": sum(state is ReleaseState.VOID for state in states.values()),
        },
        "budget": {
            "task": {"epsilon": task_budget.epsilon, "delta": delta, "left": left.task_epsilon},
            "population": {
                "epsilon": population_budget.epsilon,
                "delta": population_budget.delta,
                "spent": ledger.epsilon_of_population(delta=population_budget.delta),
                "left": left.population_epsilon,
            },
        },
        "accountant": {
            "name": accounting.ACCOUNTANT,
            "discretisation": None,
            "cross_check_library": f"dp-accounting {importlib.metadata.version('dp-accounting')}",
        },
        "cross_check": _cross_check(basis, delta) if cross_check else None,
        "users": n_users,
        "minimum_cohort": minimum_cohort,
        "tuning_charged": tuning_charged,
        "enclaves": "emulated" if emulated else "hardware",
        "not_covered": list(_NOT_COVERED),
        "ledger_head": ledger.head.hex(),
    }


def _epsilon_or_none(events: Sequence[GaussianRelease], delta: float) -> float | None:
    try:
        return accounting.epsilon(events, delta=delta)
    except (ConfigurationError, PrivacyError):  # ten delta is no probability, or sampling alone exceeds a tenth of it
        return None


def _cross_check(events: Sequence[GaussianRelease], delta: float) -> dict[str, float]:
    return {
        "pld": accounting.epsilon_pld(events, delta=delta),
        "pld_discretisation": 1e-4,
        "rdp": accounting.epsilon_rdp(events, delta=delta),
        "replace_one_pld": accounting.epsilon_replace_one(events, delta=delta),
    }


def _warnings(events: Sequence[GaussianRelease], delta: float, n_users: int, population_budget: Budget) -> list[str]:
    found = []
    for whose, value in (("task", delta), ("population", population_budget.delta)):
        if value * n_users > _ADVISED_EXPECTED_LOSS:
            found.append(
                f"delta of the {whose} times users is {value * n_users:.3g}, above {_ADVISED_EXPECTED_LOSS}:"
                f" use {accounting.default_delta(n_users):g} for {n_users} users"
            )
    if accounting.epsilon(events, delta=delta) > accounting.PROVED_UP_TO:
        found.append(f"epsilon is above {accounting.PROVED_UP_TO:g}: it has no protective meaning")
    return found


def _rows(planned: Sequence[GaussianRelease], done: Sequence[GaussianRelease]) -> list[dict[str, Any]]:
    """One row per distinct event in the order of the plan; the shares are of what was done, or else of the plan."""
    total = accounting.mu(done or planned) ** 2
    in_plan, in_ledger = collections.Counter(planned), collections.Counter(done)
    rows = []
    for event in dict.fromkeys((*planned, *done)):
        counts = {"planned": in_plan[event], "done": in_ledger[event]}
        count = counts["done"] if done else counts["planned"]
        rows.append(
            {**event.to_json(), **counts, "mu_each": event.mu, "share_of_mu_squared": count * event.mu**2 / total}
        )
    return rows


def render_text(report: dict[str, Any]) -> str:
    """The report for a person, one screen; every number is one of ``report``."""
    epsilon, rounds, budget = report["epsilon"], report["rounds"], report["budget"]
    lines = [
        f"Privacy of task {report['task_id']} in population {report['population']} ({report['status']})",
        "",
        f"  epsilon  {epsilon['at_delta']:.4f} at delta {epsilon['delta']:g}   (mu {epsilon['mu']:.6f}; whole plan"
        f" {epsilon['of_plan']:.4f})",
        f"           {_four_digits(epsilon['at_tenth'])} at delta/10,"
        f" {_four_digits(epsilon['at_tenfold'])} at 10 delta;"
        f" delta times users {report['delta_times_users']:.3g}",
        f"  budget   task {budget['task']['epsilon']:g}, left {budget['task']['left']:.4f};"
        f" population {budget['population']['epsilon']:g} at delta {budget['population']['delta']:g},"
        f" left {budget['population']['left']:.4f}",
        f"  rounds   {rounds['planned']} planned, {rounds['charged']} charged, {rounds['void']} void",
        *(f"  WARNING  {warning}" for warning in report["warnings"]),
        "",
        f"  {'release':<24}{'sensitivity':>13}{'noise std':>13}{'numbers':>11}{'planned':>9}{'done':>6}"
        f"{'% of mu^2':>11}",
        *(
            f"  {row['name'][:24]:<24}{row['sensitivity']:>13.6g}{row['noise_std']:>13.6g}{row['coordinates']:>11}"
            f"{row['planned']:>9}{row['done']:>6}{100 * row['share_of_mu_squared']:>11.1f}"
            for row in report["events"]
        ),
        "  Gaussian mechanism, sensitivities in L2 norm, enforced by the enclave; noise as integers of the exact law",
        "",
        f"  unit       {report['unit']}",
        f"  adjacency  {report['adjacency']['name']}: {report['adjacency']['in_words']}",
        f"  sampling   {report['sampling']}",
        f"  computed   {report['accountant']['name']}; no discretisation;"
        f" added numerical delta {report['added_delta']:.2e} included",
        f"  library    {report['accountant']['cross_check_library']}{_cross_check_text(report['cross_check'])}",
        f"  cohort     {report['users']} users; a round below {report['minimum_cohort']} uploads is not released",
        f"  tuning     {'charged' if report['tuning_charged'] else 'not charged'}; enclaves {report['enclaves']}",
        *(f"  NOT covered: {item}" for item in report["not_covered"]),
        f"  ledger     {report['ledger_head']}",
    ]
    return "\n".join(lines) + "\n"


def _four_digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _cross_check_text(values: dict[str, float] | None) -> str:
    if values is None:
        return " (cross-check not run)"
    return (
        f": PLD {values['pld']:.4f} (interval {values['pld_discretisation']:g}), RDP {values['rdp']:.4f};"
        f" for information, replacing one user {values['replace_one_pld']:.4f}"
    )
