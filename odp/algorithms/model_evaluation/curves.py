"""The ranking and the calibration of predicted probabilities, from noisy histograms of them with and without the label.

Both histograms count shares of users, in bins of equal width from 0 to 1. The numbers are those of the binned
probabilities: within a bin, order is not known, and a pair of examples of one bin counts half in the AUC.

An interval covers the noise. With ``sampled``, it also covers which users took part: the variance of a user's part is
bounded by that of users who have all their examples in one bin, which is the largest that the histograms allow.

A picture of an evaluation: the ranking and the calibration of each model, or its metrics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from odp.algorithms.estimates import Estimate, deviations, quadratic_interval, quotient_interval
from odp.numerics.arrays import Float64Array
from odp.pictures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GROUPS = 10


@dataclass(frozen=True)
class Histograms:
    """Shares of users by bin of the probability, float64 [bins] each, with independent noise of ``std`` on each."""

    labelled: Float64Array
    others: Float64Array
    std: float

    def auc(self, confidence: float, *, sampled: bool = False) -> Estimate:
        """The probability that an example with the label has the higher score, where every user weighs the same.

        The value is the area under a monotone curve: that of the nearest histograms without negative counts. The
        interval has every area a at which ``sum over pairs of (order - a)`` is within its error of 0. The noises of
        the two histograms are independent, so this sum is unbiased; its error is taken as normal. Where the noise hides
        whether there are examples of both kinds, the interval is [0, 1].

        Source: Fieller 1954, for the quotient of two bilinear forms.
        """
        value = _area(*self.curve())
        below, above = _below(self.others), _above(self.labelled)
        most, least = float(self.labelled.sum()), float(self.others.sum())
        bins, square, noise = len(below), deviations(confidence) ** 2, self.std**2
        positive = min(most, least) > deviations(confidence) * self.std * math.sqrt(bins)
        # The error's variance at an area a is first - 2 a middle + a^2 last: its parts are the sum's derivatives.
        first = noise * float(below @ below + above @ above)
        middle = noise * float(least * below.sum() + most * above.sum())
        last = noise * bins * (least**2 + most**2)
        if sampled:
            pairs = (np.maximum(self.labelled, 0.0), below, least), (np.maximum(self.others, 0.0), above, most)
            for counts, order, total in pairs:
                first += float(counts @ np.square(order))
                middle += total * float(counts @ order)
                last += total**2 * float(counts.sum())
        ordered, pairs_sum = float(self.labelled @ below), most * least
        interval = quadratic_interval(
            pairs_sum**2 - square * last, ordered * pairs_sum - square * middle, ordered**2 - square * first,
            positive=positive,
        )  # fmt: skip
        low, high = (0.0, 1.0) if interval is None else interval
        return Estimate(value, max(0.0, min(low, value)), min(1.0, max(high, value)))

    def curve(self) -> tuple[Float64Array, Float64Array]:
        """(share of others, share of those with the label) above each threshold, float64 [bins + 1], both ascending."""
        shares = []
        for counts in (self.others, self.labelled):
            above = np.concatenate(([0.0], np.cumsum(_monotone(counts)[::-1])))
            shares.append(above / above[-1] if above[-1] > 0.0 else np.linspace(0.0, 1.0, len(above)))
        return shares[0], shares[1]

    def calibration(self, users: float, confidence: float) -> Calibration:
        """Predicted probability against the share with the label, where the noisy number of users is ``users``."""
        bins = len(self.labelled)
        middles = (np.arange(bins) + 0.5) / bins
        edges = np.unique(np.linspace(0, bins, min(_GROUPS, bins) + 1).round().astype(np.int64))
        z, groups, gaps, errors = deviations(confidence), [], [], []
        for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            group, middle = slice(start, stop), middles[start:stop]
            labelled, others = self.labelled[group], self.others[group]
            part, total = float(labelled.sum()), float((labelled + others).sum())
            noise = self.std**2 * (stop - start)
            interval = quotient_interval((part, noise), (total, 2.0 * noise), deviations=z, covariance=noise)
            value = min(1.0, max(0.0, part / total)) if total > 0.0 else 0.5
            low, high = (0.0, 1.0) if interval is None else (max(0.0, interval[0]), min(1.0, interval[1]))
            counts = np.maximum(labelled + others, 0.0)
            predicted = float(counts @ middle / counts.sum()) if counts.any() else float(middle.mean())
            observed = Estimate(value, min(low, value), max(high, value))
            groups.append(Group(start / bins, stop / bins, predicted, observed, max(0.0, total / users)))
            gaps.append(float(labelled @ (1.0 - middle) - others @ middle))
            errors.append(self.std * math.sqrt(float(np.square(1.0 - middle).sum() + np.square(middle).sum())))
        error = _error(np.array(gaps), np.array(errors), users, self.std, confidence)
        return Calibration(tuple(groups), error)


@dataclass(frozen=True)
class Group:
    """Examples whose predicted probability is from ``low`` to ``high``.

    Attributes:
      predicted: their mean predicted probability, of the middles of its bins.
      observed: the share of them that has the label.
      share: of all examples, where every user weighs the same.
    """

    low: float
    high: float
    predicted: float
    observed: Estimate
    share: float


@dataclass(frozen=True)
class Calibration:
    """How far predicted probabilities are from what happens.

    Attributes:
      groups: by predicted probability, each interval for its own group.
      error: expected calibration error: the mean of |predicted - observed| over the groups, by their share.
    """

    groups: tuple[Group, ...]
    error: Estimate


@dataclass(frozen=True)
class Measured:
    """One model.

    Attributes:
      users: who had examples to test it on: a noisy number.
      metrics: by name.
      calibration: None without histograms.
    """

    users: Estimate
    metrics: Mapping[str, Estimate]
    calibration: Calibration | None


def _error(gaps: Float64Array, errors: Float64Array, users: float, std: float, confidence: float) -> Estimate:
    """Sum of |gap| over users. Noise makes it larger: the value takes the noise's part out, the interval covers it."""
    # Half of the allowed error is for the gaps, on one side, and half for the number of users.
    z, margin = deviations(confidence), deviations(0.5 + 0.5 * confidence) * std
    # |sum of |noisy gap| - sum of |gap|| is at most the sum of |noise|, of half-normal numbers.
    spread = float(np.sqrt(np.square(errors).sum() * (1.0 - 2.0 / math.pi)))
    reach = float(errors.sum()) * math.sqrt(2.0 / math.pi) + z * spread
    total = float(np.abs(gaps).sum())
    if users <= margin:
        return Estimate(0.0, 0.0, 1.0)
    value = min(1.0, float(np.sqrt(np.maximum(np.square(gaps) - np.square(errors), 0.0)).sum()) / users)
    low, high = max(0.0, total - reach) / (users + margin), (total + reach) / (users - margin)
    return Estimate(value, min(low, value), min(1.0, max(high, value)))


def _area(across: Float64Array, up: Float64Array) -> float:
    """Below a curve."""
    return float(np.diff(across) @ (0.5 * (up[1:] + up[:-1])))


def _below(counts: Float64Array) -> Float64Array:
    """Counts in lower bins, and half of the own one."""
    return np.asarray(np.cumsum(counts) - 0.5 * counts)


def _above(counts: Float64Array) -> Float64Array:
    """Counts in higher bins, and half of the own one."""
    return _below(counts[::-1])[::-1]


def _monotone(counts: Float64Array) -> Float64Array:
    """The nearest counts of the same sum, none negative: zeros where the sum is not positive."""
    if (total := float(counts.sum())) <= 0.0:
        return np.zeros_like(counts)
    descending = np.sort(counts)[::-1]
    cut = (np.cumsum(descending) - total) / np.arange(1, len(counts) + 1)
    last = int(np.flatnonzero(descending > cut)[-1])
    return np.asarray(np.maximum(counts - cut[last], 0.0))


@dataclass(frozen=True)
class Drawn:
    """What is drawn, by model; no histograms where none were released, and nothing at all where nothing is known."""

    models: Mapping[str, Measured]
    histograms: Mapping[str, Histograms]


def draw(results: Drawn, path: str | Path, *, exact: Drawn) -> None:
    """Saves the picture; ``exact`` is drawn beside it.

    Raises:
      DataError: the file cannot be written, or its ending names no format of pictures.
    """
    if results.histograms:
        figure, (ranking, calibration) = style.figure(1, 2, width=10.0, height=4.6)
        _curves(ranking, results, exact)
        _calibration(calibration, results)
        rings = "; dotted: without noise, never released" if exact.histograms else ""
    else:
        figure, (panel,) = style.figure(width=8.0, height=4.0)
        _metrics(panel, results, exact)
        rings = "; rings: without noise, never released" if exact.models else ""
    style.note(figure, f"Released, with noise; thin lines are its intervals{rings}")
    style.save(figure, path, title="evaluation of models")


def _looks(results: Drawn) -> dict[str, style.Look]:
    """The first model in the accent colour, those that it is compared with in grey."""
    looks = (style.OURS, *style.GREYS)
    return {name: looks[place % len(looks)] for place, name in enumerate(results.models or results.histograms)}


def _curves(panel: Axes, results: Drawn, exact: Drawn) -> None:
    looks = _looks(results)
    for name, histograms in results.histograms.items():
        shown = looks.get(name, style.OURS)
        panel.plot(*histograms.curve(), color=shown.colour, linestyle=shown.dashes, linewidth=shown.width)
        if name in exact.histograms:
            panel.plot(*exact.histograms[name].curve(), ":", color=style.LIGHT.ink, linewidth=1.0)
    panel.plot([0, 1], [0, 1], color=style.LIGHT.grid, linewidth=1)
    # Curves meet at both ends, so that their names stand in the empty corner below them.
    for place, name in enumerate(reversed(list(results.histograms))):
        shown = looks.get(name, style.OURS)
        panel.annotate(
            f"{name}{_dash(shown)}", (0.98, 0.04 + 0.08 * place), xycoords="axes fraction", ha="right",
            color=shown.colour, fontsize=style.BODY, fontweight="bold" if shown.ours else "normal",
        )  # fmt: skip
    style.head(panel, "Ranking", "share of examples with the label above a threshold")
    panel.set_xlabel("share of examples without the label above it")


def _dash(shown: style.Look) -> str:
    return "" if shown.dashes == "-" else " (dashed)"


def _calibration(panel: Axes, results: Drawn) -> None:
    panel.plot([0, 1], [0, 1], color=style.LIGHT.muted, linewidth=0.8, linestyle=":")
    looks = _looks(results)
    for name, model in results.models.items():
        if model.calibration is None:
            continue
        shown, groups = looks[name], model.calibration.groups
        places, values = [group.predicted for group in groups], [group.observed.value for group in groups]
        low, high = [group.observed.low for group in groups], [group.observed.high for group in groups]
        style.whiskers(panel, places, values, low, high, colour=shown.colour)
        panel.plot(
            places, values, shown.marker, color=shown.colour, markersize=6,
            markerfacecolor=shown.colour if shown.ours else style.LIGHT.paper, zorder=4,
        )  # fmt: skip
        if groups:
            style.label(panel, values[-1], name, colour=shown.colour, bold=shown.ours)
    style.head(panel, "Calibration", "share that has the label; exact on the dotted line")
    panel.set_xlabel("predicted probability")


def _metrics(panel: Axes, results: Drawn, exact: Drawn) -> None:
    looks, count = _looks(results), max(len(results.models), 1)
    names = list(dict.fromkeys(metric for model in results.models.values() for metric in model.metrics))
    for number, (name, model) in enumerate(results.models.items()):
        shown = looks[name]
        places = [names.index(metric) + 0.5 * ((number + 0.5) / count - 0.5) for metric in model.metrics]
        values = list(model.metrics.values())
        heights = [estimate.value for estimate in values]
        low, high = [estimate.low for estimate in values], [estimate.high for estimate in values]
        style.whiskers(panel, places, heights, low, high, colour=shown.colour)
        panel.plot(
            places, heights, shown.marker, color=shown.colour, markersize=7, zorder=4,
            markerfacecolor=shown.colour if shown.ours else style.LIGHT.paper,
        )  # fmt: skip
        if name in exact.models:
            style.exact_mark(panel, places, [exact.models[name].metrics[metric].value for metric in model.metrics])
        if heights:
            style.label(panel, heights[-1], name, colour=shown.colour, bold=shown.ours)
    panel.set_xticks(range(len(names)), names)
    panel.margins(x=0.15)
    style.head(panel, "Metrics of the models")
