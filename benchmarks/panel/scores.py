"""Scores of methods on cells of the panel, in a folder that a run may leave and take up again.

There is one file per method, ``METHOD.jsonl``: one line for each cell, ε and seed (``FinishedTrials``). Remove the file
of a method whose code has changed. Two runs of different methods may write into one folder at the same time.

All methods of a cell, an ε and a seed have the same split, and spend (ε, δ) in all their releases. Methods other than
DPAM take the best of six settings on the validation part, which is not charged, as in ``odp compare``.
"""

from __future__ import annotations

import itertools
import math
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.panel.cells import Cell
from odp._validate import nearest
from odp.errors import ConfigurationError, DataError
from odp.evaluation.trials import Outcome
from odp.research.simulation.methods import RANKING_METHODS, RATING_METHODS, contest_for
from odp.research.simulation.presets import preset_task
from odp.research.simulation.trials import FinishedTrials, outcome_of, stored_outcome

DELTA = 1e-6
NOT_PRIVATE = "not private"
PLAIN, WITH_FEATURES = "DPAM", "DPAM with public item features"
OURS, OTHERS = "ours", "others"
_PRIVATE = [method for method in (*RATING_METHODS, *RANKING_METHODS) if method.privacy != NOT_PRIVATE]
#: Private methods of ratings or of implicit feedback, those of either kind once.
METHODS = (*dict.fromkeys(method.name for method in _PRIVATE), WITH_FEATURES)
#: Methods that spend nothing: their scores are kept at an ε of 0.
_FREE = frozenset(method.name for method in _PRIVATE if not method.spends)
_FORMAT = 1


@dataclass(frozen=True)
class Trial:
    """What a method reached on one cell.

    Attributes:
      cell, epsilon, seed, method: which trial; ε is 0 for what spends nothing.
      outcome: the error first, for ratings, or Recall@20.
      seconds: of this process, for one trial.
    """

    cell: str
    epsilon: float
    seed: int
    method: str
    outcome: Outcome
    seconds: float


@dataclass(frozen=True)
class Plan:
    """Which trials: every cell at every ε and seed, by the methods of these names that the cell has."""

    cells: Sequence[Cell]
    epsilons: Sequence[float]
    seeds: Sequence[int]
    methods: Sequence[str]


def named_methods(names: Sequence[str] | None) -> tuple[str, ...]:
    """Names in the order of a table; "ours" and "others" stand for DPAM's and all others; None is all.

    Raises:
      ConfigurationError: a name is unknown.
    """
    if names is None:
        return METHODS
    known = [OURS, OTHERS, *METHODS]
    for name in names:
        if name not in known:
            raise ConfigurationError(f"Expected method={name!r} to be a private method{nearest(name, known)}")
    ours = (PLAIN, WITH_FEATURES)
    return tuple(name for name in METHODS if name in names or (OURS if name in ours else OTHERS) in names)


def run(plan: Plan, folder: Path, *, on_trial: Callable[[Trial, int], None]) -> None:
    """Computes the trials of ``plan`` that ``folder`` does not have.

    Args:
      plan: what to compute.
      folder: of the scores.
      on_trial: called with each new trial, and how many cells are left after this one.

    Raises:
      StateError: another run writes scores of the same methods, or a file is none of scores.
      DataError, ConfigurationError: as the data sets and the methods.
    """
    files = {name: FinishedTrials(_file(folder, name), _identity(name)) for name in plan.methods}
    try:
        for place, cell in enumerate(plan.cells, start=1):
            for trial, stored in _missing(cell, plan, files):
                files[trial.method].add(_key(cell, trial.epsilon, trial.seed), stored)
                on_trial(trial, len(plan.cells) - place)
    finally:
        for file in files.values():
            file.close()


def read(plan: Plan, folders: Sequence[Path]) -> list[Trial]:
    """The trials of ``plan`` that the last of ``folders`` with a file of the method has; a run may write meanwhile.

    Raises:
      StateError: a file is none of scores.
    """
    trials = []
    for name in plan.methods:
        if not (paths := [path for folder in folders if (path := _file(folder, name)).exists()]):
            continue
        with tempfile.TemporaryDirectory() as scratch:
            # A file of scores is one program's at a time; a copy may end within a line, which does not count.
            copy = Path(shutil.copy(paths[-1], scratch))
            with FinishedTrials(copy, _identity(name)) as file:
                for cell, epsilon, seed in itertools.product(plan.cells, (0.0, *plan.epsilons), plan.seeds):
                    if (stored := file.find(_key(cell, epsilon, seed))) is not None:
                        outcome = outcome_of(stored, metrics=len(stored["scores"]), path=paths[-1])
                        trials.append(Trial(cell.name, epsilon, seed, name, outcome, stored["seconds"]))
    return trials


def _missing(cell: Cell, plan: Plan, files: Mapping[str, FinishedTrials]) -> Iterator[tuple[Trial, Mapping[str, Any]]]:
    """New trials of a cell, and as they are stored; the data are not made where nothing is missing."""
    wanted = [
        (name, epsilon, seed)
        for seed in plan.seeds
        for name in plan.methods
        for epsilon in ((0.0,) if name in _FREE else plan.epsilons)
        if _may_have(cell, name) and files[name].find(_key(cell, epsilon, seed)) is None
    ]
    if not wanted:
        return
    ratings = cell.load()
    methods = {m.name: m for m in contest_for(ratings, preset="auto").methods}
    splits = {seed: cell.split(ratings, seed=seed) for seed in {seed for _, _, seed in wanted}}
    for name, epsilon, seed in wanted:
        if name not in methods:
            continue
        task = preset_task("auto", ratings, epsilon=epsilon or 1.0, delta=DELTA)
        started = time.process_time()
        outcome = methods[name].score(task, splits[seed], seed)
        seconds = round(time.process_time() - started, 2)
        if not all(math.isfinite(score) for score in outcome.scores):
            raise DataError(f"{name} has no finite score on {cell.name} at epsilon={epsilon}")
        yield Trial(cell.name, epsilon, seed, name, outcome, seconds), {**stored_outcome(outcome), "seconds": seconds}


def _may_have(cell: Cell, method: str) -> bool:
    """Whether a cell's data have a method, as far as that is known without them."""
    if "implicit" not in cell.definition:
        return True
    if method == WITH_FEATURES:
        return bool(cell.definition["n_features"])
    kind = RANKING_METHODS if cell.definition["implicit"] else RATING_METHODS
    return any(method == of_kind.name for of_kind in kind)


def _key(cell: Cell, epsilon: float, seed: int) -> tuple[Any, ...]:
    return (cell.name, dict(cell.definition), epsilon, seed)


def _file(folder: Path, method: str) -> Path:
    return folder / f"{re.sub('[^a-z0-9]+', '-', method.lower())}.jsonl"


def _identity(method: str) -> dict[str, Any]:
    return {"panel": _FORMAT, "method": method, "delta": DELTA}
