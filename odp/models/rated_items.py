"""The released items of a model of ratings, as devices test them: each on its own ratings, in two folds.

A device solves its bias and row on one fold of its ratings, predicts the other, and the reverse: so each of its ratings
is tested once, by parameters that do not know it. What was learned so stays on the device.

The parameters of all items are one vector, float32 [size]:

================  ===========================  ========================================
first 2           row ridge, bias ridge        as devices of the training use them
then per item     bias, trust, row [rank]      of the last model that the task published
================  ===========================  ========================================

The smooth part that devices add when they predict for their person (``odp.DPAM(kernel_variance=)``) is left out: what
is compared are items.

Examples of what a person did not choose: items that a device draws by itself, beside those that the person has.

A model that only reads chosen items learns that every item is chosen. So a device adds, to each example of its own,
examples of the same person with other items and the class 0. Draws are a function of the user's seed and the round
alone, and of which items the person has: device and simulator draw the same ones. Nobody is told which.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, Self

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.crypto.keyed_hash import key_of, keyed_hash, round_hashes
from odp.errors import ConfigurationError
from odp.models.left_out import Tested
from odp.models.trained import TestedModel
from odp.numerics.arrays import Float32Array, Float64Array, Int64Array

if TYPE_CHECKING:
    from odp.models.examples import ExamplesTerms
    from odp.protocol.catalogues.catalogue import Catalogue
    from odp.protocol.wire.model import ModelVersion
    from odp.v1 import common_pb2, model_evaluation_pb2

MOST_ITEMS, MOST_RANK = 2**22, 64  # numbers of items are exact in float32
_GLOBALS = 2
# Columns of a published table: count, bias, trust, row.
_BIAS, _TRUST, _ROW = 1, 2, 3
_LARGEST, _LEAST_RIDGE = 1e6, 1e-6
# Costs, as of ``odp.models.computing_cost``: of a parameter; of a rating, and of a square and a cube of the numbers in
# the system of equations that it is a part of.
_PARAMETER_SECONDS, _RATING_SECONDS, _SQUARE_SECONDS, _CUBE_SECONDS = 5e-9, 5e-7, 3e-10, 2e-8


@_validate.strict_keywords
@dataclass(frozen=True)
class RatedItems(TestedModel):
    """A model of ratings that ``odp.Evaluation`` tests on devices; it is never trained.

    Attributes:
      items: number of items.
      rank: width of the rows; those of a model of lower rank are filled with zeros.
      low, high: declared range of ratings, as of ``odp.RatingsData``; predictions are clamped to it.
      centre: constant of the training; None is the default of ``odp.DPAM``, 3.5 for 1 .. 5.
      catalogue: which items these are, by the keys of this version of the population's catalogue; None where devices
        know items by number alone.

    Raises:
      ConfigurationError: a number is out of range, or the catalogue version has other items.
    """

    items: int
    rank: int
    low: float = 1.0
    high: float = 5.0
    centre: float | None = None
    catalogue: Catalogue | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _validate.integer(low=1, high=MOST_ITEMS, items=self.items)
        _validate.integer(low=0, high=MOST_RANK, rank=self.rank)
        _validate.within(low=-1e6, high=1e6, data_low=self.low, data_high=self.high)
        if not self.low < self.high:
            raise ConfigurationError(f"Expected low={self.low!r} to be below high={self.high!r}")
        if self.centre is None:
            object.__setattr__(self, "centre", self.low + 0.625 * (self.high - self.low))
        _validate.within(low=-1e6, high=1e6, centre=self._centre)
        if self.catalogue is not None:
            from odp.protocol.catalogues.catalogue import Catalogue

            if not isinstance(self.catalogue, Catalogue):
                raise ConfigurationError(
                    f"Expected catalogue to be an odp.items.Catalogue, got a {type(self.catalogue).__name__}"
                )
            self.catalogue.require_items(self.items)

    @classmethod
    def of(cls, message: model_evaluation_pb2.RatedItems) -> Self:
        """The model of a definition, without the catalogue, which a definition only names.

        Raises ConfigurationError for a number out of range.
        """
        return cls(message.items, message.rank, message.low, message.high, message.centre)

    def write(self, definition: common_pb2.TaskDefinition) -> None:
        """Writes itself into a definition."""
        from odp.v1 import model_evaluation_pb2

        definition.rated_items.CopyFrom(
            model_evaluation_pb2.RatedItems(
                items=self.items,
                rank=self.rank,
                low=self.low,
                high=self.high,
                centre=self._centre,
                catalogue=None if self.catalogue is None else self.catalogue.to_proto(),
            )
        )

    def parameters(self, model: ModelVersion, places: npt.ArrayLike | None = None) -> Float32Array:
        """The vector of a model that a task ended with, float32 [size].

        Args:
          model: of ratings.
          places: the number in ``model`` of each of these items, int64 [items]; -1 for an item that it does not have,
            which has bias and row 0, and the least trust of the model's items, as one without ratings. None where items
            have the same numbers.

        Raises:
          ConfigurationError: it is no model of ratings, of other items, or of a higher rank.
        """
        keyed = [table for table in model.tables if table.keyed]
        ridges = model.dense.get("globals")
        if len(keyed) != 1 or ridges is None or ridges.shape != (1, _GLOBALS) or keyed[0].rows.shape[1] < _ROW:
            raise ConfigurationError("Expected a model of ratings, as an odp.DPAM task ends with")
        rows = keyed[0].rows
        if places is not None:
            chosen = np.asarray(places)
            if (
                chosen.dtype.kind not in "iu"
                or chosen.ndim != 1
                or not -1 <= chosen.min(initial=0) <= chosen.max(initial=0) < len(rows)
            ):
                raise ConfigurationError(f"Expected places of whole numbers from -1 to {len(rows) - 1}")
            unknown = np.zeros(rows.shape[1], dtype=np.float32)
            unknown[_TRUST] = rows[:, _TRUST].min()
            rows = np.where(chosen[:, None] < 0, unknown, rows[chosen])
        if len(rows) != self.items or rows.shape[1] - _ROW > self.rank:
            raise ConfigurationError(
                f"Expected a model of {self.items} items and a rank of at most {self.rank} (got {len(rows)} and "
                f"{rows.shape[1] - _ROW})"
            )
        padded = np.zeros((self.items, 2 + self.rank), dtype=np.float32)
        padded[:, : rows.shape[1] - _BIAS] = rows[:, _BIAS:]
        return np.concatenate((ridges[0].astype(np.float32), padded.ravel()))

    @property
    def public_matrix(self) -> None:
        """None: an evaluation has the parameters."""
        return None

    @property
    def size(self) -> int:
        """Number of parameters."""
        return _GLOBALS + self.items * (2 + self.rank)

    @property
    def classes_range(self) -> None:
        """None: ratings are numbers."""
        return None

    @property
    def loss_high(self) -> float:
        """Squared errors are clamped to that of half the range: a wider one would have more noise."""
        return (0.5 * (self.high - self.low)) ** 2

    @property
    def metrics(self) -> tuple[str, ...]:
        """None."""
        return ()

    @property
    def tested_alone(self) -> bool:
        """Yes: a person's parameters are solved from all of their ratings."""
        return True

    def reading(self, examples: ExamplesTerms) -> NoReturn:
        """Raises ConfigurationError: it reads ratings."""
        raise ConfigurationError("Expected odp.RatingsData with an odp.RatedItems, and no examples")

    @property
    def start_seconds(self) -> float:
        """Copies of the parameters, and the solves."""
        return _PARAMETER_SECONDS * self.size + _CUBE_SECONDS * (1 + self.rank) ** 3

    def testing_seconds(self, *, ranked: bool) -> float:
        """Of a rating in the system of its person."""
        return _RATING_SECONDS + _SQUARE_SECONDS * (1 + self.rank) ** 2

    def takes(self, targets: Float32Array) -> npt.NDArray[np.bool_]:
        """Of values [n], the finite ones, bool [n]."""
        return np.isfinite(targets)

    def usable(self, features: npt.NDArray[np.generic], targets: Float32Array) -> npt.NDArray[np.bool_]:
        """Of ratings, those of an item of the model and a finite value, bool [n]."""
        item = features[:, 0].astype(np.float64)
        with np.errstate(invalid="ignore"):
            in_model = (item >= 0) & (item < self.items) & (item == np.floor(item))
        return np.asarray(in_model & self.takes(targets), dtype=np.bool_)

    def tested(self, vector: Float32Array, features: Float32Array, targets: Float32Array, *, ranked: bool) -> Tested:
        """Squared errors of one person's ratings: items [n, 1] and values [n]. ``ranked`` is False."""
        item = features[:, 0].astype(np.int64)
        # Whatever a server publishes, the systems below stay solvable.
        table = vector[_GLOBALS:].reshape(self.items, 2 + self.rank)[item].astype(np.float64)
        table = np.clip(table, -_LARGEST, _LARGEST)
        values = np.clip(targets.astype(np.float64), self.low, self.high)
        residual = values - self._centre - table[:, 0]
        fold = keyed_hash(_FOLDS, item) >> np.uint64(63)
        off = np.empty(len(item))
        for side in (0, 1):
            tests = fold == side
            local = self._solved(vector, table[~tests], residual[~tests])
            added = local[0] + table[tests, 2:] @ local[1:]
            predicted = np.clip(self._centre + table[tests, 0] + added, self.low, self.high)
            off[tests] = predicted - values[tests]
        return Tested(off**2)

    def _solved(self, vector: Float32Array, table: Float64Array, residual: Float64Array) -> Float64Array:
        """A person's bias and row, float64 [1 + rank], by weighted ridge regression as in the training."""
        design = np.concatenate((np.ones((len(table), 1)), table[:, 2:]), axis=1)
        weighted = design * np.clip(table[:, 1:2], 0.0, 1.0)
        row_ridge, bias_ridge = (min(max(float(ridge), _LEAST_RIDGE), _LARGEST) for ridge in vector[:_GLOBALS])
        normal = weighted.T @ design + np.diag([bias_ridge, *[row_ridge] * self.rank])
        return np.asarray(np.linalg.lstsq(normal, weighted.T @ residual, rcond=None)[0])

    @property
    def _centre(self) -> float:
        return float(self.centre or 0.0)


_FOLDS = key_of("folds of ratings")


#: The draws of a round have the numbers from here on: those of orders (``odp.models.local_training``) are smaller.
_FIRST_DRAW = 1 << 52

CHOSEN, NOT_CHOSEN = 1.0, 0.0


def with_negatives(
    features: Float32Array, targets: Float32Array, *, items: int, per_example: int, seed: int, round: int
) -> tuple[Float32Array, Float32Array]:
    """One user's examples, and ``per_example`` further ones for each that is of the class 1.

    Items are uniform among those that none of the user's examples has; there are no further examples where it has all.

    Args:
      features: float32 [n, width]; the last number of each row is an item, from 0 to ``items`` - 1.
      targets: float32 [n], 0 or 1.

    Returns:
      Features float32 [n + per_example * chosen, width] and targets, the user's own examples first.
    """
    own_items = np.unique(features[:, -1].astype(np.int64))
    chosen = features[targets == CHOSEN]
    if len(own_items) >= items or not len(chosen) * per_example:
        return features, targets
    further = np.repeat(chosen, per_example, axis=0)
    further[:, -1] = _others(own_items, items, count=len(further), seed=seed, round=round)
    return (
        np.concatenate((features, further)),
        np.concatenate((targets, np.full(len(further), NOT_CHOSEN, dtype=np.float32))),
    )


def _others(own_items: Int64Array, items: int, *, count: int, seed: int, round: int) -> Int64Array:
    """Uniform draws from 0 .. ``items`` - 1 without ``own_items``, which ascends: int64 [count]."""
    numbers = np.arange(count, dtype=np.int64) + _FIRST_DRAW
    draws = round_hashes(np.array([seed], dtype=np.uint64), round, numbers) >> np.uint64(32)
    # The high half of a hash times what is left, over 2^32: each place but for a bias below items / 2^32.
    places = ((draws * np.uint64(items - len(own_items))) >> np.uint64(32)).astype(np.int64)
    # The place-th item that is not own: own_items[j] - j items below own_items[j] are not own.
    return places + np.searchsorted(own_items - np.arange(len(own_items)), places, side="right")
