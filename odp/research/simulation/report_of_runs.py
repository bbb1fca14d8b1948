"""Several runs on one page: which reached what, by round and in the end, and the settings in which they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from odp.errors import ConfigurationError
from odp.models.left_out import left_out_in_words
from odp.pictures import charts, page
from odp.research.simulation.record import left_out_of
from odp.research.simulation.report import chosen, course, direction
from odp.research.simulation.verdict import LEVEL, Score, quality_of, score_of, verdict

#: More lines than these cannot be told apart in one chart.
MOST_RUNS = 12


def render_runs(records: Mapping[str, Mapping[str, Any]]) -> str:
    """The page of two to twelve records by their names, as a whole HTML document that loads nothing.

    Raises:
      ConfigurationError: there are too few or too many, or they have different metrics.
      KeyError: a record lacks a section that ``read_record`` requires.
    """
    if not 2 <= len(records) <= MOST_RUNS:
        raise ConfigurationError(f"Expected 2 to {MOST_RUNS} runs to compare (got {len(records)})")
    quality = quality_of(next(iter(records.values())))
    scores = {name: score_of(record, quality) for name, record in records.items()}
    other = next((name for name, record in records.items() if quality_of(record).final != quality.final), None)
    if other is not None:
        raise ConfigurationError(
            f"Expected runs of one kind: the first has {quality.final}, and {other!r} has "
            f"{quality_of(records[other]).final}; report them one by one"
        )
    scored = {name: score for name, score in scores.items() if score is not None}
    if not scored:
        raise ConfigurationError("Expected runs with a score on a test part (got none)")
    best = _best(scored)
    # The best comes first and in the accent colour; the others keep the order in which they were named.
    order = [best, *(name for name in records if name != best)]
    courses, metric = {}, ""
    for name in order:
        courses[name], metric = course(records[name], quality)
    parts = [
        page.heading(f"{len(records)} runs", 1),
        page.paragraph(_verdict(records, scored, best), "verdict"),
        page.paragraph(verdict(records[best]).judgement, "judgement"),
    ]
    if len({str(record["data"]) for record in records.values()}) > 1:
        parts.append(page.paragraph("The runs are on different data, so their scores are not comparable.", "note"))
    parts.append(page.heading(f"{quality.title} by round"))
    if any(value is not None for run_course in courses.values() for value in run_course.values):
        parts.append(
            page.chart(
                lambda width: charts.runs(courses, metric=f"{metric}, {direction(metric)}", width=width),
                title=f"{metric} by round of each run",
                name="runs",
                text="; ".join(f"{name} {score.value:.3f}" for name, score in scored.items()),
            )
        )
    parts += [
        page.heading("What each reached"),
        _table(records, scores, order),
        page.heading("Settings that differ"),
        _differences(records, order),
    ]
    return page.document(f"ODP: {len(records)} runs", parts)


def _best(scored: Mapping[str, Score]) -> str:
    return min(scored, key=lambda name: scored[name].value * (1.0 if scored[name].lower_is_better else -1.0))


def _setting(record: Mapping[str, Any]) -> str:
    """What a score cost, and which examples it is not about."""
    epsilon, about = record.get("epsilon"), left_out_in_words(left_out_of(record))
    cost = "without noise" if epsilon is None else f"at ε = {epsilon:.3g}"
    return f"{cost} {about}".rstrip()


def _verdict(records: Mapping[str, Mapping[str, Any]], scored: Mapping[str, Score], best: str) -> str:
    score = scored[best]
    text = f"{best} is best: {score.name} {score.value:.3f} {_setting(records[best])}"
    rest = {name: other for name, other in scored.items() if name != best}
    if not rest:
        return f"{text}; no other run has a score."
    second = _best(rest)
    change = abs(rest[second].value - score.value) / abs(rest[second].value) if rest[second].value else 1.0
    if change < LEVEL:
        return f"{best} and {second} are level: {score.name} {score.value:.3f} {_setting(records[best])}, and " + (
            f"{rest[second].value:.3f} {_setting(records[second])}."
        )
    side = "below" if score.lower_is_better else "above"
    return f"{text}, {100 * change:.1f} % {side} {second} ({rest[second].value:.3f} {_setting(records[second])})."


def _table(records: Mapping[str, Mapping[str, Any]], scores: Mapping[str, Score | None], order: Sequence[str]) -> str:
    metric = next(score.name for score in scores.values() if score is not None)
    some = any(left_out_in_words(left_out_of(record)) for record in records.values())
    rows = []
    for name in order:
        record, score = records[name], scores[name]
        rows.append(
            (
                name,
                page.number(None if score is None else score.value, ".4f"),
                page.number(record.get("epsilon"), ".4g") or "no noise",
                f"{record['delta']:g}",
                str(len(record["rounds"])),
                f"{record['data']['users']:,}",
                str(record["data"]["name"]),
                *([left_out_in_words(left_out_of(record)) or "all examples"] if some else []),
            )
        )
    head = ("run", metric, "ε", "δ", "rounds", "users", "data", *(["figures are"] if some else []))
    return page.table("The best run first", head, rows, ours=order[0])


def _differences(records: Mapping[str, Mapping[str, Any]], order: Sequence[str]) -> str:
    settings = {name: _settings(records[name]) for name in order}
    keys = list(dict.fromkeys(key for values in settings.values() for key in values))
    rows = []
    for key in keys:
        values = [settings[name].get(key, "") for name in order]
        if len(set(values)) > 1:
            rows.append((key, *values))
    if not rows:
        return page.paragraph("None: the runs differ in nothing that was set.")
    return page.table("Settings as written, of each run", ("setting", *order), rows)


def _settings(record: Mapping[str, Any]) -> dict[str, str]:
    values = {**chosen(record), "data": record["data"]["name"], "seed": record.get("seed")}
    values |= {f"version of {name}": value for name, value in record["versions"].items()}
    return {name: "by rule" if value is None else str(value) for name, value in values.items()}
