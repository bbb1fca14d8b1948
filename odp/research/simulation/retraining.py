"""A model that lives: trainings in a row, each beginning with the release before it, under one lifetime budget.

::

    schedule = odp.living.Schedule(every="7d", horizon="2y", lifetime_epsilon=20.0, delta=1e-6)
    found = odp.living.retrain(schedule, drifting_ratings(weeks=schedule.trainings))
    found.rows, found.draw("error.png")

A training is what ``odp.simulate`` runs: the task of a preset for the data of its week, with the share of the budget
that the schedule gives. What it starts from is a release, so that starting costs no privacy.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odp.algorithms.registry import starting_for
from odp.datasets.catalogue import catalogue_keys
from odp.datasets.item_features import has_item_features
from odp.datasets.ratings import Ratings, Split
from odp.datasets.splitting import TimeCut, random_split
from odp.errors import ConfigurationError, DataError
from odp.evaluation.baselines import rmse, user_mean_predictions
from odp.models.warm_start import WarmStart
from odp.privacy import accounting
from odp.privacy.events import Event
from odp.research.simulation.engine import simulate
from odp.research.simulation.inputs import SIMULATION
from odp.research.simulation.presets import preset_task
from odp.research.simulation.result_tables import write_csv
from odp.tasks.task import Task
from odp.trainings.charges import payable, with_share
from odp.trainings.schedule import Schedule

if TYPE_CHECKING:
    from odp.datasets.drifting import Week
    from odp.datasets.monthly import Month

_MONTH = 4  # weeks


@dataclass(frozen=True)
class Training:
    """One training of a schedule.

    Attributes:
      number: from 0.
      epsilon: of this training alone, infinite without noise.
      epsilon_so_far: of all trainings up to this one, per user, as a ledger adds them up.
      items: of the catalogue; ``known``: those that the start had.
      test_rmse: on what people rate until the next training; NaN where they rate nothing.
      user_mean_rmse: of each user's own mean there, which needs no platform.
      seconds: for the whole training.
    """

    number: int
    epsilon: float
    epsilon_so_far: float
    items: int
    known: int
    test_rmse: float
    user_mean_rmse: float
    seconds: float


@dataclass(frozen=True, repr=False)
class Retraining:
    """All trainings of a schedule on one data set, and the last model as a start of others.

    ``notes`` say how tables were read: what was guessed, and how many rows were left out, of each table.
    """

    schedule: Schedule
    trainings: tuple[Training, ...]
    start: WarmStart
    warm: bool
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One dict per training, with the attributes of ``Training``."""
        return [asdict(training) for training in self.trainings]

    @property
    def epsilon(self) -> float:
        """Per user, of all trainings."""
        return self.trainings[-1].epsilon_so_far

    def mean_rmse(self, first: int, last: int) -> float:
        """Mean test RMSE of the trainings from ``first`` to before ``last``, as of a slice."""
        chosen = [training.test_rmse for training in self.trainings[first:last]]
        return math.fsum(chosen) / len(chosen) if chosen else math.nan

    def to_csv(self, path: str | os.PathLike[str]) -> Path:
        """Writes ``rows``, and returns the path. Raises DataError where it cannot be written."""
        return write_csv(path, self.rows)

    def to_json(self) -> dict[str, Any]:
        """A JSON-able value; infinity is the string "inf"."""
        return {
            "statement": SIMULATION,
            "schedule": asdict(self.schedule),
            "warm": self.warm,
            "notes": list(self.notes),
            "epsilon": "inf" if math.isinf(self.epsilon) else self.epsilon,
            "first_month_rmse": self.mean_rmse(0, _MONTH),
            "last_month_rmse": self.mean_rmse(-_MONTH, len(self.trainings)),
            "trainings": [
                {name: "inf" if value == math.inf else value for name, value in row.items()} for row in self.rows
            ],
        }

    def __repr__(self) -> str:
        first, last = self.mean_rmse(0, _MONTH), self.mean_rmse(-_MONTH, len(self.trainings))
        about = "".join(f"; {note}" for note in self.notes)
        return (
            f"Retraining({len(self.trainings)} trainings, ε = {self.epsilon:.4g}, test RMSE {first:.4f} in the first "
            f"{_MONTH} and {last:.4f} in the last{about})"
        )


def retrain(
    schedule: Schedule,
    weeks: Iterable[Week | Month | Split | Ratings],
    *,
    features: bool | None = None,
    start: WarmStart | None = None,
    warm: bool = True,
    noise: bool = True,
    seed: int = 1,
    cut: TimeCut | None = None,
    on_training: Callable[[Training], None] | None = None,
) -> Retraining:
    """Trains once per element of ``weeks``, as often as ``schedule`` says, or until there are no more.

    Args:
      schedule: when, and with which budget.
      weeks: what devices hold at each training, and what they test it by; whole ``Ratings`` are split at random, or by
        ``cut``.
        Catalogues may differ: items are matched by ``odp.datasets.catalogue.catalogue_keys``.
      features: whether models use public item features; None is where the data have them.
      start: what the first training begins with.
      warm: begin each further training with the release before it. False shows what starting anew costs.
      noise: False is not private, and is shown as ε = infinity.
      seed: of the noise; training ``n`` takes ``seed + n``.
      cut: the moment from which on whole ``Ratings`` are tested on.
      on_training: called after each training, for progress.

    Raises:
      ConfigurationError: there is no week, or a week shares no item with the start.
      BudgetExceeded: a training would exceed the lifetime budget; it does not begin.
      DataError: a week holds implicit feedback; others, and PrivacyError, as ``preset_task`` and ``simulate``.
    """
    spent: Counter[Event] = Counter()
    done: list[Training] = []
    last = start
    notes: dict[str, None] = {}
    for number, week in zip(range(schedule.trainings), weeks, strict=False):
        split = week if isinstance(week, (Split, Ratings)) else week.split
        if isinstance(split, Ratings):
            split = random_split(split, seed=seed + number) if cut is None else cut.split(split, seed=seed + number)
        if split.train.implicit:
            raise DataError(
                f"the data set {split.train.name!r} holds implicit feedback, and this measures errors of ratings: "
                "simulate each training with odp.simulate, and odp.items.warm_start(.., task=..) between them"
            )
        if not number and not split.test.n_ratings:
            raise DataError(
                f"the test part of data set {split.train.name!r} has no ratings, so there is no error to measure: give"
                " more ratings per user"
            )
        notes |= dict.fromkeys(f"{split.train.name}: {note}" for note in split.train.notes)
        keys = catalogue_keys(split.train)
        task = _task(schedule, number, split.train, spent=spent if noise else Counter(), features=features, start=last)
        spent.update(payable(schedule, number, task.definition(), spent) if noise else ())
        finished = simulate(task, split, seed=seed + number, noise=noise)
        known_items = 0 if last is None else len(set(last.keys) & set(keys))
        done.append(
            Training(
                number=number,
                epsilon=finished.epsilon,
                epsilon_so_far=accounting.epsilon(spent, delta=schedule.delta) if noise else math.inf,
                items=split.train.n_items,
                known=known_items,
                test_rmse=float(finished.metrics["test_rmse"]),
                user_mean_rmse=rmse(user_mean_predictions(split), split.test),
                seconds=finished.seconds,
            )
        )
        released = starting_for(task.definition()).warm_start(finished.model, keys)
        last = released if warm else start
        if on_training is not None:
            on_training(done[-1])
    if not done:
        raise ConfigurationError("Expected weeks to hold the data of at least one training")
    return Retraining(schedule=schedule, trainings=tuple(done), start=released, warm=warm, notes=tuple(notes))


def _task(
    schedule: Schedule, number: int, train: Ratings, *, spent: Counter[Event], features: bool | None,
    start: WarmStart | None,
) -> Task:  # fmt: skip
    """The preset's task at the share of this training, after what was ``spent`` before."""
    wanted = has_item_features(train) if features is None else features
    share = schedule.budgets()[number]
    task = preset_task("auto", train, epsilon=share.epsilon, delta=share.delta, features=wanted, start=start)
    return replace(with_share(schedule, number, task, spent=spent), name=f"training-{number}")
