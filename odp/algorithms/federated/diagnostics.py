"""How large users' updates are and how far they are apart, round by round, from the releases of a training.

With ``diagnostics=True`` a contribution ends in one more number (``odp.algorithms.dense.update_spread``), so that a
release tells both. All of it is post-processing of releases: the charge of the rounds covers it.

Rounding adds a little to the squared norm of a mean: a sixth of a step squared per contribution and number, on average.
It is subtracted like the noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, Self

import numpy as np

from odp import _validate
from odp.algorithms.dense.update_spread import SpreadTerms
from odp.algorithms.federated.terms import RELEASE, Terms
from odp.algorithms.seam import NoisyTensors
from odp.errors import ConfigurationError
from odp.privacy.adaptive_clip import ClipState

_ROUNDING = 1.0 / 6.0  # of a number that is rounded at random, over the step squared, on average


@dataclass(frozen=True)
class UpdateFigures:
    """What one round's release tells of the clipped updates, per parameter; estimates may be below 0.

    Attributes:
      clip_norm: of the round.
      update_scale: mean square of the mean update, per parameter.
      client_variance: mean over users of the squared distance from the mean update, per parameter.
      update_scale_std, client_variance_std: standard deviations of the noise on both; 0 without noise.
      share_within_clip: of the users whose norm was within the clip norm, noisy; None where it is not released.
    """

    clip_norm: float
    update_scale: float
    update_scale_std: float
    client_variance: float
    client_variance_std: float
    share_within_clip: float | None = None


def figure_names(terms: Terms) -> tuple[str, ...]:
    """The names of what each round's release tells; none where a training has no diagnostics."""
    if not terms.spread:
        return ()
    names = ("clip_norm", "update_scale", "update_scale_std", "client_variance", "client_variance_std")
    return names if terms.adaptive is None else (*names, "share_within_clip")


def figures_of(terms: Terms, released: NoisyTensors, *, clip: float, noisy: bool = True) -> UpdateFigures:
    """The figures of a round whose model had this clip norm.

    Raises:
      ConfigurationError: the training releases none, or the release is of another one.
    """
    if not terms.spread:
        raise ConfigurationError("Expected a training with diagnostics=True: the releases of others tell no spread")
    block, upload = terms.block_of(released.round), terms.upload(released.round)
    integers = released.tensors.get(RELEASE)
    if integers is None or integers.shape != (upload.size,):
        raise ConfigurationError(f"Expected a release {RELEASE!r} of {upload.size} numbers")
    values, size = upload.values(integers), terms.model.size
    noise = block.grid.noise_std if noisy else 0.0
    rounded = math.sqrt(block.cohort * _ROUNDING) * block.grid.step
    estimates = SpreadTerms(size=size, clip=clip, weight=terms.spread).estimates(
        np.append(values[:size], values[-1]) * clip, cohort=block.cohort, noise_std=math.hypot(noise, rounded) * clip
    )
    within = (
        None
        if terms.adaptive is None
        else min(max(0.5 + terms.bits_of(values, released.round) / terms.cohort, 0.0), 1.0)
    )
    return UpdateFigures(
        clip_norm=clip, update_scale=estimates.scale, update_scale_std=estimates.scale_std if noisy else 0.0,
        client_variance=math.nan if estimates.variance is None else estimates.variance,
        client_variance_std=estimates.variance_std if noisy else 0.0, share_within_clip=within,
    )  # fmt: skip


@dataclass(frozen=True)
class UpdateDiagnostics:
    """``odp.algorithms.capabilities.Answers`` of a training: the figures of its rounds so far, in order.

    Attributes:
      rounds: from round 0 on.
      contributions: of the last round.
      epsilon: what all rounds so far cost, at ``delta``; infinite without noise.
    """

    task: str
    rounds: tuple[UpdateFigures, ...]
    contributions: int
    epsilon: float
    delta: float

    def to_json(self, confidence: float = 0.95) -> dict[str, object]:
        """Plain values; ``half_width`` of the intervals of each round."""
        factor = _factor(confidence)
        rounds = [
            {"round": number, **asdict(figures)}
            | {"update_scale_half_width": factor * figures.update_scale_std}
            | {"client_variance_half_width": factor * figures.client_variance_std}
            for number, figures in enumerate(self.rounds)
        ]
        release = {"task": self.task, "contributions": self.contributions, "epsilon": self.epsilon, "delta": self.delta}
        return {**release, "confidence": confidence, "rounds": rounds}

    def lines(self, confidence: float, exact: Self | None = None) -> Iterator[object]:
        """One table."""
        from rich.table import Table

        factor = _factor(confidence)
        table = Table("round", "clip norm", "update scale", "variance between users", "within the clip norm")
        for number, figures in enumerate(self.rounds):
            table.add_row(
                str(number), f"{figures.clip_norm:.4g}",
                interval(figures.update_scale, factor * figures.update_scale_std),
                interval(figures.client_variance, factor * figures.client_variance_std),
                "-" if figures.share_within_clip is None else f"{figures.share_within_clip:.0%}",
            )  # fmt: skip
        yield table

    def draw(self, path: str | Path, *, exact: Self | None = None, confidence: float = 0.95) -> None:
        """Saves a picture of both over the rounds. Raises DataError where it cannot."""
        from odp.pictures import style

        factor, numbers = _factor(confidence), range(len(self.rounds))
        figure, panels = style.figure(1, 2, width=8.5, height=3.6)
        shown: Sequence[tuple[str, str, str]] = (
            ("update_scale", "update_scale_std", "Update scale"),
            ("client_variance", "client_variance_std", "Variance between users"),
        )
        for panel, (value, std, title) in zip(panels, shown, strict=True):
            values = [getattr(figures, value) for figures in self.rounds]
            error = [factor * getattr(figures, std) for figures in self.rounds]
            style.line(panel, numbers, values, style.OURS)
            style.whiskers(panel, numbers, values, np.subtract(values, error), np.add(values, error))
            style.head(panel, title, "per parameter")
            style.whole_numbers(panel)
            panel.set_xlabel("round")
        style.note(figure, style.marks(confidence, exact=False))
        style.save(figure, path, title="size and variance of updates by round")


def diagnosed(
    terms: Terms, releases: Sequence[NoisyTensors], *, task: str, epsilon: float, delta: float
) -> UpdateDiagnostics:
    """The figures of releases, from round 0 on without gaps: an adaptive clip norm follows from all before.

    Raises:
      ConfigurationError: the training releases none, there is no release, or they are not of rounds 0, 1, ..
    """
    if [release.round for release in releases] != list(range(len(releases))) or not releases:
        raise ConfigurationError(
            f"Expected the releases of task {task!r} from round 0 on (got {len(releases)} of them): wait for its first "
            "round; an answer has no room for all releases of a large model"
        )
    clip = None if terms.adaptive is None else ClipState.initial(terms.clip_terms())
    figures = []
    for release in releases:
        figures.append(figures_of(terms, release, clip=terms.clip if clip is None else clip.clip))
        if clip is not None:
            clip = clip.step(terms.bits_of(terms.upload(release.round).values(release.tensors[RELEASE]), release.round))
    return UpdateDiagnostics(task, tuple(figures), releases[-1].contributions, epsilon, delta)


def interval(value: float, half_width: float) -> str:
    """A figure and its interval, for people."""
    return f"{value:.3g} ± {half_width:.2g}"


def _factor(confidence: float) -> float:
    _validate.within(low=0.5, high=0.9999, confidence=confidence)
    return NormalDist().inv_cdf(0.5 + confidence / 2.0)


def plain(figures: UpdateFigures) -> dict[str, Any]:
    """The figures by name, without those that are not released."""
    return {name: value for name, value in asdict(figures).items() if value is not None}
