"""What a device contributes to a round it accepted: computed from its data, or the empty contribution.

Whether a contribution follows must not depend on the data, or its absence would tell what the noise hides. So nothing
here fails for what a device holds: rows that a task cannot use are left out, and whatever goes wrong with the others
ends in the empty contribution, of the same length, which is sent and charged like any other.

What is the same for every device is refused aloud: a definition when it is opened, a model by ``require_trainable``. So
is a store that cannot be read, which says something of the disk and nothing of the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from device_runtime.round.examples import examples
from device_runtime.store.store import Store
from device_runtime.tasks.assignment import Model, Work
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import LocalData, LocalRows
from odp.catalogues.catalogue import Catalogue
from odp.errors import ConfigurationError, ServiceError, StateError
from odp.numerics.arrays import Int64Array
from odp.refusing import refusing
from odp.wire.model import Slices

#: Of a device that asks for no rows.
NO_KEYS: Int64Array = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class OwnData:
    """A device's rows for one round, and the rows ``keys`` of the model that it needs for them.

    ``usable`` is False where they could not be read as the task asks.
    """

    rows: LocalData = field(repr=False)
    keys: Int64Array = field(repr=False)
    usable: bool


@dataclass(frozen=True)
class Contribution:
    """The payload of a round, and new local parameters; without these it is the empty contribution."""

    payload: bytes = field(repr=False)
    local_parameters: bytes | None = field(repr=False)


def own_data(
    store: Store, model: Model, *, round: int, seed: int, now: float, catalogue: Catalogue | None = None
) -> OwnData:
    """Reads what the task asks for, with items as the ``catalogue`` that it names has them.

    ``now`` is in seconds since the epoch.

    Raises:
      StateError: the store cannot be read.
    """
    try:
        with np.errstate(all="ignore"):
            rows = examples(store, model.definition, now=now, catalogue=catalogue)
            keys = model.client.keys(rows, round=round, seed=seed) if model.keyed else NO_KEYS
    except StateError:
        raise
    except Exception:  # whatever it is, it follows from the data
        nothing = LocalRows(NO_KEYS, np.zeros(0, dtype=np.float64))
        return OwnData(algorithm_for(model.definition).data_of(nothing), NO_KEYS, usable=False)
    return OwnData(rows, keys, usable=True)


def without_rows(work: Work) -> Slices:
    """What a device has of a model that it needs no rows of."""
    return Slices(work.model.manifest.version, NO_KEYS, np.zeros((0, 0), dtype=np.float32), {})


def require_trainable(work: Work, slices: Slices) -> None:
    """Returns if every device can train on the dense tables of the model.

    Raises:
      ServiceError: they cannot; no device contributes to this round.
    """
    try:
        with refusing("model"):
            work.model.client.check_model(slices.dense)
    except ConfigurationError as error:
        raise ServiceError(f"round {work.round}: {error}") from error


def contribution(
    work: Work, slices: Slices, own: OwnData, *, seed: int, most_seconds: float, monotonic: Callable[[], float]
) -> Contribution:
    """The contribution of ``own``; the empty one where it cannot be computed within ``most_seconds``.

    It is one that the enclave accepts: a refusal would tell its host something of the data.
    """
    model, round = work.model, work.round
    if own.usable:
        began = monotonic()
        try:
            with np.errstate(all="ignore"):
                payload, local = model.client.contribute(slices, own.rows, round=round, seed=seed)
                model.queries[round].check(payload)
        except Exception:  # whatever it is, it follows from the data
            pass
        else:
            if monotonic() - began <= most_seconds:
                return Contribution(payload, local)
    return Contribution(model.client.empty(round), None)
