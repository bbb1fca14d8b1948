"""A task as the text of a task file: what ``odp.load_task`` reads."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from odp.errors import ConfigurationError
from odp.tasks.file import key_of, kind_of, toml_of
from odp.tasks.task import Task

#: What a reader looks for, even where it is the default.
_ALWAYS = ("low", "high", "minimum")


def task_text(
    task: Task, *, comment: str = "", remarks: Mapping[str, str] | None = None, files: Mapping[str, str] | None = None
) -> str:
    """TOML with the fields that differ from their defaults.

    Args:
      task: what the text says.
      comment: the first lines.
      remarks: comments by the place of a field, as in "data.classes" or "data.features.age", above its line.
      files: name of the file that has the value of a field, such as a catalogue, by the field's name.

    Raises:
      ConfigurationError: a field has no text form, such as an array of features.
    """
    lines, remarks_by_key = [f"# {line}" for line in comment.splitlines()], remarks or {}
    lines.append(f"name = {_value('name', task.name)}")
    if task.population:
        lines.append(f"population = {_value('population', task.population)}")
    for section in ("model", "data", "privacy", "training", "cohort", "broadcast"):
        if (part := getattr(task, section)) is None:
            continue
        stated = [(name, (files or {}).get(name, value)) for name, value in _stated_fields(part)]
        plain = {name: _value(name, value) for name, value in stated if not isinstance(value, Mapping)}
        if (kind := kind_of(section, part)) or stated:
            lines += [
                "",
                f"[{section}]",
                *([f"kind = {json.dumps(kind)}"] if kind else []),
                *_fields(section, plain, remarks_by_key),
            ]
        for name, value in stated:
            if isinstance(value, Mapping):
                entries = {key: toml_of(inner) for key, inner in value.items()}
                lines += ["", f"[{section}.{name}]", *_fields(f"{section}.{name}", entries, remarks_by_key)]
    return "\n".join(lines) + "\n"


def _fields(table: str, values: Mapping[str, str], remarks: Mapping[str, str]) -> list[str]:
    lines = []
    for name, value in values.items():
        remark = remarks.get(f"{table}.{name}", "")
        # A comment ends with its line, and TOML has no control characters in one.
        lines += (
            [f"# {''.join(character if character.isprintable() else ' ' for character in remark)}"] if remark else []
        )
        lines.append(f"{key_of(name)} = {value}")
    return lines


def _stated_fields(part: Any) -> list[tuple[str, Any]]:
    stated = []
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        default = field.default
        # An array has no truth value of its own, and no default but None.
        differs = default is dataclasses.MISSING or isinstance(value, np.ndarray) or value != default
        is_stated = differs or field.name in _ALWAYS
        if field.init and value is not None and is_stated:
            stated.append((field.name, value))
    return stated


def _value(name: str, value: Any) -> str:
    if isinstance(value, enum.Enum):
        return _value(name, value.value)
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
        return f"[{', '.join(_value(name, element) for element in value)}]"
    raise ConfigurationError(f"Expected {name} to be text, a number or a list (got a {type(value).__name__})")
