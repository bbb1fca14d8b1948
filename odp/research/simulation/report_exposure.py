"""The part of a run's page on what it recommends: coverage, popularity bias, and who gains against the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from odp.algorithms.experiment import Quality
from odp.pictures import charts as pictures
from odp.pictures import page
from odp.pictures.style import look


def shown_to_people(diagnostics: Mapping[str, Any], quality: Quality) -> list[str]:
    """Sections of the page; none where the run has no such figures."""
    return [*_lists(diagnostics), *_gains(diagnostics, quality)]


def draw(path: Path, diagnostics: Mapping[str, Any], quality: Quality, *, title: str) -> None:
    """The picture of both sections, as a file. Raises DataError, KeyError where a figure is missing."""
    users, items, metric = _both(diagnostics, quality)
    pictures.draw_exposure(path, _shares(diagnostics["exposure"]), users, items, metric=metric, title=title)


def _lists(diagnostics: Mapping[str, Any]) -> list[str]:
    exposure = diagnostics.get("exposure")
    if exposure is None:
        return []
    name = look(exposure["baseline_name"]).name
    model, baseline = exposure["model"], exposure["baseline"]
    cutoff = f"{exposure['cutoff']:,}"
    rows = [
        ("items that anybody is shown", f"{100 * model['coverage']:.1f} %", f"{100 * baseline['coverage']:.1f} %"),
        ("Gini coefficient of exposure", f"{model['gini']:.3f}", f"{baseline['gini']:.3f}"),
        ("mean noisy count of what is shown", f"{model['popularity']:.0f}", f"{baseline['popularity']:.0f}"),
        ("popularity lift over the users' histories", _lift(model["lift"]), _lift(baseline["lift"])),
    ]
    shares = _shares(exposure)
    places = [
        (
            span,
            f"{fifth['members']:,}",
            "" if fifth["relevance"] is None else f"{100 * fifth['relevance']:.1f} %",
            f"{ours:.1f} %",
            f"{other:.1f} %",
        )
        for span, fifth, ours, other in zip(
            shares.names, exposure["fifths"], shares.model, shares.baseline, strict=True
        )
    ]
    return [
        page.heading("What it recommends: coverage and popularity bias"),
        page.paragraph(
            f"The first {cutoff} items of {exposure['users']:,} users, their history left out. "
            f"{_sentence(100 * model['coverage'], model['lift'])}"
        ),
        page.paragraph(f"{pictures.SIMULATED.capitalize()}. Fifths are by the noisy counts.", "only"),
        page.chart(
            lambda width: pictures.shares(shares, width=width),
            title="Exposure by popularity of the items",
            name="exposure",
            text="; ".join(f"{row[0]}: shown {row[3]}, liked {row[2] or 'unknown'}, {name} {row[4]}" for row in places),
        ),
        page.fold(
            "Table of coverage and exposure",
            page.table(f"Lists of {cutoff}, simulated", ("figure", "this model", name), rows),
            page.table(
                "Fifths of the catalogue, simulated",
                ("noisy count of the item", "items", "liked, of held-out items", "shown by this model", f"by {name}"),
                places,
            ),
            level=3,
        ),
    ]


def _gains(diagnostics: Mapping[str, Any], quality: Quality) -> list[str]:
    if quality.rival is None or not any(bucket.get(quality.rival[0]) is not None for bucket in diagnostics["activity"]):
        return []
    users, items, metric = _both(diagnostics, quality)
    losing = [
        f"{what} with {span}"
        for what, gains in (("users", users), ("items", items))
        for span, value in zip(gains.names, gains.values, strict=True)
        if value is not None and value < 0
    ]
    said = f"Worse off than with {quality.rival[1]}: {', '.join(losing)}." if losing else (
        f"No fifth of the users or the items is worse off than with {quality.rival[1]}."
    )  # fmt: skip
    rows = [
        (gains.group, span, page.number(value, "+.4f"))
        for gains in (users, items)
        for span, value in zip(gains.names, gains.values, strict=True)
    ]
    return [
        page.heading("Who gains, who loses, against the baseline"),
        page.paragraph(said),
        page.paragraph(f"{pictures.SIMULATED.capitalize()}.", "only"),
        page.chart(
            lambda width: pictures.gains(users, items, metric=metric, width=width),
            title="Gain against the baseline by group",
            name="gains",
            text="; ".join(f"{group}, {span}: {value or 'unknown'}" for group, span, value in rows),
        ),
        page.fold("Table of gains", page.table(metric, ("group", "size", "gain"), rows), level=3),
    ]


def _both(diagnostics: Mapping[str, Any], quality: Quality) -> tuple[pictures.Gains, pictures.Gains, str]:
    if quality.rival is None:
        raise KeyError("rival")
    key, label = quality.buckets[0]
    rival, name = quality.rival
    sign = -1.0 if label.endswith("RMSE") else 1.0

    def of(buckets: Sequence[Mapping[str, Any]], group: str) -> pictures.Gains:
        values = [
            None if bucket.get(key) is None or bucket.get(rival) is None else sign * (bucket[key] - bucket[rival])
            for bucket in buckets
        ]
        return pictures.Gains([_span(bucket) for bucket in buckets], values, group)

    metric = f"{label}: {'less' if sign < 0 else 'more'} than {name}"
    users = of(diagnostics["activity"], f"{quality.entries} in the user's history")
    return users, of(diagnostics["popularity"], "noisy count of the item"), metric


def _shares(exposure: Mapping[str, Any]) -> pictures.Shares:
    return pictures.Shares(
        names=[_span(fifth) for fifth in exposure["fifths"]],
        model=[100 * share for share in exposure["model"]["exposure"]],
        baseline=[100 * share for share in exposure["baseline"]["exposure"]],
        liked=[None if fifth["relevance"] is None else 100 * fifth["relevance"] for fifth in exposure["fifths"]],
        baseline_name=exposure["baseline_name"],
    )


def _sentence(coverage: float, lift: float | None) -> str:
    shown = f"{coverage:.0f} % of the catalogue is shown to somebody."
    if lift is None:
        return shown
    more = f"{abs(100 * lift):.0f} % {'more' if lift >= 0 else 'less'}"
    return f"{shown} What a person is shown is {more} popular, on average, than what they chose before."


def _lift(value: float | None) -> str:
    return "" if value is None else f"{100 * value:+.0f} %"


def _span(bucket: Mapping[str, Any]) -> str:
    low, high = f"{bucket['low']:.0f}", f"{bucket['high']:.0f}"
    return low if low == high else f"{low}–{high}"
