"""What a server asks of a device, checked once and then shared by all devices of the process.

An assignment comes from the untrusted server. Before a device acts on it: the task and the model manifest carry their
developer's signature, both belong together, the task is one of the device's own population, and the model has the
shape that the task's algorithm trains on.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass

from odp.algorithms.dpam.terms import GLOBALS_TABLE, ITEMS_TABLE, Terms
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import Client
from odp.errors import ConfigurationError
from odp.signed_task import model_sha256, open_manifest, open_task, task_sha256
from odp.tables import keyed_entry
from odp.transport.channel import parse_address
from odp.v1 import common_pb2, server_pb2

# What a round hands to every device is one assignment: a few of them cover the rounds that are open at once.
_MOST_REMEMBERED = 16
_DEVICE_TABLE = "ratings"
_GLOBALS_WIDTH = 2


@dataclass(frozen=True)
class Model:
    """One signed model version of one signed task, both checked.

    ``rounds`` is the number of rounds that the task has when it is finished.
    """

    definition: common_pb2.TaskDefinition
    task_sha256: bytes
    manifest: common_pb2.ModelManifest
    model_sha256: bytes
    client: Client
    rounds: int


@dataclass(frozen=True)
class Work:
    """One round that is open, and where to take part in it."""

    model: Model
    round: int
    distributor: str
    aggregator: str

    @property
    def key(self) -> tuple[bytes, int]:
        """(task id, round): a device contributes at most once to each."""
        return self.model.task_sha256, self.round


def open_model(task: common_pb2.SignedTask, manifest: common_pb2.SignedManifest) -> Model:
    """Checks a task and one version of its model.

    Raises:
      SignatureError: a signature is not the developer's.
      ConfigurationError: a field is out of range, or the model is not of the form that the task trains on.
    """
    definition = open_task(task)
    opened = open_manifest(manifest, task=task, developer_key=definition.developer_key)
    terms = Terms.of(definition)
    entry = keyed_entry(opened)
    if (entry.name, entry.rows, entry.width) != (ITEMS_TABLE, terms.items, terms.width):
        raise ConfigurationError(
            f"Expected the keyed table of the model to be {ITEMS_TABLE!r} {terms.items} x {terms.width}, "
            f"got {entry.name!r} {entry.rows} x {entry.width}"
        )
    dense = [(table.name, table.rows, table.width) for table in opened.tables if not table.keyed]
    if dense != [(GLOBALS_TABLE, 1, _GLOBALS_WIDTH)]:
        raise ConfigurationError(f"Expected the dense tables to be {GLOBALS_TABLE!r} 1 x {_GLOBALS_WIDTH}, got {dense}")
    if definition.data.table != _DEVICE_TABLE:
        raise ConfigurationError(f"Expected table={definition.data.table!r} to be {_DEVICE_TABLE!r}, the devices' own")
    return Model(
        definition=definition,
        task_sha256=task_sha256(task),
        manifest=opened,
        model_sha256=model_sha256(manifest),
        client=algorithm_for(definition).client(),
        rounds=terms.rounds,
    )


def open_assignment(assignment: server_pb2.Assignment, *, population: str) -> Work:
    """Checks an assignment for devices of ``population``.

    Raises:
      SignatureError: a signature is not the developer's.
      ConfigurationError: a field is out of range, or its parts do not belong together.
    """
    model = open_model(assignment.task, assignment.model)
    if model.definition.population != population:
        raise ConfigurationError(
            f"the server gave a task of population {model.definition.population!r} to devices of {population!r}"
        )
    if not 0 <= assignment.round < model.rounds:
        raise ConfigurationError(f"Expected round={assignment.round} to be from 0 to {model.rounds - 1}")
    if model.manifest.version != assignment.round:
        raise ConfigurationError(f"Expected model version={model.manifest.version} to be round={assignment.round}")
    parse_address(assignment.distributor_address)
    parse_address(assignment.aggregator_address)
    return Work(model, assignment.round, assignment.distributor_address, assignment.aggregator_address)


class AssignmentReader:
    """``open_assignment`` that checks equal bytes once; thread-safe."""

    def __init__(self, population: str) -> None:
        self._population = population
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, Work] = OrderedDict()

    def open(self, assignment: server_pb2.Assignment) -> Work:
        """As ``open_assignment``."""
        digest = hashlib.sha256(assignment.SerializeToString(deterministic=True)).digest()
        with self._lock:
            work = self._known.get(digest)
        if work is None:
            work = open_assignment(assignment, population=self._population)
            with self._lock:
                self._known[digest] = work
                while len(self._known) > _MOST_REMEMBERED:
                    self._known.popitem(last=False)
        return work
