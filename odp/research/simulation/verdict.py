"""What a run showed, in two plain sentences: the error beside the best baseline, and whether that is good."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from odp.algorithms.experiment import Quality, qualities
from odp.models.left_out import left_out_in_words
from odp.pictures.style import look
from odp.research.simulation.record import left_out_of

#: Methods whose scores differ by less than this share are level: another seed would order them otherwise.
LEVEL = 0.005
_GOOD = 0.5
_UNWEIGHED = "Whether that is good, a run with baselines says."
_NO_BASELINES = "Whether that is good, a run without noise of the same settings says: compare both by `odp report A B`."


@dataclass(frozen=True)
class Score:
    """The metric of a run that its verdict is about.

    Attributes:
      name: "test RMSE", "test Recall@20".
      lower_is_better: an error; else a share of right answers.
      value: of the final model.
      baselines: by key, those with the same metric.
    """

    name: str
    lower_is_better: bool
    value: float
    baselines: Mapping[str, float]


@dataclass(frozen=True)
class Verdict:
    """``outcome`` against the best baseline ("alone": there is none); ``text`` states it, ``judgement`` weighs it."""

    outcome: Literal["win", "level", "lose", "alone"]
    text: str
    judgement: str


def quality_of(record: Mapping[str, Any]) -> Quality:
    """That of the first training whose final metric the record has: a record does not name its training."""
    candidates = qualities()
    return next((quality for quality in candidates if record.get(quality.final) is not None), candidates[0])


def metric_name(key: str) -> str:
    """ "recall@20" as people write it; a name without a number stays."""
    name, at, cutoff = key.partition("@")
    return f"{'NDCG' if name == 'ndcg' else name.capitalize()}@{cutoff}" if at else name


def score_of(record: Mapping[str, Any], quality: Quality) -> Score | None:
    """The first metric of the final model; None where the run has none."""
    final, baselines = record.get(quality.final), record.get("baselines") or {}
    if isinstance(final, Mapping):
        key = next((name for name in final if name != "users"), None)
        if key is None or final[key] is None:
            return None
        baseline_values = {name: values[key] for name, values in baselines.items() if values.get(key) is not None}
        return Score(f"test {metric_name(key)}", "loss" in key, float(final[key]), baseline_values)
    if final is None:
        return None
    baseline_values = {name: value for name, value in baselines.items() if value is not None}
    return Score(f"test {quality.label}", True, float(final), baseline_values)


def verdict(record: Mapping[str, Any]) -> Verdict:
    """The verdict on a record of ``record.py``.

    Scores within 0.5 % of each other are level. A win is good where at least half of the way from the best baseline to
    a model of all data in one place is gone.
    """
    quality = quality_of(record)
    score = score_of(record, quality)
    cost = _cost(record)
    if score is None:
        return Verdict("alone", f"This run has no score on a test part; {cost}.", "Give a data set with test entries.")
    reached = f"{score.name} {score.value:.3f} {'without noise' if record.get('epsilon') is None else 'at ' + cost}"
    if about := left_out_in_words(left_out_of(record)):
        reached = f"{reached} ({about})"
    rivals = {name: value for name, value in score.baselines.items() if name not in quality.ceilings}
    if not rivals:
        why = "no baseline was run" if quality.baselines else "this kind of task has no baseline"
        return Verdict(
            "alone",
            f"This model has {reached}; {why}.",
            f"{_UNWEIGHED if quality.baselines else _NO_BASELINES}{_unprotected(record)}",
        )
    sign = 1.0 if score.lower_is_better else -1.0
    best = min(rivals, key=lambda name: sign * rivals[name])
    gain = sign * (rivals[best] - score.value)
    share = gain / abs(rivals[best]) if rivals[best] else math.copysign(1.0, gain)
    other = f"{look(best).name} ({rivals[best]:.3f})"
    if abs(share) < LEVEL:
        text = f"This model and the best baseline are level: {reached}, {other}."
        return Verdict("level", text, f"What it learns beyond that does not pay for its ε.{_unprotected(record)}")
    if share < 0:
        winner = look(best).name
        text = f"{winner[:1].upper()}{winner[1:]} wins with {rivals[best]:.3f}: this model has {reached}."
        advice = "the noise outweighs what it learns; try a larger ε, more users or fewer parameters"
        if record.get("epsilon") is None:
            advice = "it fails without noise, too, so its settings or its data do not fit"
        return Verdict("lose", text, f"That is not good: {advice}.{_unprotected(record)}")
    change = f"{100 * share:.1f} % {'below' if score.lower_is_better else 'above'}"
    text = f"This model wins: {reached}, {change} the best baseline, {other}."
    return Verdict("win", text, _judged(score, quality, rivals[best], sign) + _unprotected(record))


def _judged(score: Score, quality: Quality, best: float, sign: float) -> str:
    ceilings = [name for name in quality.ceilings if name in score.baselines]
    if not ceilings:
        return "How far it could go is unknown: no model of all data in one place was run."
    name = ceilings[0]
    ceiling = score.baselines[name]
    way, gone = sign * (best - ceiling), sign * (best - score.value)
    shown = f"{look(name).name} ({ceiling:.3f})"
    if way <= 0 or gone >= (1 - LEVEL) * way:
        return f"That is very good: it is as good as {shown}, which is not private."
    words = f"it goes {100 * gone / way:.0f} % of the way from there to {shown}, which is not private"
    if gone >= _GOOD * way:
        return f"That is good: {words}."
    return f"There is room: {words}."


def _cost(record: Mapping[str, Any]) -> str:
    epsilon = record.get("epsilon")
    return "without noise" if epsilon is None else f"ε = {epsilon:.3g}"


def _unprotected(record: Mapping[str, Any]) -> str:
    return " Noise was off: nothing is protected." if record.get("epsilon") is None else ""
