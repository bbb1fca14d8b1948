"""The devices of tasks of every combination."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from task_combinations import DEVICES, ITEMS, OF_EXAMPLES, WORDS, Combination

import device_runtime
import odp
from device_runtime.host.provision import provision
from odp.datasets import Ratings, synthetic_movielens
from odp.operations.local.processes import Services
from odp.transport.logs import Log


@dataclasses.dataclass(frozen=True)
class Addresses:
    """What devices know of services that another program started."""

    root: Path
    server_address: str
    ca: Path
    reference_values: Path


def data_of(combination: Combination) -> Ratings | odp.data.ExampleColumns:
    """What the devices of a combination's task hold; those of searches hold words beside."""
    if combination.algorithm in OF_EXAMPLES:
        owners = np.arange(20) % combination.devices
        columns = {"x": np.random.default_rng(7).normal(size=(20, 2, 2)), "kind": np.arange(20) % 3}
        return odp.data.ExampleColumns.of_users(columns, owners)
    ratings = synthetic_movielens(n_users=DEVICES, n_items=ITEMS, ratings_per_user=5, seed=7)
    if combination.algorithm.startswith("implicit"):
        seen = ratings.users(), ratings.items, np.ones(ratings.n_ratings)
        return Ratings.from_triples("seen", *seen, low=0, high=1, implicit=True, n_users=DEVICES, n_items=ITEMS)
    return ratings


def devices_of(
    services: Services | Addresses, combination: Combination, *, population: str = "", folder: Path | None = None,
    examples: odp.data.ExampleColumns | None = None, durable: bool = False, log: Path | None = None,
) -> device_runtime.Running:  # fmt: skip
    """A host of as many devices as the task of a combination has, with data for it; it runs until it is stopped.

    ``population`` is that of the task, by default its name; ``folder`` keeps the devices over several hosts, and
    ``durable`` ones over power cuts. ``examples`` take the place of the combination's data. ``log`` is beside
    ``folder`` by default.
    """
    population = population or combination.name
    folder = services.root / population if folder is None else folder
    log = Path(f"{folder}.log") if log is None else log
    held = data_of(combination)
    data: dict[str, object] = {"ratings" if isinstance(held, Ratings) else "examples": held}
    if examples is not None:
        data = {"examples": examples}
    if combination.algorithm == "heavy_hitters" and not folder.exists():
        provision(folder, held)
        for user, word in enumerate(WORDS):
            with device_runtime.Store.open(device_runtime.store_path(folder, user)) as store:
                store.data("keyboard").add_event("typed", {"word": word}, time=1e9)
    config = device_runtime.Config(
        state=folder, server=services.server_address, ca=services.ca, reference_values=services.reference_values,
        population=population, limits=device_runtime.Limits(min_cohort=DEVICES), durable=durable, keyring=False,
    )  # fmt: skip
    return device_runtime.start(config, **data, log=Log("devices", stream=_opened(log)))


def _opened(log: Path) -> object:
    return log.open("a")
