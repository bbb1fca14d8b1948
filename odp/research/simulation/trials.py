"""Results of finished trials in a file, so that a search or a comparison that was stopped goes on where it was.

One JSON object per line: the first names the run, each other one a trial. A line that a death cut off does not count.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from odp._system.closing import Closing
from odp._system.posix import fcntl
from odp.errors import StateError
from odp.evaluation.trials import Outcome


class FinishedTrials(Closing):
    """The trials in ``path``, for one program at a time; a new file is made where there is none. A context manager.

    Args:
      path: the file.
      identity: what decides the results, as JSON has it: another run's trials are not taken.

    Raises:
      StateError: the file is of another run, is none of these files, is in use, or cannot be used.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self._path = path
        self._results: dict[str, Any] = {}
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab")
        except OSError as error:
            raise self._unusable(error) from error
        try:
            self._require_alone()
            self._read(digest)
        except OSError as error:
            self._file.close()
            raise self._unusable(error) from error
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            self._file.close()
            raise StateError(f"{path} has no trials: give another file, or remove it") from error
        except StateError:
            self._file.close()
            raise

    def close(self) -> None:
        """Lets others use the file."""
        self._file.close()

    def find(self, trial: Sequence[Any]) -> Any | None:
        """What was found in a trial; None where it has to run."""
        return self._results.get(json.dumps(list(trial)))

    def add(self, trial: Sequence[Any], result: Any) -> None:
        """Keeps a trial; it is on the disk when this returns. Raises StateError."""
        try:
            self._append({"trial": list(trial), "found": result})
        except OSError as error:
            raise self._unusable(error) from error
        self._results[json.dumps(list(trial))] = result

    def _read(self, digest: str) -> None:
        lines = self._path.read_bytes().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith(b"\n")]
        if not whole and len(b"".join(lines)) < len(_line({"run": digest})):  # new, or cut off in its first line
            self._file.truncate(0)
            self._append({"run": digest})
            return
        read = [json.loads(line) for line in whole]
        if not read or read[0].get("run") != digest:
            raise StateError(f"{self._path} has the trials of another run: give another file, or remove it")
        self._results = {json.dumps(entry["trial"]): entry["found"] for entry in read[1:]}
        if len(whole) < len(lines):
            self._file.truncate(len(b"".join(whole)))

    def _append(self, line: Mapping[str, Any]) -> None:
        self._file.write(_line(line))
        self._file.flush()
        os.fsync(self._file.fileno())

    def _require_alone(self) -> None:
        if sys.platform == "win32":  # which has no such locks; simulations run there, too
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StateError(f"another program keeps its trials in {self._path}: give another file") from error

    def _unusable(self, error: OSError) -> StateError:
        return StateError(f"cannot keep trials in {self._path}: {error.strerror}")


def _line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content).encode() + b"\n"


def stored_outcome(outcome: Outcome) -> dict[str, Any]:
    """As ``outcome_of`` reads it. Influence has 24 bits, in base64: some kilobytes for a thousand users."""
    influence = None if outcome.influence is None else outcome.influence.astype("<f4").tobytes()
    return {
        "scores": list(outcome.scores),
        "settings": dict(outcome.settings),
        "influence": None if influence is None else base64.b64encode(influence).decode(),
    }


def outcome_of(stored: Any, *, metrics: int, path: Path | None) -> Outcome:
    """What the file says of a trial of a comparison; versions before kept no influence.

    Raises StateError where that is none.
    """
    fields = stored if isinstance(stored, dict) else {}
    scores, settings, influence = (fields.get(name) for name in ("scores", "settings", "influence"))
    if (
        isinstance(scores, list)
        and len(scores) == metrics
        and all(isinstance(score, int | float) and math.isfinite(score) for score in scores)
        and isinstance(settings, dict)
        and all(isinstance(setting, int | float) and not math.isnan(setting) for setting in settings.values())
    ):
        with contextlib.suppress(ValueError, TypeError):
            if influence is None:
                return Outcome(tuple(scores), settings)
            by_user = np.frombuffer(base64.b64decode(influence, validate=True), dtype="<f4")
            return Outcome(tuple(scores), settings, by_user.astype(np.float64))
    raise StateError(f"{path} is damaged: a trial has no scores and settings; give another file, or remove it")
