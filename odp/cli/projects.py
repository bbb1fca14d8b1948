"""Makes a small project that runs: a task file, an app with a device, a test and a README, for given data."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from odp import _validate
from odp.cli.data_options import data_arguments, print_reading
from odp.datasets.registry import load_reading
from odp.errors import ConfigurationError
from odp.research.simulation.data_check import usual_delta
from odp.research.simulation.own_catalogue import CATALOGUE_FILE, TITLES_FILE, OwnTask, own_task
from odp.research.simulation.presets import preset_task

#: The data of a project without data of its own.
SYNTHETIC = "synthetic:n_users=300,n_items=60,ratings_per_user=20"
_EPSILON = 8.0
_CATALOGUE_ROW = f"| `{CATALOGUE_FILE}` | the items of the data by their keys; `task.toml` names it |\n"
_TITLES_ROW = f"| `{TITLES_FILE}` | the items' titles by key |\n"
_FILES = {"README.md": "README.md.txt", "app.py": "app.py.txt", "test_app.py": "test_app.py.txt",
          ".gitignore": "gitignore.txt"}  # fmt: skip


def make_project(folder: Path, *, data: str | None = None, columns: Mapping[str, Any] | None = None) -> OwnTask:
    """Writes a project into a new or empty folder, whose name is the task's; returns what it is about.

    Args:
      folder: its last part is the project's name.
      data: what ``odp.load`` reads; by default invented ratings. A file is named by its whole path, and not copied.
      columns: further arguments of ``odp.load`` for a table, as ``--user`` and others give them.

    Raises:
      ConfigurationError: the name is no name, or the folder holds something or cannot be written.
      DataError, PrivacyError: the data cannot be read, or have too few users for a guarantee.
    """
    name = folder.absolute().name
    _validate.identifier(project=name)
    try:
        if folder.is_dir() and any(folder.iterdir()):
            raise ConfigurationError(f"{folder} is not empty; give the name of a new folder")
        if folder.exists() and not folder.is_dir():
            raise ConfigurationError(f"{folder} is a file; give the name of a new folder")
    except OSError as error:
        raise ConfigurationError(f"cannot read {folder}: {error.strerror}; give another folder") from error
    source = named(data)
    reading, ratings = load_reading(source, titles=True, **(columns or {}))
    print_reading(ratings.notes)
    preset = preset_task("auto", ratings, epsilon=_EPSILON, delta=usual_delta(ratings.n_users))
    fitted_task = own_task(preset, ratings, reading, name=name)
    task, catalogue = fitted_task.task, fitted_task.catalogue
    item = "0" if catalogue is None else catalogue.keys[int(np.bincount(ratings.items).argmax())]
    words = {
        "name": name,
        "data": repr(source),
        "columns": repr(dict(columns or {})),
        "shell_data": data_arguments(source, columns or {}),
        "data_name": ratings.name,
        "users": f"{ratings.n_users:,}",
        "items": f"{ratings.n_items:,}",
        "epsilon": f"{_EPSILON:g}",
        "delta": f"{task.privacy.delta:g}",
        "high": f"{ratings.high:g}",
        "item": repr(0 if catalogue is None else item),
        "item_type": "int" if catalogue is None else "str",
        "shell_item": shlex.quote(item),
        "use_catalogue": "" if catalogue is None else f'        device.use_catalogue(HERE / "{CATALOGUE_FILE}")\n',
        "items_are": "Items are numbers from 0."
        if catalogue is None
        else f"Items are called by their keys: `odp catalogue show {CATALOGUE_FILE} --keys` prints all of them.",
        "titles": f"HERE / {TITLES_FILE!r}" if fitted_task.titles else "None",
        "shell_titles": f" --titles {TITLES_FILE}" if fitted_task.titles else "",
        "catalogue_row": "" if catalogue is None else _CATALOGUE_ROW,
        "titles_row": _TITLES_ROW if fitted_task.titles else "",
        "goal": f"{task.cohort.goal:,}",
        "others": str(max(ratings.n_users - 1, 1)),
    }
    templates = resources.files("odp") / "templates" / "project"
    texts = {file: Template((templates / source).read_text(encoding="utf-8")).substitute(words)
             for file, source in _FILES.items()}  # fmt: skip
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fitted_task.write(folder, comment="`odp task show task.toml` prints every default, and what follows from it.")
        for file, text in texts.items():
            (folder / file).write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise ConfigurationError(f"cannot write to {folder}: {error.strerror}; give another folder") from error
    return fitted_task


def named(data: str | None) -> str:
    """How a project names its data: a path from the root, or a name of ``odp.load`` as it is."""
    if data is None:
        return SYNTHETIC
    return str(Path(data).absolute()) if Path(data).exists() else data
