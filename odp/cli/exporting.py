"""Trained items and classifiers as files for other tools: `odp simulate --export` and `odp task export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from odp.cli.outputs import lines_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from odp.algorithms.experiment import NamedData
    from odp.research.simulation.engine import RunResult
    from odp.serving.classifier import Classifier
    from odp.tasks.task import Task
    from odp.v1 import common_pb2


def check_export(task: Task, path: Path) -> None:
    """Returns if a task's model, or its items, can be exported to ``path``. Raises ConfigurationError."""
    from odp.algorithms.federated.terms import Terms
    from odp.algorithms.registry import recommender_for
    from odp.serving.classifier import check_classes, check_file
    from odp.serving.export import check_export as check_path

    if is_of_examples(task.definition()):
        check_file(path)
        check_classes(Terms.of(task.definition()))
        return
    recommender_for(task.definition())
    check_path(path)


def is_of_examples(definition: common_pb2.TaskDefinition) -> bool:
    """Whether a task trains on labelled examples, so that its model is a classifier and has no items."""
    return bool(definition.WhichOneof("local_data") == "examples")


def export_run(finished: RunResult, path: Path, data: NamedData, *, out: Console) -> None:
    """Writes the classifier of a simulation; or its items, with the data set's titles or ids as keys, else numbers."""
    from odp.datasets.catalogue import catalogue_keys
    from odp.serving.classifier import export_classifier
    from odp.serving.export import export_items

    if is_of_examples(finished.task.definition()):
        # Names of classes are no markup.
        print_classifier(export_classifier(finished, path), path, out=lambda line: out.print(line, markup=False))
        return
    ratings = data.ratings
    named = ratings.titles is not None or ratings.item_ids is not None
    table = export_items(finished, path, item_keys=catalogue_keys(ratings) if named else None)
    out.print(f"items: {path}; {table.facts['privacy']}; {table.facts['signature']}")


def print_classifier(classifier: Classifier, path: Path, *, out: Callable[[str], None]) -> None:
    """Prints what was written."""
    classes, facts = ", ".join(map(repr, classifier.classes)), classifier.facts
    signed = f"signed by: {facts['signed_by']}" if "signed_by" in facts else facts["signature"]
    out(f"classifier: {path}; classes {classes}; {facts['privacy']}; {signed}")


def keys_of(path: Path | None) -> list[str] | None:
    """The lines of a text file; None without one. Raises DataError where it cannot be read."""
    from odp.errors import DataError

    if path is None:
        return None
    try:
        return lines_of(path)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the keys of items in {path}: give a text file, one key per line") from error
