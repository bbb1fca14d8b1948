"""Trained classifiers for other programs: of a simulation, or of a task of a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from odp.errors import ConfigurationError
from odp.serving.classifier import Classifier
from odp.serving.export import FinishedRun, released_model, simulated_model
from odp.signed.task import open_task

if TYPE_CHECKING:
    from odp.services.connection import Connection, TaskHandle
    from odp.v1 import server_pb2


def export_classifier(source: FinishedRun | TaskHandle, path: str | Path | None = None) -> Classifier:
    """The trained model of classes, which names them as its task does; written to a file where ``path`` says so.

    ``facts`` of the result are those of ``odp.items.export_items``: of a server's task, the release that the model ends
    with is checked, and the signature is the attested aggregator's where reference values are given.

    Args:
      source: what ``odp.simulate`` returned, or the handle of a task of a server.
      path: of an .npz file, which is written whole or not at all; ``odp.items.Classifier.load`` reads it.

    Raises:
      ConfigurationError: the task trains no model of classes, has released nothing yet, or the file cannot be written.
      AttestationError: the aggregator's evidence is not accepted.
      ServiceError: the server does not answer, or the release is not of this task.
    """
    if isinstance(source, FinishedRun):
        trained = simulated_model(source)
        classifier = Classifier.of(source.task.definition(), trained.model, trained.facts)
    elif hasattr(source, "connection"):
        classifier = released_classifier(source.connection, source.status())
    else:
        raise ConfigurationError(
            f"Expected what odp.simulate returned, or the handle of a task (got {type(source).__name__})"
        )
    if path is not None:
        classifier.save(path)
    return classifier


def released_classifier(connection: Connection, status: server_pb2.TaskStatus) -> Classifier:
    """The newest model of a task of a server. Raises as ``export_classifier``."""
    trained = released_model(connection, status)
    return Classifier.of(open_task(status.task), trained.model, trained.facts)
