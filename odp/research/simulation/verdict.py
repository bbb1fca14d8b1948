"""What a run showed, in two plain sentences: the error beside the best baseline, and whether that is good."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from odp.algorithms.experiment import Quality, qualities
from odp.models.left_out import left_out_in_words
from odp.pictures.style import look
from odp.research.simulation.record import left_out_of

#: Methods whose scores differ by less than this share are level: noise of another seed would order them otherwise.
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
      standard_errors: by key, of the differences to them; only those that a record has.
    """

    name: str
    lower_is_better: bool
    value: float
    baselines: Mapping[str, float]
    standard_errors: Mapping[str, float]

    def gain(self, name: str) -> float:
        """How much better the model is than a baseline; below 0 where it is worse."""
        apart = self.baselines[name] - self.value
        return apart if self.lower_is_better else -apart

    def is_level(self, name: str) -> bool:
        """Whether chance may have made the difference to a baseline."""
        chance = max(LEVEL * abs(self.baselines[name]), self.standard_errors.get(name, 0.0))
        return abs(self.gain(name)) <= chance


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
    errors = {name: error for name, error in (record.get("standard_errors") or {}).items() if error is not None}
    if isinstance(final, Mapping):
        key = next((name for name in final if name != "users"), None)
        if key is None or final[key] is None:
            return None
        baseline_values = {name: values[key] for name, values in baselines.items() if values.get(key) is not None}
        return Score(f"test {metric_name(key)}", "loss" in key, float(final[key]), baseline_values, errors)
    if final is None:
        return None
    baseline_values = {name: value for name, value in baselines.items() if value is not None}
    return Score(f"test {quality.label}", True, float(final), baseline_values, errors)


def verdict(record: Mapping[str, Any]) -> Verdict:
    """The verdict on a record of ``record.py``.

    Scores within 0.5 % of each other are level, and so are those within one standard error over paired users. A win is
    over every baseline of the run, and good where at least half of the way from the best one to a model of all data in
    one place is gone. What `odp compare` runs and this run did not is named.
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
    order = sorted(rivals, key=score.gain)
    best = order[0]
    level = next((name for name in order if score.is_level(name)), None)
    about = f"{_not_run(quality)}{_unprotected(record)}"
    better = next((name for name in order if score.gain(name) < 0 and not score.is_level(name)), None)
    if better is not None:
        winner = look(better).name
        text = f"{winner[:1].upper()}{winner[1:]} wins with {rivals[better]:.3f}: this model has {reached}."
        advice = "the noise outweighs what it learns; try a larger ε, more users or fewer parameters"
        if record.get("epsilon") is None:
            advice = "it fails without noise, too, so its settings or its data do not fit"
        runs = f" {runs_it(winner, quality.tasks[better])}" if better in quality.tasks else ""
        return Verdict("lose", text, f"That is not good: {advice}.{runs}{about}")
    if level is not None:
        which = "the best baseline" if level == best else "a baseline"
        text = f"This model and {which} are level: {reached}, {_named(level, score)}{_chance(level, score)}."
        return Verdict("level", text, f"What it learns beyond that does not pay for its ε.{about}")
    share = score.gain(best) / abs(rivals[best]) if rivals[best] else 1.0
    change = f"{100 * share:.1f} % {'below' if score.lower_is_better else 'above'}"
    text = f"This model beats each baseline of this run: {reached}, {change} the best baseline, {_named(best, score)}."
    return Verdict("win", text, _judged(score, quality, best) + about)


def runs_it(method: str, task: str | None) -> str:
    """What a developer writes to train by a method; "" says that there is no such task, None that it needs none."""
    if task is None:
        return f"A device needs no task for {method.partition(',')[0]}: it computes that alone."
    if not task:
        return f"No task runs {method} on devices."
    return f"On devices, {method} is the task of an odp.MatrixFactorization with {task}."


def _named(name: str, score: Score) -> str:
    return f"{look(name).name} ({score.baselines[name]:.3f})"


def _chance(name: str, score: Score) -> str:
    error = score.standard_errors.get(name, 0.0)
    if abs(score.gain(name)) > error:
        return ""
    return f"; the difference is within one standard error over users, {error:.3f}"


def _not_run(quality: Quality) -> str:
    if not quality.not_run:
        return ""
    return f" Not run here, and private as well: {' and '.join(quality.not_run)}; `odp compare` runs them."


def _judged(score: Score, quality: Quality, best: str) -> str:
    ceilings = [name for name in quality.ceilings if name in score.baselines]
    if not ceilings:
        return "How far it could go is unknown: no model of all data in one place was run."
    name = ceilings[0]
    gone = score.gain(best)
    way = gone - score.gain(name)
    shown = _named(name, score)
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
