"""The data sets of the panel: invented ones over a grid of shapes, and real ones.

Odd numbers are for tuning. Even ones are held out: no setting of any method may be chosen by their scores. Each pair of
lines is one region of the grid, of other sizes, ranks and seeds, so that both halves cover the same ground. Real data
sets are all "tuned": settings of DPAM were chosen on some of them, and constants of its prototypes on the others.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odp._validate import nearest
from odp.datasets import RatingModel, Ratings, Split, load, random_split, synthetic_ratings
from odp.datasets.registry import published_split
from odp.errors import ConfigurationError

TUNED, HELD_OUT = "tuned", "held-out"


@dataclass(frozen=True)
class Cell:
    """One data set.

    Attributes:
      name: for people and files; unique in the panel.
      part: TUNED or HELD_OUT.
      shape: for people: what decides how hard it is.
      n_ratings: about how many, for the order of work; 0 where that is unknown.
      definition: all that decides the data, as JSON has it: a score of other data is not taken from a log.
      load: makes the data, the same ones every time.
      folder: of a real data set, which may have a published split.
    """

    name: str
    part: str
    shape: str
    n_ratings: int
    definition: Mapping[str, Any]
    load: Callable[[], Ratings] = dataclasses.field(repr=False, compare=False)
    folder: Path | None = None

    def split(self, ratings: Ratings, *, seed: int) -> Split:
        """The parts of ``ratings``, as ``odp compare`` takes them."""
        published = None if self.folder is None else published_split(self.folder)
        return random_split(ratings, seed=seed) if published is None else published


# fmt: off
#: users, items, ratings per user, rank, signal, popularity, popular bias, activity, features, their share.
_RATED: tuple[tuple[int, int, float, int, float, float, float, float, int, float], ...] = (
    # Nothing but biases and popularity.
    (500, 100, 20, 0, 0, 0.8, 0, 0.9, 0, 0),          (600, 250, 25, 0, 0, 0, 0, 0.5, 0, 0),
    (3000, 1000, 20, 0, 0, 1.0, 0.4, 0.9, 0, 0),      (2000, 400, 30, 0, 0, 0.6, 0.3, 1.5, 0, 0),
    (12000, 300, 20, 0, 0, 0.5, 0, 0.5, 0, 0),        (20000, 800, 15, 0, 0, 1.0, 0.4, 0.9, 0, 0),
    # Weak structure.
    (1000, 150, 30, 2, 0.25, 0.8, 0, 0.9, 0, 0),      (1500, 1200, 25, 1, 0.3, 1.0, 0.4, 0.9, 0, 0),
    (5000, 5000, 25, 2, 0.3, 0.8, 0.3, 1.5, 0, 0),    (8000, 3000, 25, 4, 0.3, 0.6, 0, 0.9, 0, 0),
    (10000, 500, 30, 6, 0.3, 0.5, 0, 0.9, 0, 0),      (20000, 1000, 25, 8, 0.3, 0.8, 0.3, 0.5, 0, 0),
    (30000, 8000, 20, 3, 0.25, 1.0, 0.4, 0.9, 0, 0),  (40000, 12000, 20, 2, 0.3, 0.8, 0.2, 1.5, 0, 0),
    # Structure as in real data.
    (800, 200, 40, 3, 0.5, 0.8, 0, 0.9, 0, 0),        (700, 120, 30, 4, 0.5, 0, 0, 0, 0, 0),
    (4000, 400, 30, 3, 0.5, 0.8, 0.3, 0.9, 0, 0),     (3000, 250, 25, 2, 0.55, 0.5, 0, 1.5, 0, 0),
    (6000, 3700, 80, 6, 0.5, 0.8, 0.4, 1.0, 0, 0),    (9000, 2000, 40, 5, 0.5, 1.0, 0.3, 0.9, 0, 0),
    (25000, 600, 20, 4, 0.5, 0.6, 0, 0.5, 0, 0),      (15000, 150, 25, 8, 0.5, 0, 0, 0.9, 0, 0),
    (20000, 10000, 25, 4, 0.5, 1.0, 0.3, 1.5, 0, 0),  (10000, 6000, 30, 3, 0.5, 1.2, 0.4, 0.9, 0, 0),
    # Strong structure.
    (500, 300, 40, 1, 0.9, 0.8, 0, 0.9, 0, 0),        (900, 500, 50, 2, 0.9, 1.0, 0.3, 0.9, 0, 0),
    (2000, 600, 40, 6, 0.9, 0.8, 0.3, 0.9, 0, 0),     (2500, 350, 30, 4, 0.8, 0.4, 0, 1.2, 0, 0),
    (5000, 800, 33, 4, 0.8, 1.0, 0.3, 0.9, 0, 0),     (7000, 1500, 40, 2, 0.7, 0.8, 0.3, 1.5, 0, 0),
    (20000, 2000, 30, 6, 0.7, 0.8, 0, 0.9, 0, 0),     (15000, 3000, 30, 4, 0.8, 0.8, 0.2, 0.9, 0, 0),
    (50000, 1000, 20, 8, 0.8, 0.6, 0, 0.5, 0, 0),     (40000, 500, 20, 6, 0.7, 0.8, 0.3, 1.2, 0, 0),
    (50000, 20000, 20, 3, 0.8, 1.0, 0.3, 0.9, 0, 0),  (30000, 20000, 25, 2, 0.9, 0.8, 0, 1.5, 0, 0),
    # Features that tell much, something, and nothing.
    (600, 400, 30, 2, 0.5, 0.8, 0.2, 0.9, 16, 0.8),   (1000, 700, 25, 3, 0.5, 0.8, 0, 0.9, 12, 0.7),
    (3000, 2000, 30, 4, 0.5, 0.8, 0, 0.9, 30, 0.5),   (5000, 3000, 25, 2, 0.6, 1.0, 0.3, 1.5, 20, 0.6),
    (10000, 1000, 30, 4, 0.6, 0.8, 0.3, 0.9, 8, 0.3), (12000, 2500, 25, 6, 0.5, 0.8, 0, 0.9, 16, 0.2),
    (2000, 300, 30, 2, 0.4, 0.5, 0, 0.9, 24, 0),      (4000, 800, 30, 3, 0.5, 0.8, 0.3, 0.9, 30, 0),
)
#: users, items, items per user, rank, signal, popularity, activity, features, their share.
_SEEN: tuple[tuple[int, int, float, int, float, float, float, int, float], ...] = (
    (1000, 200, 20, 0, 0, 0.8, 0.9, 0, 0),            (2000, 500, 15, 0, 0, 1.0, 0.5, 0, 0),
    (3000, 400, 25, 2, 1.0, 0.8, 0.9, 0, 0),          (5000, 1000, 20, 4, 1.5, 0.6, 0.9, 0, 0),
    (10000, 1000, 25, 4, 2.0, 0.5, 0.9, 0, 0),        (8000, 300, 20, 2, 1.5, 0.8, 1.5, 0, 0),
    (20000, 5000, 25, 6, 2.0, 0.8, 0.9, 0, 0),        (30000, 3000, 20, 8, 1.5, 1.0, 0.9, 0, 0),
    (25000, 20000, 25, 4, 2.5, 0.8, 0.9, 0, 0),       (15000, 8000, 25, 3, 2.0, 0.6, 1.2, 0, 0),
    (4000, 1000, 20, 4, 1.5, 0.8, 0.9, 16, 0.8),      (6000, 2000, 20, 3, 1.5, 0.6, 0.9, 24, 0),
)
# fmt: on

#: Folders below a directory of real data sets, and how those are read that say nothing of themselves.
_REAL: Mapping[str, Mapping[str, Any]] = {
    "ml-100k": {},
    "ml-latest-small": {},
    "ml-1m": {},
    "jester-1": {},
    "gowalla": {},
    "strangers/mine.csv": {"user": "customer", "item": "sku", "value": "stars", "low": 1, "high": 5},
    "strangers/plays.csv": {"user": "customer", "item": "sku", "value": "plays", "implicit": True},
}


@functools.cache
def invented() -> tuple[Cell, ...]:
    """All invented data sets, r01 to r44 of ratings and i01 to i12 of implicit feedback."""
    rated = [
        RatingModel(
            n_users=users,
            n_items=items,
            ratings_per_user=each,
            rank=rank,
            signal=signal,
            popularity=popularity,
            popular_bias=popular_bias,
            activity=activity,
            n_features=features,
            feature_share=share,
        )
        for users, items, each, rank, signal, popularity, popular_bias, activity, features, share in _RATED
    ]
    seen = [
        RatingModel(
            n_users=users,
            n_items=items,
            ratings_per_user=each,
            rank=rank,
            signal=signal,
            popularity=popularity,
            activity=activity,
            n_features=features,
            feature_share=share,
            implicit=True,
        )
        for users, items, each, rank, signal, popularity, activity, features, share in _SEEN
    ]
    return (
        *(_invented(f"r{number:02d}", number, model) for number, model in enumerate(rated, start=1)),
        *(_invented(f"i{number:02d}", number, model) for number, model in enumerate(seen, start=1)),
    )


def real(directory: Path) -> tuple[Cell, ...]:
    """The data sets of ``directory`` that the panel knows, by the names of their folders and files.

    Raises:
      ConfigurationError: there are none.
    """
    cells = tuple(
        Cell(
            name=name.removeprefix("strangers/").removesuffix(".csv"),
            part=TUNED,
            shape="",
            n_ratings=0,
            definition={"real": name},
            load=functools.partial(load, directory / name, **how),
            folder=directory / name if not how else None,
        )
        for name, how in _REAL.items()
        if (directory / name).exists()
    )
    if not cells:
        raise ConfigurationError(f"{directory} has none of {', '.join(_REAL)}")
    return cells


def chosen(cells: Sequence[Cell], names: Sequence[str] | None) -> tuple[Cell, ...]:
    """The cells of these names or parts, small ones first; None is all.

    Raises:
      ConfigurationError: a name is unknown.
    """
    known = [TUNED, HELD_OUT, *(cell.name for cell in cells)]
    for name in names or ():
        if name not in known:
            raise ConfigurationError(f"Expected cell={name!r} to be a cell or one of its parts{nearest(name, known)}")
    wanted = cells if names is None else [cell for cell in cells if cell.name in names or cell.part in names]
    return tuple(sorted(wanted, key=lambda cell: cell.n_ratings))


def _invented(name: str, number: int, model: RatingModel) -> Cell:
    kind = "implicit, " if model.implicit else ""
    features = f", {model.n_features} features tell {model.feature_share:g}" if model.n_features else ""
    return Cell(
        name=name,
        part=TUNED if number % 2 else HELD_OUT,
        shape=f"{kind}{model.n_users:,} x {model.n_items:,}, rank {model.rank}, signal {model.signal:g}{features}",
        n_ratings=round(model.n_users * model.ratings_per_user),
        definition={**dataclasses.asdict(model), "seed": number},
        load=functools.partial(_drawn, name, model, number),
    )


def _drawn(name: str, model: RatingModel, seed: int) -> Ratings:
    return dataclasses.replace(synthetic_ratings(model, seed=seed), name=name)
