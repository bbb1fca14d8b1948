"""Predictions of labelled examples on the device: of those that an app hands in, or of the person's own.

The whole model is fetched, as for recommendations, so the request says nothing about the person. What the app hands in
it knows: of a model without layers that stay on devices, the prediction is a function of that and of public numbers,
and the app gets it. What depends on the person's own examples is shown to the person alone.

A network is its developer's program: it runs behind the walls that hold its training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from device_runtime.inference.offline import Available
from device_runtime.inference.recommend import require_predictions
from device_runtime.isolated.training import IsolatedTrainer, LastingProcess
from device_runtime.round.examples import examples
from device_runtime.store.store import Store
from device_runtime.tasks.assignment import Model
from device_runtime.view.shown_items import ShownItems
from odp._system.closing import Closing
from odp.algorithms.federated.reading import ROWS
from odp.algorithms.predicting import PredictingClient, Predictions, RankedItems, rows_of
from odp.algorithms.seam import LocalData
from odp.errors import ConfigurationError, DataError
from odp.models.example_columns import checked_columns
from odp.models.features import Category, Feature
from odp.numerics.arrays import Float32Array

#: Examples of one call.
MOST_EXAMPLES = 10_000
#: Examples of one call that ranks all items.
MOST_RANKED = 16


class Predictor(Closing):
    """One version of a model that predicts of examples. A context manager, which ends its processes; for one thread.

    Args:
      available: the model.
      clock: seconds since the epoch.

    Raises:
      ConfigurationError: the model predicts of items or of nothing, or this device cannot run its program.
    """

    def __init__(self, available: Available, *, clock: Callable[[], float] = time.time) -> None:
        self._available, self._clock = available, clock
        self._client = client_of(available.downloaded.model)
        self._trainer = IsolatedTrainer()
        self._lasting = LastingProcess(self._trainer)
        self._client.require_predictor(self._trainer)

    @property
    def is_personal(self) -> bool:
        """Whether a prediction depends on the person's own examples."""
        return self._client.is_personal

    def predict(self, columns: Mapping[str, npt.ArrayLike]) -> Predictions:
        """What the model says of examples in columns [n, ..] by name; nothing of the device is read.

        Raises:
          ConfigurationError: the model has layers that stay on devices, so that a prediction is the person's; or a
            column has no name.
          DataError: a feature is missing, an example cannot be used, or there are too many.
          HandlerFailed: the program failed.
        """
        if self.is_personal:
            raise ConfigurationError(
                f"predictions of task {self._available.downloaded.model.definition.name!r} depend on the person's own "
                "examples, and are shown to the person alone: use Device.show_predictions"
            )
        return self._predicted(self.rows(columns), None)

    @property
    def ranked_feature(self) -> str | None:
        """The feature that is an item, of a model that ranks all items; None of another one."""
        return self._client.ranked_feature

    def rank(self, columns: Mapping[str, npt.ArrayLike], *, count: int) -> RankedItems:
        """The ``count`` best items for examples in columns [n, ..] by name, but for the item's; as ``predict``.

        Raises as ``predict``; ConfigurationError also where the model ranks no items.
        """
        return self._ranked(self._contexts(columns), None, count)

    def rank_for_person(self, store: Store, *, count: int) -> RankedItems:
        """For the person alone: the ``count`` best items but their own ones, as their newest example describes them.

        No items where the device has no example. Raises as ``of_person``.
        """
        self._require_ranking()
        downloaded = self._available.downloaded
        data = examples(store, downloaded.model.definition, now=self._clock(), catalogue=downloaded.catalogue)
        rows = data[ROWS].last(1)
        features = self._client.examples.cleaned(rows.features, examples=len(rows.values))
        return self._ranked(features[np.isfinite(features).all(axis=1)], data, count)

    def of_person(self, store: Store, features: Float32Array | None, *, count: int) -> Predictions:
        """For the person alone: of ``rows`` of examples that were handed in, else of their newest ``count`` own ones.

        Layers that stay on devices are found anew of all own examples that the task may read. Without an example there
        are no predictions. Raises as ``predict``, and StateError where the store cannot be read.
        """
        downloaded = self._available.downloaded
        data = examples(store, downloaded.model.definition, now=self._clock(), catalogue=downloaded.catalogue)
        if features is not None:
            return self._predicted(features, data)
        rows = data[ROWS].last(count)
        features = self._client.examples.cleaned(rows.features, examples=len(rows.values))
        return self._predicted(features[np.isfinite(features).all(axis=1)], data)

    def close(self) -> None:
        """Ends the processes. Idempotent."""
        self._lasting.close()
        self._trainer.close()

    def rows(self, columns: Mapping[str, npt.ArrayLike]) -> Float32Array:
        """Examples in columns [n, ..] as the model reads them, float32 [n, width]. Raises as ``predict``."""
        checked = checked_columns(columns)
        if (count := len(next(iter(checked.values())))) > MOST_EXAMPLES:
            raise DataError(f"Expected at most {MOST_EXAMPLES:,} examples at once, got {count:,}")
        return rows_of(self._client.examples, checked)

    def _require_ranking(self) -> str:
        if (name := self.ranked_feature) is None:
            raise ConfigurationError(
                f"the model of task {self._available.downloaded.model.definition.name!r} ranks no items"
            )
        return name

    def _contexts(self, columns: Mapping[str, npt.ArrayLike]) -> Float32Array:
        name = self._require_ranking()
        if name in columns:
            raise DataError(f"Expected no column {name!r}: every item is ranked")
        feature = self._client.examples.features[name]
        count = len(next(iter(checked_columns(columns).values())))
        first = np.array((*feature_names(feature), 0)[0])
        return self.rows({**columns, name: np.broadcast_to(first, (count, *feature.shape))})

    def _ranked(self, features: Float32Array, data: LocalData | None, count: int) -> RankedItems:
        downloaded = self._available.downloaded
        if len(features) > MOST_RANKED:
            raise DataError(f"Expected at most {MOST_RANKED} examples to rank items for, got {len(features)}")
        scores, without = np.zeros((0, 1)), np.zeros(0, dtype=np.int64)
        if len(features):
            without = without if data is None else self._client.own_items(data)
            predictor = self._lasting if data is None else self._trainer
            scores = self._client.scored(downloaded.broadcast.dense, features, predictor)
        name = self._require_ranking()
        return RankedItems.best(
            scores, count=count, without=without,
            names=feature_names(self._client.examples.features[name]) or None,
            version=downloaded.model.manifest.version, offline=self._available.offline,
        )  # fmt: skip

    def _predicted(self, features: Float32Array, data: LocalData | None) -> Predictions:
        downloaded = self._available.downloaded
        predictor = self._lasting if data is None else self._trainer
        means = self._client.predicted(downloaded.broadcast.dense, features, data, predictor)
        version, offline = downloaded.model.manifest.version, self._available.offline
        if means.shape[1] == 1:
            return Predictions(means[:, 0], None, (), version, offline)
        names = self._client.examples.classes or tuple(map(str, range(means.shape[1])))
        return Predictions(means.max(axis=1), means, names, version, offline)


def client_of(model: Model) -> PredictingClient:
    """The client of a model that predicts of examples. Raises ConfigurationError for one that does not."""
    require_predictions(model)
    if not isinstance(model.client, PredictingClient):
        raise ConfigurationError(
            f"the model of task {model.definition.name!r} ranks items: `odp device recommend`, or Device.recommend"
        )
    return model.client


def feature_names(feature: Feature) -> tuple[str, ...]:
    """The names of a feature's categories; () where it has none."""
    return tuple(feature.classes) if isinstance(feature, Category) and not isinstance(feature.classes, int) else ()


def ranked_in_words(ranked: RankedItems) -> ShownItems:
    """The best items of the first example in words, for the person's terminal and page."""
    notes = [] if ranked.offline is None else [ranked.offline]
    if not len(ranked.items):
        notes.append("this device has no example of its own that the model can read")
    rows = tuple((str(row["item"]), f"{row['score']:.2f}", "") for each in ranked.rows()[:1] for row in each)
    return ShownItems("score", rows, tuple(notes))


def shown(predictions: Predictions) -> ShownItems:
    """Predictions in words, for the person's terminal and page."""
    notes = [] if predictions.offline is None else [predictions.offline]
    if not len(predictions.values):
        notes.append("this device has no example of its own that the model can read")
    rows = tuple((str(number), _in_words(row), "") for number, row in enumerate(predictions.rows()))
    return ShownItems("prediction", rows, tuple(notes), title="Predicted for you", what="example", ranked=False)


def _in_words(row: Mapping[str, Any]) -> str:
    if "probability" not in row:
        return f"{row['prediction']:.4g}"
    return f"{row['prediction']} (probability {row['probability']:.2f})"
