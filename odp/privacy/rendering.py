"""The privacy report for a person: as text of one screen, and as one HTML page without external resources."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any

from odp.privacy.events import DISTRIBUTED
from odp.privacy.local_events import LOCAL, SHUFFLED

_HEAD = ("release", "sensitivity (L2)", "noise std", "multiplier", "numbers", "planned", "done", "% of mu^2")
_WIDTHS = (20, 18, 13, 12, 11, 9, 6, 11)
_NUMBER = re.compile(r"[0-9.]+(e[-+]?[0-9]+)?")
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 1.6rem; }
table { border-collapse: collapse; margin: .5rem 0; }
th, td { padding: .15rem .7rem; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top; }
td.n { text-align: right; font-variant-numeric: tabular-nums; } .warning { color: #a00000; }
td { overflow-wrap: anywhere; }
"""


def render_text(report: dict[str, Any]) -> str:
    """The report for a person; every number is one of ``report``."""
    table = [
        row[0].ljust(_WIDTHS[0]) + "".join(cell.rjust(width) for cell, width in zip(row[1:], _WIDTHS[1:], strict=True))
        for row in (_HEAD, *_event_rows(report))
    ]
    lines = [
        _title(report),
        "",
        *(f"  {label:<11}{value}" for label, value in _figures(report)),
        *(f"  WARNING    {warning}" for warning in report["warnings"]),
        "",
        *(f"  {line}" for line in table),
        f"  {_mechanism(report)}",
        "",
        *(f"  {label:<11}{value}" for label, value in _facts(report)),
        *(f"  assumed    {item}" for item in report["assumptions"]),
        *(f"  NOT covered: {item}" for item in report["not_covered"]),
        *(f"  not charged: {item['what']}: {item['why']}" for item in report["not_charged"]),
        *(f"  {name:<12} {value}" for name, value in report["hashes"].items()),
        f"  recompute  {report['recompute']}",
    ]
    return "\n".join(lines) + "\n"


def render_html(report: dict[str, Any]) -> str:
    """The report as a whole HTML document with the same values."""
    warnings = "".join(f'<p class="warning">{html.escape(warning)}</p>' for warning in report["warnings"])
    not_charged = [(item["what"], item["why"]) for item in report["not_charged"]]
    parts = [
        f"<h1>{html.escape(_title(report))}</h1>",
        _table((), _figures(report)),
        warnings,
        "<h2>What was released</h2>",
        _table(_HEAD, _event_rows(report)),
        f"<p>{html.escape(_mechanism(report))}</p>",
        "<h2>Rounds</h2>",
        _table(("round", "state", "uploads", "drawn, expected", "epsilon so far"), _cohort_rows(report)),
        "<h2>How to read it</h2>",
        _table((), _facts(report)),
        "<h2>Assumed</h2>",
        _list(report["assumptions"]),
        "<h2>Not covered</h2>",
        _list(report["not_covered"]),
        "<h2>Not charged, and why</h2>",
        _table((), not_charged),
        "<h2>Hashes</h2>",
        _table((), list(report["hashes"].items())),
        f"<p>To recompute: {html.escape(report['recompute'])}</p>",
    ]
    head = f'<head><meta charset="utf-8"><title>ODP privacy report</title><style>{_STYLE}</style></head>'
    return f'<!doctype html>\n<html lang="en">{head}<body>\n' + "\n".join(parts) + "\n</body></html>\n"


def _title(report: dict[str, Any]) -> str:
    return f"Privacy of task {report['task_id']} in population {report['population']} ({report['status']})"


def _figures(report: dict[str, Any]) -> list[tuple[str, str]]:
    epsilon, rounds, budget = report["epsilon"], report["rounds"], report["budget"]
    mu = "" if epsilon["mu"] is None else f"mu {epsilon['mu']:.6f}; "
    plan = "plan not known" if epsilon["of_plan"] is None else f"whole plan {epsilon['of_plan']:.4f}"
    population = budget["population"]
    uploads = [entry["uploads"] for entry in report["cohorts"]]
    figures = [
        ("epsilon", f"{epsilon['at_delta']:.4f} at delta {epsilon['delta']:g}   ({mu}{plan})"),
        (
            "",
            f"{_digits(epsilon['at_tenth'])} at delta/10, {_digits(epsilon['at_tenfold'])} at 10 delta;"
            f" delta times users {report['delta_times_users']:.3g}",
        ),
        *_without_companions(epsilon["if_alone"]),
        *_by_itself(report["local"]),
        (
            "budget",
            f"task {budget['task']['epsilon']:g}, left {budget['task']['left']:.4f}; population"
            f" {population['epsilon']:g} at delta {population['delta']:g}, spent {population['spent']:.4f} by"
            f" {population['tasks']} task(s), left {population['left']:.4f}",
        ),
        (
            "rounds",
            f"{_number_or_unknown(rounds['planned'])} planned, {rounds['charged']} charged, "
            f"{rounds['released']} released,"
            f" {rounds['void']} void, {rounds['unreleased']} charged and not released",
        ),
    ]
    if uploads:
        figures.append(("cohorts", f"{min(uploads)} to {max(uploads)} uploads in {len(uploads)} rounds"))
    return figures


def _without_companions(epsilon: float | None) -> list[tuple[str, str]]:
    if epsilon is None:
        return []
    text = (
        f"{epsilon:.4f} if all other devices of a session or round worked for the server: the assumptions below exclude"
        " that"
    )
    return [("", text)]


def _by_itself(local: dict[str, Any] | None) -> list[tuple[str, str]]:
    return [] if local is None else [("local", local["in_words"])]


def _graphs(report: dict[str, Any]) -> str:
    graphs = report["graph_delta"]
    return f", {graphs:.2e} of it for graphs of sessions that may fail" if graphs else ""


def _facts(report: dict[str, Any]) -> list[tuple[str, str]]:
    accountant, minimum = report["accountant"], report["minimum_cohort"]
    interval = accountant["discretisation"]
    grid = "no discretisation" if interval is None else f"interval {interval:g}, rounded upwards"
    cohort = "minimum cohort not known" if minimum is None else f"a round below {minimum} uploads is not released"
    return [
        ("unit", report["unit"]),
        ("adjacency", f"{report['adjacency']['name']}: {report['adjacency']['in_words']}"),
        ("sampling", report["sampling"]["in_words"]),
        (
            "computed",
            f"{accountant['name']}; {grid}; added delta {report['added_delta']:.2e} included{_graphs(report)}",
        ),
        ("library", f"{accountant['library']}{_cross_check(report['cross_check'])}"),
        ("cohort", f"{report['users']} users; {cohort}"),
        *([] if report["reconstruction"] is None else [("rebuild", report["reconstruction"]["in_words"])]),
        ("tuning", f"{'charged' if report['tuning_charged'] else 'not charged'}; enclaves {report['enclaves']}"),
        ("audit", report["audit"]),
    ]


def _event_rows(report: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            row["name"][:19],
            *_noise(row),
            _number_or_unknown(row["planned"]),
            str(row["done"]),
            f"{100 * row['share_of_mu_squared']:.1f}",
        )
        for row in report["events"]
    ]


def _noise(row: dict[str, Any]) -> tuple[str, str, str, str]:
    if row["noise_multiplier"] is None:
        return "-", "-", "-", "-"
    return (
        f"{row['sensitivity']:.6g}",
        f"{row['noise_std']:.6g}",
        f"{row['noise_multiplier']:.6g}",
        str(row["coordinates"]),
    )


def _cohort_rows(report: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            str(entry["round"]),
            entry["state"],
            str(entry["uploads"]),
            "all" if entry["expected_drawn"] is None else f"{entry['expected_drawn']:.1f}",
            f"{entry['epsilon_so_far']:.4f}",
        )
        for entry in report["cohorts"]
    ]


def _mechanism(report: dict[str, Any]) -> str:
    reports = [_of_reports(row) for row in report["events"] if row["mechanism"] in (LOCAL, SHUFFLED)]
    if len(reports) == len(report["events"]):
        return "; ".join(reports)
    return "; ".join((_of_sums(report), *reports))


def _of_reports(row: dict[str, Any]) -> str:
    if row["mechanism"] == LOCAL:
        return f"{row['name']}: randomised on the device, epsilon {row['epsilon']:.6g} each, for any two inputs"
    kind = f"{row['choices']}-ary randomised response" if row["choices"] else "any randomiser"
    return (
        f"{row['name']}: randomised on the device ({kind}, epsilon {row['epsilon0']:.6g} each), then shuffled among at"
        f" least {row['reports']} honest reports"
    )


def _of_sums(report: dict[str, Any]) -> str:
    sharers = {row["sharers"] for row in report["events"] if row["mechanism"] == DISTRIBUTED}
    if not sharers:
        return "Gaussian mechanism; sensitivities are enforced by the enclave; noise as integers of the exact law"
    fewest = min(sharers)
    others = (
        ""
        if all(row["mechanism"] in (DISTRIBUTED, LOCAL, SHUFFLED) for row in report["events"])
        else "; other noise by the enclave"
    )
    return (
        f"discrete Gaussian noise in shares of the devices, {fewest} honest ones at least (noise std is theirs"
        f" together){others}; each device keeps its own bound"
    )


def _number_or_unknown(value: int | None) -> str:
    return "-" if value is None else str(value)


def _digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _cross_check(values: dict[str, float | None] | None) -> str:
    if values is None:
        return " (cross-check not run)"
    if values["pld"] is None:
        return f": RDP {values['rdp']:.4f}; noise in shares has no PLD"
    return (
        f": PLD {values['pld']:.4f} (interval {values['pld_discretisation']:g}), RDP {values['rdp']:.4f};"
        f" for information, replacing one user {values['replace_one_pld']:.4f}"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def cell(text: str) -> str:
        number = ' class="n"' if _NUMBER.fullmatch(text) else ""
        return f"<td{number}>{html.escape(text)}</td>"

    top = "<tr>" + "".join(f"<th>{html.escape(text)}</th>" for text in head) + "</tr>" if head else ""
    body = "\n".join("<tr>" + "".join(cell(str(text)) for text in row) + "</tr>" for row in rows)
    return f"<table>{top}\n{body}</table>"


def _list(items: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{html.escape(item)}</li>" for item in items) + "</ul>"
