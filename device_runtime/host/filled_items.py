"""What a host's data set and a task's catalogue have to say to each other, once a task names one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from odp.algorithms.registry import algorithm_for
from odp.datasets.catalogue import catalogue_keys, has_keys
from odp.datasets.ratings import Ratings
from odp.errors import PrivacyError
from odp.protocol.catalogues.catalogue import Catalogue
from odp.transport.logs import Log
from odp.v1 import common_pb2

#: Called for each task that names a catalogue, with the version that it names.
UsedCatalogue = Callable[[common_pb2.TaskDefinition, Catalogue], None]


def no_check(definition: common_pb2.TaskDefinition, catalogue: Catalogue) -> None:
    """Finds nothing: for a host that was given no ratings."""


def check_of(data: Ratings, *, log: Log) -> UsedCatalogue:
    """A check of each catalogue that tasks of a host name, against the data set that its devices were filled with.

    Of items with keys, it counts once per version, as the event ``items_without_catalogue``, what the catalogue does
    not have. Where items have none, no rating could take part, and the devices would pay for empty contributions: the
    check raises PrivacyError, so that they decline the task.
    """
    keyed = has_keys(data)
    keys = catalogue_keys(data) if keyed else ()
    counted: set[bytes] = set()

    def check(definition: common_pb2.TaskDefinition, catalogue: Catalogue) -> None:
        if not any(table.of_ratings for table in algorithm_for(definition).local_data):
            return
        if not keyed:
            raise PrivacyError(
                f"task {definition.name!r} names a catalogue, and the items of data set {data.name!r} have numbers "
                "and no ids, which would take no part: fill the devices from a table whose items have ids"
            )
        if catalogue.sha256 in counted:
            return
        counted.add(catalogue.sha256)
        lacking = catalogue.places(keys) < 0
        if lacking.any():
            ratings = int(np.bincount(data.items, minlength=data.n_items)[lacking].sum())
            log.warning(
                "items_without_catalogue", task=definition.name, version=catalogue.version, items=int(lacking.sum()),
                ratings=ratings,
            )  # fmt: skip

    return check
