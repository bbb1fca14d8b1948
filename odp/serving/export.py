"""Trained items for other tools: of a simulation, or of a task of a server, with facts about their privacy."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from odp.algorithms import experiment
from odp.algorithms.registry import algorithm_for, recommender_for
from odp.algorithms.release import planned_charges
from odp.errors import ConfigurationError
from odp.models.item_files import ItemTable, check_ending, save
from odp.models.matrix_factorization import MatrixFactorization
from odp.models.warm_start import checked_keys
from odp.privacy.adjacency import of_list
from odp.signed.release import open_release
from odp.signed.task import open_task, task_sha256
from odp.v1 import common_pb2

if TYPE_CHECKING:
    from odp.privacy.events import Event
    from odp.protocol.catalogues.catalogue import Catalogue
    from odp.protocol.wire.model import ModelVersion
    from odp.services.connection import Connection, TaskHandle
    from odp.tasks.task import Task
    from odp.v1 import server_pb2

SIMULATED = "simulated, no signature"
NOT_PRIVATE = "not private: trained without noise"
_NOT_CHECKED = "not checked against an attested aggregator: no reference values were given"
_INDEX = ".index"


@runtime_checkable
class FinishedRun(experiment.FinishedRun, Protocol):
    """What an export takes of a finished simulation, an ``odp.RunResult``; a program exports without a simulator."""

    @property
    def task(self) -> Task:
        """What was trained."""

    @property
    def charges(self) -> tuple[tuple[Event, ...], ...]:
        """By round."""

    @property
    def noisy(self) -> bool:
        """Whether there was noise."""


@dataclass(frozen=True)
class TrainedItems:
    """Items of a trained model, and what an index of them takes besides: the model, and its task.

    The task of a simulation has no signature.
    """

    table: ItemTable
    task: common_pb2.SignedTask
    model: ModelVersion

    def save(self, path: Path) -> None:
        """Writes the form that the ending names. Raises as ``export_items``."""
        if path.suffix != _INDEX:
            save(self.table, path)
            return
        from odp.serving.index_file import save_index
        from odp.serving.ranking import index_of_model

        save_index(index_of_model(self.task, self.model, self.table.keys, dict(self.table.facts)), path)


def check_export(path: Path) -> None:
    """Returns if items can be written to a file of that name. Raises ConfigurationError."""
    if path.suffix != _INDEX:
        check_ending(path)


def export_items(
    source: FinishedRun | TaskHandle, path: str | Path, *, item_keys: Sequence[str] | None = None
) -> ItemTable:
    """Writes the items of a trained recommender to a file for other tools, and returns them.

    The ending chooses the form: .npz; .parquet, with the extra ``data``; .onnx, with the extra ``onnx``, a graph from
    users' vectors to scores; .index, rows of int8 that devices scan (``odp.items.ItemIndex``). Facts in each:
    ``privacy``, ``epsilon``, ``delta``, ``adjacency``, ``task``, ``population``, ``definition_sha256``,
    ``model_version``, ``signature`` and, of a server's task, ``release_round``, ``release_sha256`` and ``signed_by``.
    The signature is the attested aggregator's, over the release that the model ends with; the server made the items of
    such releases. ``epsilon`` is that of this task alone: items that began with the release of another task tell of
    that one as well, and of a living model ``Standing.epsilon`` is the sum.

    Args:
      source: what ``odp.simulate`` returned, or the handle of a task of a server.
      path: of the file, which is written whole or not at all.
      item_keys: of the items, in the order of their numbers; by default the keys of the catalogue that the task names,
        else these numbers.

    Raises:
      ConfigurationError: another ending, a missing extra, a place that cannot be written, a task without a model that
        scores items or without a release, or keys that are not as many as the items, stand twice, or are not those of
        the catalogue that the task names.
      DataError: the model has numbers that are not finite.
      ServiceError: the server does not answer, or the release is not of this task.
    """
    target = Path(path)
    check_export(target)
    item_keys = None if item_keys is None else checked_keys(item_keys, name="item_keys")
    if isinstance(source, FinishedRun):
        trained = simulated_items(source, item_keys)
    elif not hasattr(source, "connection"):
        raise ConfigurationError(
            f"Expected what odp.simulate returned, or the handle of a task (got {type(source).__name__})"
        )
    else:
        trained = released_items(source.connection, source.status(), item_keys)
    trained.save(target)
    return trained.table


@dataclass(frozen=True)
class TrainedModel:
    """A model, its task, and facts about its privacy."""

    task: common_pb2.SignedTask
    model: ModelVersion
    facts: dict[str, str]


def simulated_model(result: FinishedRun) -> TrainedModel:
    """The model of a simulation; its facts say that nobody signed it."""
    definition = result.task.definition()
    task = common_pb2.SignedTask(definition=definition.SerializeToString(deterministic=True))
    sha256 = hashlib.sha256(task.definition).digest()
    events = [event for charged in result.charges for event in charged] if result.noisy else []
    facts = _facts(definition, sha256, result.model, epsilon=result.epsilon, events=events)
    return TrainedModel(task, result.model, facts | {"signature": SIMULATED})


def simulated_items(result: FinishedRun, item_keys: Sequence[str] | None = None) -> TrainedItems:
    """The items of a simulation; their facts say that nobody signed them. Raises as ``export_items``."""
    trained, model = simulated_model(result), result.task.model
    catalogue = model.catalogue if isinstance(model, MatrixFactorization) else None
    table = _table(result.task.definition(), result.model, item_keys, trained.facts, catalogue=catalogue)
    if table.columns.popularity is None:
        popularity = np.asarray(result.item_counts, dtype=np.float32)
        table = ItemTable(table.keys, table.columns._replace(popularity=popularity), table.facts)
    return TrainedItems(table, trained.task, result.model)


def released_items(
    connection: Connection, status: server_pb2.TaskStatus, item_keys: Sequence[str] | None = None
) -> TrainedItems:
    """The items of a task's newest model. Raises as ``released_model``, and as ``export_items``."""
    definition = open_task(status.task)
    recommender_for(definition)
    trained = released_model(connection, status)
    catalogue = connection.named_catalogue(definition)
    table = _table(definition, trained.model, item_keys, trained.facts, catalogue=catalogue)
    return TrainedItems(table, status.task, trained.model)


def released_model(connection: Connection, status: server_pb2.TaskStatus) -> TrainedModel:
    """A task's newest model. With reference values, the release's signature is checked.

    Raises:
      AttestationError: the aggregator's evidence is not accepted.
      ConfigurationError: the task trains no model, or has released nothing yet.
      ServiceError: the server does not answer, or the release is not of this task.
    """
    definition = open_task(status.task)
    algorithm = algorithm_for(definition)
    if not any(entry.release.release for entry in status.rounds):
        raise ConfigurationError(f"task {definition.name!r} has released nothing yet; wait for its first round")
    model = connection.model(status)
    # Version v is what the release of round v - 1 made.
    last = next((entry for entry in status.rounds if entry.round == model.version - 1 and entry.release.release), None)
    if last is None:
        raise ConfigurationError(f"task {definition.name!r} has no model of its releases yet; try again in a moment")
    sha256, pins = task_sha256(status.task), connection.reference_values
    key = None if pins is None else connection.attested_aggregator(status, pins).signing_key
    open_release(
        last.release, task_sha256=sha256, round=last.round, model_sha256=None,
        declared=algorithm.query(last.round).releases, signing_key=key,
    )  # fmt: skip
    noisy = math.isfinite(definition.privacy.epsilon)
    events = [event for charged in planned_charges(algorithm) for event in charged] if noisy else []
    facts = _facts(definition, sha256, model, epsilon=status.epsilon_spent if noisy else math.inf, events=events)
    signed = {
        "signature": last.release.signature.hex(),
        "release_round": str(last.round),
        "release_sha256": hashlib.sha256(last.release.release).hexdigest(),
        "signed_by": _NOT_CHECKED if key is None else key.hex(),
    }
    return TrainedModel(status.task, model, facts | signed)


def _facts(
    definition: common_pb2.TaskDefinition,
    sha256: bytes,
    model: ModelVersion,
    *,
    epsilon: float,
    events: Iterable[Event],
) -> dict[str, str]:
    """Facts that both kinds of models have; none of them tells of a person."""
    noisy = math.isfinite(epsilon)
    return {
        "privacy": "differentially private per user" if noisy else NOT_PRIVATE,
        "epsilon": repr(epsilon),
        "delta": repr(definition.privacy.delta),
        "adjacency": of_list(event.adjacency for event in events).value if noisy else "none",
        "task": definition.name,
        "population": definition.population,
        "definition_sha256": sha256.hex(),
        "model_version": str(model.version),
    }


def _table(
    definition: common_pb2.TaskDefinition,
    model: ModelVersion,
    item_keys: Sequence[str] | None,
    facts: dict[str, str],
    *,
    catalogue: Catalogue | None,
) -> ItemTable:
    columns = recommender_for(definition).item_columns(model)
    items = len(columns.factors)
    numbers = [str(number) for number in range(items)] if catalogue is None else catalogue.keys
    keys = numbers if item_keys is None else item_keys
    if len(keys) != items:
        raise ConfigurationError(f"Expected item_keys for {items} items of the model (got {len(keys)})")
    if catalogue is not None:
        _check_keys(keys, definition, catalogue)
    return ItemTable(keys, columns, facts)


def _check_keys(keys: Sequence[str], definition: common_pb2.TaskDefinition, catalogue: Catalogue) -> None:
    """Devices that keep ratings by key find them by these. Raises ConfigurationError."""
    wrong = next((place for place, key in enumerate(keys) if key != catalogue.keys[place]), None)
    if wrong is not None:
        raise ConfigurationError(
            f"Expected item_keys[{wrong}]={keys[wrong]!r} to be {catalogue.keys[wrong]!r}, as catalogue version "
            f"{catalogue.version} of task {definition.name!r} has it: leave item_keys out"
        )
