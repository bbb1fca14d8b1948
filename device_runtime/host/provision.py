"""Gives devices their data: device ``first + i`` gets the ratings or the labelled examples of user ``i``."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from device_runtime.store.keyed_ratings import fill_ratings
from device_runtime.store.store import Store, store_path
from odp.datasets.catalogue import catalogue_keys, has_keys
from odp.datasets.ratings import Ratings
from odp.models.example_columns import ExampleColumns


def provision(
    folder: Path,
    data: Ratings | ExampleColumns,
    *,
    first: int = 0,
    random_bytes: Callable[[int], bytes] = os.urandom,
    clock: Callable[[], float] = time.time,
) -> int:
    """Makes and fills the stores of devices ``first`` .. ``first + data.n_users - 1`` below a state folder.

    Idempotent: a device that holds this same data is left as it is, so an interrupted run is simply repeated. Every
    device makes its own secret from ``random_bytes``; no two runs on two folders give the same devices.

    Ratings are kept with the keys of their items, ``odp.datasets.catalogue_keys``, for tasks that name a catalogue.
    Labelled examples are as old as ``clock`` says, in seconds since the epoch.

    Returns the number of stores that were filled now.

    Raises:
      StateError: a store holds other data, is damaged, or the disk is full.
      DataError: the examples of a user are too large for a store (``Bounds``).
    """
    filled = 0
    keys = catalogue_keys(data) if isinstance(data, Ratings) and has_keys(data) else None
    for user in range(data.n_users):
        path = store_path(folder, first + user)
        with Store.open_or_create(path, durable=False, random_bytes=random_bytes) as store:
            if isinstance(data, Ratings):
                items, values = data.user(user)
                digest = hashlib.sha256(items.tobytes() + values.tobytes()).digest()
                filled += fill_ratings(store, data, user, keys=keys, filled_from=digest)
            else:
                columns = data.user(user)
                filled += store.fill_examples(columns, filled_from=_digest(columns), time=clock())
    if filled:
        # One sync for all: until it is done no device has sent anything, so a power cut loses no promise.
        os.sync()
    return filled


def _digest(columns: Mapping[str, npt.NDArray[Any]]) -> bytes:
    digest = hashlib.sha256(b"examples\0")
    for name, numbers in columns.items():
        digest.update(f"{name}\0{numbers.dtype.str}\0{numbers.shape}\0".encode() + numbers.tobytes())
    return digest.digest()
