"""A task as a TOML file, for the CLI: the same names and checks as the Python API, errors with file:line.

What an algorithm has in a file, its classes say (``odp.algorithms.choices``); the table of algorithms finds them.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from odp._validate import known_keys, nearest
from odp.algorithms.choices import Question, questions, tasks_without_rounds, trainings
from odp.errors import ConfigurationError, DataError, PrivacyError
from odp.models.features import KINDS
from odp.models.glm import Glm
from odp.models.matrix_factorization import MatrixFactorization
from odp.numerics.archives import UNREADABLE, require_growth, unpacked_bytes
from odp.protocol.catalogues.catalogue import Catalogue
from odp.protocol.terms import Cohort, UserLevelDP
from odp.signed.broadcast.config import Broadcast
from odp.tasks.task import CountUsable, Task

if TYPE_CHECKING:
    from odp.algorithms.draw_and_discard.config import DrawAndDiscard

_COUNT = "count_usable"
_SECTIONS: dict[str, dict[str, type]] = {
    "model": {"matrix_factorization": MatrixFactorization, "glm": Glm},
    "data": {data.kind: data for training in trainings().values() for data in training.data},
    "privacy": {"user_level_dp": UserLevelDP},
    "training": dict(trainings()),
    "cohort": {"cohort": Cohort},
    "broadcast": {"broadcast": Broadcast},
    _COUNT: {_COUNT: CountUsable},
}
_REQUIRED = ("model", "data", "privacy")
_QUESTIONS = {question.section: question for question in questions().values()}
_QUESTION_SECTIONS = ("privacy", "cohort")
#: Tasks that have all of their fields, but for the two at the top, in one section.
_LOCAL = tasks_without_rounds()
_AT_THE_TOP = ("name", "population")
#: Keys whose value is the path of a file of numbers, by section.
_GROUPED = "item_features"
_ARRAYS = {"model": (_GROUPED,), **{section: question.arrays for section, question in _QUESTIONS.items()}}
#: Key of [model] that names a catalogue file.
_CATALOGUE = "catalogue"
#: Fields that a task has, or has not: without them, nothing is chosen by rule.
_OPTIONAL = ("events", "confidence", "against", "personal", _CATALOGUE)
_LARGEST = 2**20
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
AnyTask: TypeAlias = "Task | Question | DrawAndDiscard"


def load_task(path: str | Path) -> AnyTask:
    """Reads a task file; one with ``[queries.NAME]`` asks for statistics, one with ``[evaluation]`` tests a model, and
    one with ``[draw_and_discard]`` trains a model without rounds.

    Raises ConfigurationError (with file:line and the nearest valid name) or PrivacyError.
    """
    source = Path(path)
    try:
        with source.open("rb") as file:
            data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise ConfigurationError(f"{source} is larger than {_LARGEST} bytes; that is not a task file")
        text = data.decode("utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot read the task file {source}: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{source} is not UTF-8 text; write the task as TOML") from error
    return parse_task(text, where=str(source))


def names_files(text: str) -> bool:
    """Whether a task's text names files of numbers, which ``parse_task`` reads. False for what is no TOML."""
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError):
        return False
    return any(
        isinstance(content.get(section), dict) and not content[section].keys().isdisjoint((*keys, _CATALOGUE))
        for section, keys in _ARRAYS.items()
    )


def parse_task(text: str, *, where: str = "task.toml") -> AnyTask:
    """The task of a TOML text; ``where`` stands in messages."""
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, and brackets of any depth
        raise ConfigurationError(f"{where}: not valid TOML: {error}") from error
    for section in _LOCAL.keys() & content.keys():
        return _parse_local(section, content, where=where, text=text)
    for section in _QUESTIONS.keys() & content.keys():
        parse = _parse_queries if _QUESTIONS[section].query_kinds else _parse_question
        return parse(_QUESTIONS[section], content, where=where, text=text)
    _check_keys(content, ["name", "population", *_SECTIONS], where=where, text=text, section="")
    _require(content, ("name", *_REQUIRED), where=where)
    content = _with_arrays(content, "model", where=where, text=text)
    parts = {
        section: _build(section, content[section], _SECTIONS[section], where=where, text=text)
        for section in _SECTIONS
        if section in content
    }
    try:
        return Task(name=content["name"], population=content.get("population", ""), **parts)
    except (ConfigurationError, PrivacyError) as error:
        place = _named_in(str(error), parts)
        raise type(error)(f"{where}:{_line_of(text, *place)}: {error}" if place else f"{where}: {error}") from error


def _parse_local(section: str, content: dict[str, Any], *, where: str, text: str) -> DrawAndDiscard:
    _check_keys(content, [*_AT_THE_TOP, section], where=where, text=text, section="")
    _require(content, ("name",), where=where)
    shared = {name: content[name] for name in _AT_THE_TOP if name in content}
    kinds = {section: _LOCAL[section]}
    task: DrawAndDiscard = _build(section, content[section], kinds, where=where, text=text, shared=shared)
    return task


def _parse_queries(kind: type[Question], content: dict[str, Any], *, where: str, text: str) -> Question:
    _check_question(kind, content, where=where, text=text)
    section, queries_by_name = kind.section, content[kind.section]
    if not isinstance(queries_by_name, dict) or not queries_by_name:
        line = _line_of(text, section, None)
        raise ConfigurationError(f"{where}:{line}: Expected one table [{section}.NAME] per query")
    queries = {
        name: _build(f"{section}.{name}", query, kind.query_kinds, where=where, text=text)
        for name, query in queries_by_name.items()
    }
    parts = _question_parts(kind, content, where=where, text=text)
    fields = {name: content[name] for name in (*_AT_THE_TOP, *kind.at_the_top) if name in content}
    fields[section] = queries
    try:
        return kind(**fields, **parts)
    except (ConfigurationError, PrivacyError) as error:
        named = [name for name in kind.at_the_top if str(error).startswith(f"Expected {name}=")]
        place = ("", named[0]) if named else _named_in(str(error), parts)
        raise type(error)(f"{where}:{_line_of(text, *place)}: {error}" if place else f"{where}: {error}") from error


def _parse_question(kind: type[Question], content: dict[str, Any], *, where: str, text: str) -> Question:
    _check_question(kind, content, where=where, text=text)
    section = kind.section
    content = _with_arrays(content, section, where=where, text=text)
    shared = {"name": content["name"], "population": content.get("population", ""), "cohort": Cohort()}
    shared |= _question_parts(kind, content, where=where, text=text)
    question: Question = _build(section, content[section], {section: kind}, where=where, text=text, shared=shared)
    return question


def _elsewhere(part: object) -> set[str]:
    """The fields of a part that do not stand in its section."""
    if isinstance(part, Question):
        return {field.name for field in dataclasses.fields(Question)} | {*part.more_sections}
    return set(_AT_THE_TOP) if isinstance(part, tuple(_LOCAL.values())) else set()


def _check_question(kind: type[Question], content: dict[str, Any], *, where: str, text: str) -> None:
    valid = [*_AT_THE_TOP, *kind.at_the_top, kind.section, *kind.more_sections, *_QUESTION_SECTIONS]
    _check_keys(content, valid, where=where, text=text, section="")
    _require(content, ("name", *kind.more_sections, "privacy"), where=where)


def _question_parts(kind: type[Question], content: dict[str, Any], *, where: str, text: str) -> dict[str, Any]:
    """What the sections describe that a question has besides its own."""
    return {
        section: _build(section, content[section], _SECTIONS[section], where=where, text=text)
        for section in (*kind.more_sections, *_QUESTION_SECTIONS)
        if section in content
    }


def _require(content: dict[str, Any], names: tuple[str, ...], *, where: str) -> None:
    for required in names:
        if required not in content:
            raise ConfigurationError(f"{where}: missing {required!r}; `odp task new` writes a whole file to start from")


def render_task(task: AnyTask) -> str:
    """The whole task as TOML, every default written out; ``parse_task`` reads it back to an equal task.

    Item features and parameters are named in a comment: save them to a .npy file and name that.
    """
    lines = [f"name = {toml_of(task.name)}", f"population = {toml_of(task.population)}"]
    parts: list[tuple[str, Any, Mapping[str, type]]] = []
    sections: Iterable[str] = ()
    if isinstance(task, Question):
        top = {name: getattr(task, name) for name in task.at_the_top}
        lines += [f"{name} = {toml_of(value)}" for name, value in top.items() if value is not None]
        section, kinds = task.section, task.query_kinds
        parts = [(name, getattr(task, name), _SECTIONS[name]) for name in task.more_sections]
        if kinds:
            parts += [(f"{section}.{name}", query, kinds) for name, query in getattr(task, section).items()]
        else:
            parts.append((section, task, {section: type(task)}))
        sections = _QUESTION_SECTIONS
    elif isinstance(task, Task):
        sections = [name for name in _SECTIONS if name != _COUNT or task.count_usable is not None]
    else:
        parts = [(section, task, {section: kind}) for section, kind in _LOCAL.items() if isinstance(task, kind)]
    parts += [(name, getattr(task, name), _SECTIONS[name]) for name in sections]
    for section, part, kinds in parts:
        kind = next(name for name, accepted in kinds.items() if isinstance(part, accepted))
        lines += ["", f"[{section}]"]
        if len(kinds) > 1 or section in ("model", "training"):
            lines.append(f"kind = {toml_of(kind)}")
        for field in dataclasses.fields(part):
            if (value := getattr(part, field.name)) is None and field.name in _OPTIONAL:
                continue
            if field.name in _elsewhere(part):
                continue
            if not field.init or (isinstance(task, Question) and field.name == "max_items_per_user"):
                continue
            if isinstance(value, Catalogue):
                lines.append(f"# {field.name}: version {value.version} of {value.population}, {value.sha256.hex()}")
                continue
            if isinstance(value, np.ndarray) and value.ndim == 1:
                digest = hashlib.sha256(value.astype("<f4").tobytes()).hexdigest()
                lines.append(f"# {field.name}: {len(value)} parameters, SHA-256 {digest}")
                continue
            if isinstance(value, np.ndarray):
                lines.append(
                    f"# {field.name}: {value.shape[0]} x {value.shape[1]}, SHA-256 {part.features_sha256.hex()}"
                )
                continue
            # TOML has no null: an absent key is the rule's own choice, which `odp task show` prints resolved.
            lines.append(f"# {field.name}: chosen by rule" if value is None else f"{field.name} = {toml_of(value)}")
    return "\n".join(lines) + "\n"


def _build(
    section: str,
    table: Any,
    kinds: Mapping[str, type],
    *,
    where: str,
    text: str,
    shared: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """What one section describes; ``shared`` are fields that the file has in places of their own."""
    line = _line_of(text, section, None)
    if not isinstance(table, dict):
        raise ConfigurationError(f"{where}:{line}: Expected [{section}] to be a table of keys")
    values = dict(table)
    kind = values.pop("kind", next(iter(kinds)))
    if not isinstance(kind, str) or kind not in kinds:
        raise ConfigurationError(
            f"{where}:{_line_of(text, section, 'kind')}: Unknown kind {kind!r} in [{section}]"
            f"{nearest(kind, kinds)}; valid: {', '.join(kinds)}"
        )
    cls = kinds[kind]
    names = [field.name for field in dataclasses.fields(cls) if field.init and field.name not in shared]
    _check_keys(values, names, where=where, text=text, section=section)
    hints = typing.get_type_hints(cls)
    try:
        arrays = _ARRAYS.get(section, ())
        values = {name: value if name in arrays else _value(hints[name], value) for name, value in values.items()}
        if isinstance(values.get("features"), dict):
            features = getattr(cls, "feature_kinds", KINDS)
            values["features"] = {
                name: _feature(name, feature, features) for name, feature in values["features"].items()
            }
        return cls(**values, **shared)
    except TypeError as error:
        missing = [field.name for field in dataclasses.fields(cls) if _required(field) and field.name in names]
        missing = [name for name in missing if name not in values]
        if missing:
            raise ConfigurationError(f"{where}:{line}: [{section}] lacks {missing[0]!r}") from error
        raise ConfigurationError(f"{where}:{line}: [{section}] holds a value of a wrong type") from error
    except OverflowError as error:
        raise ConfigurationError(f"{where}:{line}: [{section}] holds a number that is too large") from error
    except (ConfigurationError, PrivacyError) as error:
        named = next((name for name in names if re.search(rf"(?<![A-Za-z]){name}(=| to )", str(error))), None)
        parts = {name: part for name, part in shared.items() if dataclasses.is_dataclass(part)}
        place = (_named_in(str(error), parts) if shared and named is None else None) or (section, named)
        raise type(error)(f"{where}:{_line_of(text, *place)}: {error}") from error


def _feature(name: str, table: Any, kinds: Mapping[str, type]) -> Any:
    if not isinstance(table, dict):
        raise ConfigurationError(
            f"Expected features to have a table for {name!r}: of shape, low and high, or of a kind and what it has"
        )
    kind = table.get("kind", next(iter(kinds)))
    if not isinstance(kind, str) or kind not in kinds:
        raise ConfigurationError(
            f"Expected features to be of kinds that are known: {name!r} has kind {kind!r}{nearest(kind, kinds)}; "
            f"valid: {', '.join(kinds)}"
        )
    return kinds[kind](**{key: value for key, value in table.items() if key != "kind"})


def _with_arrays(content: dict[str, Any], section: str, *, where: str, text: str) -> dict[str, Any]:
    """``content`` with arrays in place of the paths of their files; paths start at the task file's folder."""
    table = content[section]
    if not isinstance(table, dict):
        return content
    arrays: dict[str, Any] = {
        key: _array(key, table[key], at=f"{where}:{_line_of(text, section, key)}", folder=Path(where).parent)
        for key in _ARRAYS.get(section, ())
        if key in table
    }
    if section == "model" and _CATALOGUE in table:
        arrays[_CATALOGUE] = _catalogue(
            table[_CATALOGUE], at=f"{where}:{_line_of(text, section, _CATALOGUE)}", folder=Path(where).parent
        )
    return {**content, section: {**table, **arrays}}


def _catalogue(name: object, *, at: str, folder: Path) -> Catalogue:
    if not isinstance(name, str):
        raise ConfigurationError(f"{at}: Expected catalogue to be the path of a file of `odp catalogue make`")
    try:
        return Catalogue.load(folder / name)
    except DataError as error:
        raise ConfigurationError(f"{at}: {error}") from error


def _array(key: str, name: object, *, at: str, folder: Path) -> npt.NDArray[Any] | dict[str, npt.NDArray[Any]]:
    """The numbers of a .npy file; of item features also groups by name, from an .npz file."""
    kinds = ".npy or .npz" if key == _GROUPED else ".npy"
    if not isinstance(name, str):
        raise ConfigurationError(f"{at}: Expected {key} to be the path of a {kinds} file")
    path = folder / name
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.lib.npyio.NpzFile) and key == _GROUPED:
            with loaded:
                require_growth(path, unpacked_bytes(path))
                return {group: loaded[group] for group in loaded.files}
    except OSError as error:
        reason = error.strerror or f"not a {kinds} file"
        raise ConfigurationError(f"{at}: cannot read {key} {path}: {reason}; check the path") from error
    except DataError as error:
        raise ConfigurationError(f"{at}: {error}") from None
    except UNREADABLE as error:
        raise ConfigurationError(f"{at}: {path} is not a {kinds} file of numbers; write it with numpy.save") from error
    if not isinstance(loaded, np.ndarray):
        raise ConfigurationError(f"{at}: {path} holds several arrays; write one with numpy.save")
    return loaded


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _value(hint: Any, value: Any) -> Any:
    """A field's value: a whole number for a float is one, and a table for a part that has fields is that part."""
    kinds: tuple[Any, ...] = (hint,)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        kinds = typing.get_args(hint)
    if isinstance(value, dict):
        parts = (kind for kind in kinds if isinstance(kind, type) and dataclasses.is_dataclass(kind))
        return next((part(**value) for part in parts), value)
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if is_whole and float in kinds and int not in kinds else value


def _check_keys(keys: dict[str, Any], valid: list[str], *, where: str, text: str, section: str) -> None:
    for key in keys:
        if key not in valid and not (section and key == "kind"):
            line = _line_of(text, section if section else key, key)
            known_keys([key], valid, where=f"{where}:{line}" + (f" [{section}]" if section else ""))


def _named_in(message: str, parts: dict[str, Any]) -> tuple[str, str | None] | None:
    """(section, key) that a message about the whole task names first, where the file can hold it."""
    places = [(message.find(f"{name}="), "", name) for name in ("name", "population")]
    places += [
        (message.find(f"{field.name}="), section, field.name)
        for section, part in parts.items()
        for field in dataclasses.fields(part)
    ]
    first = min((entry for entry in places if entry[0] >= 0), default=None)
    return None if first is None else first[1:]


def _line_of(text: str, section: str, key: str | None) -> int:
    """The line of ``key`` within ``[section]`` (or at the top), else the section's own, else 1."""
    current, line_number = "", 1
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[+\s*([\w.-]+)\s*\]+", line):
            current = header[1]
            if current == section:
                line_number = number
        elif not current and section and re.match(rf"\s*['\"]?{re.escape(section)}['\"]?\s*[.=]", line):
            line_number = number  # written as an inline table, or with dotted keys
        elif key is not None and current in (section, "") and re.match(rf"\s*['\"]?{re.escape(key)}['\"]?\s*=", line):
            return number
    return line_number


def key_of(name: str) -> str:
    """A key of TOML, in quotes where it needs them."""
    return name if _BARE_KEY.fullmatch(name) else toml_of(name)


def toml_of(value: object) -> str:
    """A value of a task as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's; TOML has one control character more to escape.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, enum.Enum):
        return toml_of(value.value)
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        kind = {"kind": getattr(value, "kind", None), **fields}
        return toml_of({name: inner for name, inner in kind.items() if inner is not None})
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key_of(str(name))} = {toml_of(inner)}" for name, inner in value.items()) + " }"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(toml_of(entry) for entry in value)}]"
    if isinstance(value, float):
        return repr(float(value))  # a numpy float writes its type, too
    return repr(value)


def kind_of(section: str, part: object) -> str:
    """The ``kind`` that names the class of ``part`` in its section; empty where the section has one kind alone."""
    kinds = _SECTIONS[section]
    return next((kind for kind, made in kinds.items() if type(part) is made), "") if len(kinds) > 1 else ""
