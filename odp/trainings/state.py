"""The stored state of a living model, as it is read back."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from odp.errors import StateError

_STATES = ("submitting", "training", "finished", "ended")


def read_state(path: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """The state in a file, or that of a model without any training where there is none.

    Raises:
      StateError: it cannot be read, is damaged, is of another model, or is gone while releases are there.
    """
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        left = sorted(file.name for file in path.parent.glob("training-*.npz"))
        if left:
            raise StateError(
                f"{path} is gone, and {left[-1]} beside it says that trainings were released: what they spent would be"
                " forgotten; restore the newest copy, or give another folder"
            ) from None
        return identity | {"trainings": [], "begin_with": None}
    except (OSError, ValueError, RecursionError) as error:
        raise StateError(f"cannot read {path}: {error}; restore it from a backup") from error
    for name, expected in identity.items():
        stored = state.get(name) if isinstance(state, dict) else None
        if stored != expected:
            raise StateError(f"{path} is of another living model: it has {name}={stored!r}, not {expected!r}")
    trainings = state.get("trainings")
    if not isinstance(trainings, list) or not all(map(_is_training, trainings)):
        raise StateError(f"{path} is damaged: its trainings are none; restore the newest copy")
    if not _is_number_or_none(state.get("begin_with", -1), len(trainings)):
        raise StateError(f"{path} is damaged: begin_with is no training; restore the newest copy")
    return dict(state)


def _is_training(training: Any) -> bool:
    return (
        isinstance(training, dict)
        and training.get("state") in _STATES
        and isinstance(training.get("began"), int | float)
        and math.isfinite(training["began"])
        and _is_hexadecimal(training.get("task_sha256"), (0, 64))
        and _is_hexadecimal(training.get("definition_sha256"), (64,))
        and isinstance(training.get("columns"), int)
        and training["columns"] >= 0
        and isinstance(training.get("item_keys"), list)
        and all(isinstance(key, str) for key in training["item_keys"])
        and _is_number_or_none(training.get("begun_with", -1), 2**31)
    )


def _is_hexadecimal(value: Any, lengths: tuple[int, ...]) -> bool:
    return isinstance(value, str) and len(value) in lengths and not value.strip("0123456789abcdef")


def _is_number_or_none(value: Any, end: int) -> bool:
    return value is None or (type(value) is int and 0 <= value < end)
