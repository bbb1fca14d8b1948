"""Gives devices their data: device ``first + i`` gets the ratings of user ``i``."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from device_runtime.store.store import Store, store_path
from odp.datasets.ratings import Ratings


def provision(
    folder: Path, ratings: Ratings, *, first: int = 0, random_bytes: Callable[[int], bytes] = os.urandom
) -> int:
    """Makes and fills the stores of devices ``first`` .. ``first + ratings.n_users - 1`` below a state folder.

    Idempotent: a device that holds this same data is left as it is, so an interrupted run is simply repeated. Every
    device makes its own secret from ``random_bytes``; no two runs on two folders give the same devices.

    Returns the number of stores that were filled now.

    Raises:
      StateError: a store holds other data, is damaged, or the disk is full.
    """
    filled = 0
    for user in range(ratings.n_users):
        items, values = ratings.user(user)
        digest = hashlib.sha256(items.tobytes() + values.tobytes()).digest()
        path = store_path(folder, first + user)
        with Store.open_or_create(path, durable=False, random_bytes=random_bytes) as store:
            filled += store.fill(items, values, filled_from=digest)
    if filled:
        # One sync for all: until it is done no device has sent anything, so a power cut loses no promise.
        os.sync()
    return filled
