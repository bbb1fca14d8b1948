"""The items of trained models as files for other tools: `odp simulate --export` and `odp task export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from odp.cli.text_lines import lines_of

if TYPE_CHECKING:
    from rich.console import Console

    from odp.algorithms.experiment import NamedData
    from odp.simulation.engine import RunResult
    from odp.task import Task


def check_export(task: Task, path: Path) -> None:
    """Returns if the items of a task's model can be exported to ``path``. Raises ConfigurationError."""
    from odp.algorithms.registry import recommender_for
    from odp.item_export import check_export as check_path

    recommender_for(task.definition())
    check_path(path)


def export_run(finished: RunResult, path: Path, data: NamedData, *, out: Console) -> None:
    """Writes the items of a simulation, with the data set's titles or ids as keys, else their numbers."""
    from odp.datasets.catalogue import catalogue_keys
    from odp.item_export import export_items

    ratings = data.ratings
    named = ratings.titles is not None or ratings.item_ids is not None
    table = export_items(finished, path, item_keys=catalogue_keys(ratings) if named else None)
    out.print(f"items: {path}; {table.facts['privacy']}; {table.facts['signature']}")


def keys_of(path: Path | None) -> list[str] | None:
    """The lines of a text file; None without one. Raises DataError where it cannot be read."""
    from odp.errors import DataError

    if path is None:
        return None
    try:
        return lines_of(path)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the keys of items in {path}: give a text file, one key per line") from error
