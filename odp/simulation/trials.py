"""Results of finished trials in a file, so that a search or a comparison that was stopped goes on where it was.

One JSON object per line: the first names the run, each other one a trial. A line that a death cut off does not count.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from odp.errors import StateError
from odp.evaluation.trials import Outcome


class FinishedTrials:
    """The trials in ``path``; a new file is made where there is none.

    Args:
      path: the file.
      identity: what decides the results, as JSON has it: another run's trials are not taken.

    Raises:
      StateError: the file is of another run, is none of these files, or cannot be used.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self._path = path
        self._found: dict[str, Any] = {}
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
            if not lines:
                self._append({"run": digest})
                return
            whole = [line for line in lines if line.endswith("\n")]
            read = [json.loads(line) for line in whole]
            if not read or read[0].get("run") != digest:
                raise StateError(f"{path} has the trials of another run: give another file, or remove it")
            self._found = {json.dumps(one["trial"]): one["found"] for one in read[1:]}
            if len(whole) < len(lines):
                path.write_text("".join(whole), encoding="utf-8")
        except OSError as error:
            raise StateError(f"cannot keep trials in {path}: {error.strerror}") from error
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise StateError(f"{path} has no trials: give another file, or remove it") from error

    def find(self, trial: Sequence[Any]) -> Any | None:
        """What was found in a trial; None where it has to run."""
        return self._found.get(json.dumps(list(trial)))

    def add(self, trial: Sequence[Any], found: Any) -> None:
        """Keeps a trial; it is on the disk when this returns. Raises StateError."""
        try:
            self._append({"trial": list(trial), "found": found})
        except OSError as error:
            raise StateError(f"cannot keep trials in {self._path}: {error.strerror}") from error
        self._found[json.dumps(list(trial))] = found

    def _append(self, line: Mapping[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


def outcome_of(found: Any, *, metrics: int, path: Path | None) -> Outcome:
    """What the file says of a trial of a comparison. Raises StateError where that is none."""
    scores, settings = (found.get(name) if isinstance(found, dict) else None for name in ("scores", "settings"))
    if (
        isinstance(scores, list)
        and len(scores) == metrics
        and all(isinstance(one, int | float) and math.isfinite(one) for one in scores)
        and isinstance(settings, dict)
        and all(isinstance(one, int | float) and not math.isnan(one) for one in settings.values())
    ):
        return Outcome(tuple(scores), settings)
    raise StateError(f"{path} is damaged: a trial has no scores and settings; give another file, or remove it")
