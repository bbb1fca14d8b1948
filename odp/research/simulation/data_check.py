"""`odp data check`: what a table holds, the task that fits it, and the least ε at which a model learns from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from odp.algorithms.experiment import NamedData, experiment_of
from odp.datasets.ratings import Ratings
from odp.errors import ConfigurationError, DataError, PrivacyError
from odp.models.matrix_factorization import MatrixFactorization
from odp.research.simulation.engine import check_population
from odp.research.simulation.methods import RANKING_METHODS, RATING_METHODS
from odp.research.simulation.presets import preset_task
from odp.tasks.task import Task

if TYPE_CHECKING:
    from odp.datasets.tables import TableReading

EPSILONS = (1.0, 2.0, 4.0, 8.0)
FEW_USERS = 100
_USUAL_DELTA = 1e-6


@dataclass(frozen=True)
class Spread:
    """How many interactions users or items have: the least, the quartiles and the most."""

    least: int
    lower: float
    median: float
    upper: float
    most: int

    @classmethod
    def of(cls, counts: npt.NDArray[np.int64]) -> Spread:
        """Of counts, int64 [n], n >= 1."""
        least, lower, median, upper, most = np.percentile(counts, (0, 25, 50, 75, 100)).tolist()
        return cls(int(least), lower, median, upper, int(most))

    def __str__(self) -> str:
        middle = f"half from {self.lower:,.0f} to {self.upper:,.0f}"
        return f"{self.least:,} to {self.most:,}, median {self.median:,.0f}, {middle}"


@dataclass(frozen=True)
class DataCheck:
    """A data set, looked at by its owner: counts and shapes of the data themselves, so no private release.

    Attributes:
      ratings: the interactions.
      reading: of a table, how it was read; None for a data set of a known form.
      activity, popularity: interactions of each user and of each item.
      delta: for this number of users.
      epsilon: the least of ``EPSILONS`` at which noise leaves the average item's signal; None where none does.
      task: that fits, at ``epsilon`` or else at the largest of ``EPSILONS``; None where there are too few users.
      advice: a line for each thing to know before a run.
    """

    ratings: Ratings
    reading: TableReading | None
    activity: Spread
    popularity: Spread
    delta: float
    epsilon: float | None
    task: Task | None
    advice: tuple[str, ...]

    @property
    def not_tried(self) -> tuple[str, ...]:
        """Private methods that may fit better: `odp compare` runs them, and a look at the data does not."""
        methods = RANKING_METHODS if self.ratings.implicit else RATING_METHODS
        return tuple(method.name for method in methods if method.spends and method.task is not None)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        ratings, reading = self.ratings, self.reading
        summary: dict[str, Any] = {
            "name": ratings.name,
            "users": ratings.n_users,
            "items": ratings.n_items,
            "ratings": ratings.n_ratings,
            "density": ratings.density,
            "low": ratings.low,
            "high": ratings.high,
            "implicit": ratings.implicit,
            "duplicates": ratings.duplicates,
            "ordered": ratings.order is not None,
            "items_per_user": vars(self.activity),
            "users_per_item": vars(self.popularity),
            "delta": self.delta,
            "epsilon": self.epsilon,
            "advice": list(self.advice),
            "not_tried": list(self.not_tried),
            "notes": list(ratings.notes),
        }
        if reading is not None:
            summary |= {
                "rows": reading.rows,
                "columns": {role: getattr(reading.columns, role) for role in ("user", "item", "value", "time")},
                "scale_guessed": reading.scale.guessed,
                "values": reading.values,
                "not_seen": reading.unseen,
                "bad_rows": reading.bad.total,
                "bad": [
                    {"why": why, "rows": count, "first": list(places)} for why, count, places in reading.bad.reasons
                ],
                "positions_are": reading.bad.counted,
            }
        return summary


def item_counts(ratings: Ratings) -> npt.NDArray[np.int64]:
    """Interactions of each item, int64 [n_items]."""
    return np.bincount(ratings.items, minlength=ratings.n_items).astype(np.int64)


def usual_delta(n_users: int) -> float:
    """The δ of a task for a population: 1e-6, or less where it is large."""
    return min(_USUAL_DELTA, 10.0 ** -(math.floor(math.log10(max(n_users, 1))) + 1))


def check_data(ratings: Ratings, reading: TableReading | None = None) -> DataCheck:
    """Looks at a data set; reads all of it, without noise.

    Raises:
      DataError: there is nothing in it.
    """
    if not ratings.n_ratings:
        raise DataError(f"the data set {ratings.name!r} holds no ratings")
    delta = usual_delta(ratings.n_users)
    advice = list(ratings.notes)
    epsilon, task = _fitting(ratings, delta, advice)
    if ratings.n_users < FEW_USERS:
        advice.append(
            f"{ratings.n_users} users are few: noise hides each one, and below {FEW_USERS} a model learns little"
        )
    return DataCheck(
        ratings=ratings,
        reading=reading,
        activity=Spread.of(ratings.counts()),
        popularity=Spread.of(item_counts(ratings)),
        delta=delta,
        epsilon=epsilon,
        task=task,
        advice=tuple(advice),
    )


def _fitting(ratings: Ratings, delta: float, advice: list[str]) -> tuple[float | None, Task | None]:
    named = NamedData.of(ratings)
    task, weak = None, ""
    for epsilon in EPSILONS:
        try:
            task = preset_task("auto", ratings, epsilon=epsilon, delta=delta)
        except PrivacyError as error:
            advice.append(str(error))
            return None, None
        if not (notes := experiment_of(task, named, seed=1, held_out=None).notes(noise=True)):
            return epsilon, task
        weak = notes[0]
    advice.append(f"at ε = {EPSILONS[-1]:g}: {weak}")
    return None, task


@dataclass(frozen=True)
class UsableRatings:
    """How many ratings a task trains on.

    Attributes:
      ratings: in all; a task that could use some of them alone refuses the table.
      users: in all.
      most_items: of one user, that a contribution has at most; None where the training chooses.
      beyond: users with more.
    """

    ratings: int
    users: int
    most_items: int | None
    beyond: int

    def lines(self) -> list[str]:
        """For people."""
        lines = [f"usable      all {self.ratings:,} ratings, of {self.users:,} users"]
        if self.beyond:
            lines.append(
                f"drawn       {self.beyond:,} users have more than max_items_per_user={self.most_items:,}: a device "
                "draws as many of theirs"
            )
        return lines

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return vars(self)


def usable_ratings(task: object, ratings: Ratings) -> UsableRatings:
    """What a task trains on of ratings.

    Raises:
      ConfigurationError: the task trains no model of ratings.
      DataError: the ratings do not fit the task: another number of items, or values beyond its scale.
    """
    if not isinstance(task, Task) or not isinstance(task.model, MatrixFactorization):
        raise ConfigurationError("Expected --task with a task that trains a model of ratings or of labelled examples")
    check_population(task, ratings)
    most = task.privacy.max_items_per_user
    beyond = 0 if most is None else int((ratings.counts() > most).sum())
    return UsableRatings(ratings.n_ratings, ratings.n_users, most, beyond)


def draw_check(path: Path, check: DataCheck) -> None:
    """Draws who is active and what is popular: each user's and each item's interactions, from most to least.

    The form follows from the file's ending: .svg, .png or .pdf.

    Raises:
      DataError: the file cannot be written, or its ending names no form.
    """
    from odp.pictures import style

    figure, panels = style.figure(1, 2, width=9.6, height=3.8)
    shown = style.ours("")
    for panel, counts, spread, who in zip(
        panels,
        (check.ratings.counts(), item_counts(check.ratings)),
        (check.activity, check.popularity),
        ("user", "item"),
        strict=True,
    ):
        ordered = np.maximum(np.sort(counts)[::-1], 0.5)
        # A line needs no more points than a picture has pixels.
        places = np.unique(np.geomspace(1, len(ordered), 400).astype(np.int64))
        panel.fill_between(places, ordered[places - 1], ordered.min(), color=shown.colour, alpha=0.12, linewidth=0)
        panel.plot(places, ordered[places - 1], color=shown.colour, linewidth=shown.width)
        panel.set(xscale="log", yscale="log", xlabel=f"{who}s, from most to least")
        style.label(panel, max(spread.median, 0.5), f"median {spread.median:,.0f}")
        style.head(panel, "Active users" if who == "user" else "Popular items", f"interactions per {who}")
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else "0")
            axis.set_minor_formatter(lambda *_: "")
    style.save(figure, path, title=f"Activity and popularity in {check.ratings.name}")


def bars(counts: npt.NDArray[np.int64], *, width: int = 30) -> list[tuple[str, int, str]]:
    """How many users (or items) have 1, 2-3, 4-7, .. interactions: (range, how many, bar of ``width`` at most)."""
    highest = int(counts.max(initial=0))
    edges = [0, 1]
    while edges[-1] <= highest:
        edges.append(edges[-1] * 2)
    numbers = np.histogram(counts, bins=[*edges])[0]
    rows: list[tuple[str, int, str]] = []
    for low, high, number in zip(edges, edges[1:], numbers.tolist(), strict=False):
        if number or rows:
            label = f"{low:,}" if high - low == 1 else f"{low:,} to {high - 1:,}"
            rows.append((label, number, "█" * max(round(width * number / int(numbers.max())), int(number > 0))))
    return rows
