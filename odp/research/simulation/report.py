"""A run as one page that stands alone: the verdict first, then the charts, and everything else folded below.

The part of a run's page on what it recommends: coverage, popularity bias, and who gains against the baseline.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from odp.algorithms.experiment import Quality
from odp.models.left_out import TEST, TRAIN
from odp.pictures import charts, page
from odp.pictures.style import look
from odp.research.simulation.record import left_out_of
from odp.research.simulation.verdict import Score, Verdict, metric_name, quality_of, score_of, verdict


def shown_to_people(diagnostics: Mapping[str, Any], quality: Quality) -> list[str]:
    """Sections of the page; none where the run has no such figures."""
    return [*_lists(diagnostics), *_exposure_gains(diagnostics, quality)]


def _lists(diagnostics: Mapping[str, Any]) -> list[str]:
    if (exposure := diagnostics.get("exposure")) is None:
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
        page.paragraph(f"{charts.SIMULATED.capitalize()}. Fifths are by the noisy counts.", "only"),
        page.chart(
            lambda width: charts.shares(shares, width=width),
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


def _exposure_gains(diagnostics: Mapping[str, Any], quality: Quality) -> list[str]:
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
        page.paragraph(f"{charts.SIMULATED.capitalize()}.", "only"),
        page.chart(
            lambda width: charts.gains(users, items, metric=metric, width=width),
            title="Gain against the baseline by group",
            name="gains",
            text="; ".join(f"{group}, {span}: {value or 'unknown'}" for group, span, value in rows),
        ),
        page.fold("Table of gains", page.table(metric, ("group", "size", "gain"), rows), level=3),
    ]


def _both(diagnostics: Mapping[str, Any], quality: Quality) -> tuple[charts.Gains, charts.Gains, str]:
    if quality.rival is None:
        raise KeyError("rival")
    key, label = quality.buckets[0]
    rival, name = quality.rival
    sign = -1.0 if label.endswith("RMSE") else 1.0

    def of(buckets: Sequence[Mapping[str, Any]], group: str) -> charts.Gains:
        values = [
            None if bucket.get(key) is None or bucket.get(rival) is None else sign * (bucket[key] - bucket[rival])
            for bucket in buckets
        ]
        return charts.Gains([_fifth_span(bucket) for bucket in buckets], values, group)

    metric = f"{label}: {'less' if sign < 0 else 'more'} than {name}"
    users = of(diagnostics["activity"], f"{quality.entries} in the user's history")
    return users, of(diagnostics["popularity"], "noisy count of the item"), metric


def _shares(exposure: Mapping[str, Any]) -> charts.Shares:
    return charts.Shares(
        names=[_fifth_span(fifth) for fifth in exposure["fifths"]],
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


def _fifth_span(bucket: Mapping[str, Any]) -> str:
    low, high = f"{bucket['low']:.0f}", f"{bucket['high']:.0f}"
    return low if low == high else f"{low}–{high}"


_SIMULATION_ONLY = (
    "Simulation only: read from the researcher's own ratings without noise; no platform could compute it, and it must "
    "not be published for a private population."
)
_OURS = "this model"


def render_html(record: Mapping[str, Any]) -> str:
    """The page of a record of ``record.py``, as a whole HTML document that loads nothing.

    Raises:
      KeyError: the record lacks a section that ``read_record`` requires.
    """
    quality, diagnostics = quality_of(record), record.get("diagnostics")
    score, conclusion = score_of(record, quality), verdict(record)
    name, data = str(record["task"].get("name", "")), str(record["data"]["name"])
    parts = [
        page.heading(f"Run {name} on {data}", 1),
        page.paragraph(conclusion.text, "verdict"),
        page.paragraph(conclusion.judgement, "judgement"),
        _facts(record, quality),
        page.paragraph(_what(record), "note"),
        _methods(record, quality, score, conclusion),
        _rounds(record, quality, score),
    ]
    if diagnostics is not None:
        parts += [*_gains(diagnostics, quality), *shown_to_people(diagnostics, quality)]
    parts += [
        '<div class="folds">',
        page.fold("What ε was spent on", _spending(record)),
        page.fold("Size and variance of updates", _updates(record)),
        page.fold("What was clipped", _clipping(record)),
        page.fold("Settings", _settings(record)),
        page.fold("Versions", _pairs("what computed this run", record["versions"])),
        page.fold("Notes", *(page.paragraph(str(note)) for note in record.get("notes", ()))),
        "</div>",
    ]
    return page.document(f"ODP run {name}: {conclusion.text}", [part for part in parts if part])


def course(record: Mapping[str, Any], quality: Quality) -> tuple[charts.Course, str]:
    """The first metric by round that the run has, with ε, and the name of that metric."""
    rounds = record["rounds"]
    measured = [(key, text) for key, text in quality.rounds if any(entry.get(key) is not None for entry in rounds)]
    key, text = measured[0] if measured else quality.rounds[0]
    return (
        charts.Course(
            [entry["round"] for entry in rounds],
            [entry.get(key) for entry in rounds],
            [entry.get("epsilon") for entry in rounds],
        ),
        text,
    )


def direction(metric: str) -> str:
    """Which end of a metric is better, by its label."""
    return "lower is better" if metric.endswith(("RMSE", "loss")) else "higher is better"


def _facts(record: Mapping[str, Any], quality: Quality) -> str:
    data, epsilon = record["data"], record.get("epsilon")
    final = record[quality.final]
    scores = (
        [(f"test {metric_name(key)}", f"{value:.4f}") for key, value in final.items() if key != "users"]
        if isinstance(final, Mapping)
        else [(f"test {quality.label}", page.number(final, ".4f"))]
    )
    return page.facts(
        [
            *scores,
            ("ε per user", page.number(epsilon, ".4g") or "no noise"),
            ("δ", f"{record['delta']:g}"),
            ("users", f"{data['users']:,}"),
            ("items", "" if data["items"] is None else f"{data['items']:,}"),
            (f"training {quality.entries}", _used(record, TRAIN)),
            *([(f"test {quality.entries}", _used(record, TEST))] if record.get("left_out") else []),
        ],
        ours=scores[0][0],
    )


def _used(record: Mapping[str, Any], part: str) -> str:
    """How many entries of a part the figures are about."""
    left_out = left_out_of(record).get(part)
    if left_out is None or not left_out.count:
        return f"{record['data'][part]:,}"
    return f"{left_out.used:,} of {left_out.total:,}; {left_out}"


def _what(record: Mapping[str, Any]) -> str:
    what = "Simulated on one machine" if record["kind"] == "simulation" else "Trained by devices and enclaves"
    spent = (
        "noise was off: nothing is protected"
        if record.get("epsilon") is None
        else "ε protects all data of a user or none, all releases included"
    )
    return f"{what}, seed {record.get('seed')}; {spent}."


def _methods(record: Mapping[str, Any], quality: Quality, score: Score | None, conclusion: Verdict) -> str:
    if score is None or not score.baselines:
        return ""
    values = {_OURS: score.value, **score.baselines}
    sign = 1.0 if score.lower_is_better else -1.0
    order = sorted(values, key=lambda name: sign * values[name])
    final = record[quality.final]
    keys = [key for key in final if key != "users"] if isinstance(final, Mapping) else []
    rows = []
    for name in order:
        label = quality.baselines.get(name, name)
        if keys:
            whole = final if name == _OURS else record["baselines"][name]
            rows.append((label, *(page.number(whole.get(key), ".4f") for key in keys)))
        else:
            rows.append((label, f"{values[name]:.4f}"))
    head = ("method", *(metric_name(key) for key in keys)) if keys else ("method", score.name)
    return "\n".join(
        [
            "<h2>The methods, on the same test part</h2>",
            page.chart(
                lambda width: charts.methods(
                    values, metric=score.name, lower_is_better=score.lower_is_better, width=width
                ),
                title=f"{score.name} of every method",
                name="methods",
                text="; ".join(f"{look(name).name} {values[name]:.3f}" for name in order),
            ),
            page.fold(
                "Table of the methods", page.table("Baselines on the same split", head, rows, ours=_OURS), level=3
            ),
        ]
    )


def _rounds(record: Mapping[str, Any], quality: Quality, score: Score | None) -> str:
    trend, metric = course(record, quality)
    # A level is comparable to a line only where both are of the same metric.
    levels = score.baselines if score is not None and metric == score.name else {}
    budget = record["task"].get("privacy", {}).get("epsilon") if record.get("epsilon") is not None else None
    rows = [
        (
            str(entry["round"]),
            page.number(entry.get("contributions"), ",.0f"),
            page.number(entry.get("epsilon"), ".4f"),
            *(page.number(entry.get(key), ".4f") for key, _ in quality.rounds),
            page.number(entry.get("seconds"), ".2f"),
        )
        for entry in record["rounds"]
    ]
    head = ("round", "users", "ε so far", *(label for _, label in quality.rounds), "seconds")
    shown = ""
    if any(value is not None for value in trend.values):
        shown = page.chart(
            lambda width: charts.by_round(
                trend, name=_OURS, metric=f"{metric}, {direction(metric)}", levels=levels, budget=budget, width=width
            ),
            title=f"{metric} and ε by round",
            name="rounds",
            text="; ".join(
                f"round {number}: {page.number(value, '.3f') or 'not measured'}"
                for number, value in zip(trend.rounds, trend.values, strict=True)
            ),
        )
    return "\n".join(
        [
            page.heading(f"{quality.title} and ε by round"),
            shown,
            page.fold("Table of the rounds", page.table("Rounds as a terminal numbers them", head, rows), level=3),
        ]
    )


def _gains(diagnostics: Mapping[str, Any], quality: Quality) -> list[str]:
    activity, popularity = diagnostics["activity"], diagnostics["popularity"]
    return [
        "<h2>Who gains: users by activity</h2>",
        page.paragraph(_gain(activity, quality)),
        page.paragraph(_SIMULATION_ONLY, "only"),
        _buckets(activity, "users", f"{quality.entries} in the user's history", "activity", quality),
        "<h2>Where it is good: items by popularity</h2>",
        page.paragraph(
            "Fifths by the noisy counts, which a platform could publish; the scores are of the researcher's own test "
            f"{quality.entries} (simulation only).",
            "only",
        ),
        _buckets(popularity, "items", "noisy count of the item", "popularity", quality),
        *_ranges(diagnostics.get("intervals")),
    ]


def _ranges(intervals: Mapping[str, Any] | None) -> list[str]:
    """Whether the ranges of predictions cover what they say; nothing of a run that does not tell."""
    if not intervals or not intervals["ratings"]:
        return []
    curve = intervals["curve"]
    levels, covered = [point["level"] for point in curve], [point["covered"] for point in curve]
    rows = [
        (f"{100 * point['level']:g} %", f"{100 * point['covered']:.1f} %", f"{point['width']:.3f}") for point in curve
    ]
    chart = page.chart(
        lambda width: charts.reliability(levels, covered, width=width),
        title="Share of test ratings within their range, by level",
        name="ranges",
        text="; ".join(f"{level}: {share} of the ratings" for level, share, _ in rows),
    )
    return [
        "<h2>How sure it is: ranges of predictions</h2>",
        page.paragraph(
            "A device shows a range beside a prediction, made on the device of the person's own ratings and the public "
            f"model: it costs no privacy. Here: {intervals['ratings']:,} test ratings of {intervals['users']:,} users."
        ),
        page.paragraph(_SIMULATION_ONLY, "only"),
        chart
        + page.fold(
            "Table of the ranges",
            page.table("Ranges by level", ("level", "test ratings within", "mean width"), rows),
            level=3,
        ),
    ]


def _gain(buckets: Sequence[Mapping[str, Any]], quality: Quality) -> str:
    """Who is better off than alone, in one sentence; empty where the run does not tell."""
    if quality.alone is None:
        return ""
    key, (alone, label) = quality.buckets[0][0], quality.alone
    complete = [bucket for bucket in buckets if bucket.get(key) is not None and bucket.get(alone) is not None]
    if not complete:
        return ""
    shares = [1.0 - bucket[key] / bucket[alone] for bucket in complete]
    better = sum(share > 0 for share in shares)
    most = max(range(len(complete)), key=lambda place: shares[place])
    return (
        f"{better} of {len(complete)} groups have a smaller error than with the {label.partition(',')[0]} of each; "
        f"users with {_span(complete[most])} {quality.entries} gain most: {100 * shares[most]:.0f} % less error."
    )


def _span(bucket: Mapping[str, Any]) -> str:
    low, high = f"{bucket['low']:.0f}", f"{bucket['high']:.0f}"
    return low if low == high else f"{low}–{high}"


def _buckets(buckets: Sequence[Mapping[str, Any]], members: str, group: str, name: str, quality: Quality) -> str:
    columns = [*quality.buckets, *filter(None, (quality.alone, quality.rival))]
    key, metric = quality.buckets[0]
    reference = [bucket.get(quality.alone[0]) for bucket in buckets] if quality.alone else []
    shown = any(value is not None for value in reference)
    rows = [
        (
            _span(entry),
            f"{entry['members']:,}",
            f"{entry['ratings' if 'ratings' in entry else 'targets']:,}",
            *(page.number(entry.get(column), ".4f") for column, _ in columns),
        )
        for entry in buckets
    ]
    head = (group, members, f"test {quality.entries}", *(label for _, label in columns))
    chart = page.chart(
        lambda width: charts.groups(
            [_span(entry) for entry in buckets],
            [entry.get(key) for entry in buckets],
            group=group,
            metric=f"{metric}, {direction(metric)}",
            reference=reference if shown else (),
            reference_name=quality.alone[1].replace(", ", ",\n") if quality.alone else "",
            width=width,
        ),
        title=f"{metric} by {name}",
        name=name,
        text="; ".join(f"{_span(entry)}: {page.number(entry.get(key), '.3f') or 'none'}" for entry in buckets),
    )
    return chart + page.fold(f"Table by {name}", page.table(f"{members} in fifths", head, rows), level=3)


def _updates(record: Mapping[str, Any]) -> str:
    if not any("update_scale" in entry for entry in record["rounds"]):
        return ""

    def measured(entry: Mapping[str, Any], name: str) -> str:
        value, std = entry.get(name), entry.get(f"{name}_std")
        return "" if value is None else f"{value:.3g} ± {std or 0.0:.2g}"

    rows = [
        (
            str(entry["round"]),
            page.number(entry.get("clip_norm"), ".4g"),
            measured(entry, "update_scale"),
            measured(entry, "client_variance"),
            page.number(entry.get("share_within_clip"), ".0%"),
        )
        for entry in record["rounds"]
    ]
    text = (
        "Of clipped updates, per parameter, estimated from the noisy releases alone; ± is the standard deviation of "
        "the noise. A large scale and a small variance bear small cohorts and much noise."
    )
    head = ("round", "clip norm", "update scale", "variance between users", "within the clip norm")
    return page.paragraph(text) + page.table("Updates by round", head, rows)


def _spending(record: Mapping[str, Any]) -> str:
    if not record["spending"]:
        return page.paragraph("Nothing was noised, so there is nothing to account for.")
    rows = [
        (
            str(entry["round"]),
            entry["name"],
            f"{entry['mu']:.4f}",
            f"{100 * entry['share']:.1f} %",
            f"{entry['epsilon_so_far']:.4f}",
        )
        for entry in record["spending"]
    ]
    text = page.paragraph("Gaussian releases add up in μ²; each one's share of the total:")
    return text + page.table("Releases and their charges", ("round", "release", "μ", "share of μ²", "ε so far"), rows)


def _clipping(record: Mapping[str, Any]) -> str:
    clip = record.get("resolved", {}).get("row_clip")
    rows = []
    for entry in record.get("noisy_totals", ()):
        square = entry.get("mean_square_row")
        if entry["name"] == "gram" and square is not None and clip:
            text = f"{math.sqrt(max(square, 0.0)):.3f} of at most {clip:.3f}"
            rows.append((str(entry["round"]), "root mean square of users' row norms, after the clip", text))
        elif entry["name"] == "counts":
            users = max(record["data"]["users"], 1)
            bound = record["task"]["privacy"].get("max_items_per_user") or "the bound"
            text = f"{entry['total'] / users:.1f} ± {entry['std'] / users:.1f} (bound {bound})"
            rows.append((str(entry["round"]), "items counted per user", text))
    text = page.table("From the noisy releases alone", ("round", "what", "value"), rows) if rows else ""
    diagnostics = record.get("diagnostics")
    if diagnostics is None or "clipping" not in diagnostics:
        return text
    shares = diagnostics["clipping"]
    shown = [
        ("users with more items than the bound", f"{100 * shares['users_over_bound']:.1f} %"),
        ("ratings beyond the bound, left out of a round", f"{100 * shares['ratings_left_out']:.1f} %"),
        ("targets beyond their clip", f"{100 * shares['targets_clipped']:.1f} %"),
        ("users whose targets together are beyond their clip", f"{100 * shares['users_shortened']:.1f} %"),
    ]
    return text + page.paragraph(_SIMULATION_ONLY, "only") + page.table("Without noise", ("what", "share"), shown)


def _settings(record: Mapping[str, Any]) -> str:
    text = _pairs("As written", chosen(record))
    if record.get("resolved"):
        used = {name: value for name, value in record["resolved"].items() if value not in ({}, [])}
        text += _pairs("As resolved by the rules, noise included", used)
    return text


def chosen(record: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run's task by "section.name", as they were written."""
    return {
        f"{section}.{key}": value
        for section, values in record["task"].items()
        if isinstance(values, Mapping)
        for key, value in values.items()
    }


def _pairs(caption: str, values: Mapping[str, Any]) -> str:
    rows = [(str(key), "by rule" if value is None else str(value)) for key, value in values.items()]
    return page.table(caption, ("name", "value"), rows)
