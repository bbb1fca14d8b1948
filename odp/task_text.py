"""A task as the text of a task file: what ``odp.load_task`` reads."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np

from odp.errors import ConfigurationError
from odp.task import Task
from odp.task_file import kind_of

#: What a reader looks for, even where it is the default.
_ALWAYS = ("low", "high", "minimum")


def task_text(task: Task, *, comment: str = "") -> str:
    """TOML with the fields that differ from their defaults, and ``comment`` as the first line.

    Raises:
      ConfigurationError: a field has no text form, such as an array of features.
    """
    lines = [f"# {comment}"] if comment else []
    lines.append(f"name = {_value('name', task.name)}")
    if task.population:
        lines.append(f"population = {_value('population', task.population)}")
    for section in ("model", "data", "privacy", "training", "cohort", "broadcast"):
        part = getattr(task, section)
        if part is None:
            continue
        fields = [f"{name} = {_value(name, value)}" for name, value in _given(part)]
        kind = kind_of(section, part)
        if kind or fields:
            lines += ["", f"[{section}]", *([f"kind = {json.dumps(kind)}"] if kind else []), *fields]
    return "\n".join(lines) + "\n"


def _given(part: Any) -> list[tuple[str, Any]]:
    found = []
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        default = field.default
        # An array has no truth value of its own, and no default but None.
        differs = default is dataclasses.MISSING or isinstance(value, np.ndarray) or value != default
        given = differs or field.name in _ALWAYS
        if field.init and value is not None and given:
            found.append((field.name, value))
    return found


def _value(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # A TOML string escapes as a JSON one does, but for characters that need no escape in UTF-8.
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return "inf" if value == math.inf else repr(float(value))
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_value(name, one) for one in value)}]"
    raise ConfigurationError(f"Expected {name} to be text, a number or a list (got a {type(value).__name__})")
