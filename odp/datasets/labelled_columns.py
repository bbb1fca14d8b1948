"""Which columns of a table of labelled examples are the user, the label and the features, and by which names."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from odp import _validate
from odp.datasets.columns import USUAL_TIMES, USUAL_USERS, OnError, guessed, no_column, refuse_doubled, unrecognised
from odp.datasets.raw_table import Kind
from odp.errors import ConfigurationError, DataError

USUAL_LABELS = ("label", "labels", "target", "class", "outcome", "response", "y")
#: The role of ids; no example has a column of this name.
USER = "user"
#: The role of times; no name of a task has this form.
TIME = "#time"
#: As ``LabelledColumns.time``: the column of a usual name.
USUAL_TIME = "*"

_NO_NAME = re.compile(r"[^a-z0-9_.-]+")
_MOST_CHARACTERS = 64


def column_name(text: str) -> str:
    """The name in a task of a column that a table calls ``text``: "Is spam?" is "is_spam". Empty where none is left."""
    plain = unicodedata.normalize("NFKD", text.strip().lower())
    letters = "".join(letter for letter in plain if not unicodedata.combining(letter))
    return _NO_NAME.sub("_", letters).strip("_.-")[:_MOST_CHARACTERS]


@dataclass(frozen=True, kw_only=True)
class LabelledColumns:
    """How a table of labelled examples is read; ``None`` is "guess by the usual names".

    Attributes:
      user: column of ids of users.
      label: column of labels.
      time: column of times; None reads none.
      text: columns that are text, whatever they look like.
      only: the names of the columns that are read beside the user's; None is all.
      on_error: "raise" refuses a table with bad rows, "skip" leaves them out and counts them.
      by_name: of a table that was looked at, the columns by their names in a task, without the user's and the time's.

    Raises:
      ConfigurationError: two fields contradict each other.
    """

    user: str | None = None
    label: str | None = None
    time: str | None = None
    text: Sequence[str] = ()
    only: Sequence[str] | None = None
    on_error: OnError = "raise"
    by_name: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks what can be checked without a table."""
        if self.on_error not in ("raise", "skip"):
            raise ConfigurationError(f"Expected on_error={self.on_error!r} to be 'raise' or 'skip'")
        if isinstance(self.text, str) or not all(isinstance(name, str) for name in self.text):
            raise ConfigurationError(f"Expected text={self.text!r} to be names of columns, such as text=('comment',)")
        named = [name for name in (self.user, self.label, self.time) if name is not None]
        if len(set(named)) < len(named):
            raise ConfigurationError(f"Expected user, label and time to be different columns (got {named})")

    @property
    def roles(self) -> dict[str, str]:
        """The columns by role: "user", ``TIME``, and the others by their names in a task."""
        named = {USER: self.user, TIME: self.time}
        return {**{role: name for role, name in named.items() if name is not None}, **self.by_name}

    def kind(self, role: str) -> Kind:
        """Ids of users, and times; others are text where they are declared to be, or else what they look like."""
        if role in (USER, TIME):
            return Kind.ID if role == USER else Kind.TIME
        return Kind.TEXT if self.by_name[role] in self.text else Kind.ANY

    def within(self, names: Sequence[str], *, where: str) -> LabelledColumns:
        """The same with every column found among ``names``, the columns of the table ``where``.

        Raises:
          DataError: a column is missing, has no usual name or no name that a task could give it, or there are several.
        """
        user = self._named(self.user, names, where) if self.user is not None else None
        if user is None:
            free = [name for name in names if name != self.label]
            user = guessed(USER, USUAL_USERS, free, where=where)
        if user is None:
            raise unrecognised(USER, names, where=where)
        time = self._timed([name for name in names if name not in (user, self.label)], names, where)
        others: dict[str, str] = {}
        for name in names:
            if name in (user, time):
                continue
            short = column_name(name)
            if self.only is not None and short not in self.only:
                continue
            if short in others or short == USER or not short:
                of = f"as {others[short]!r} is" if short in others else "the name of ids" if short else "no name"
                raise DataError(
                    f"{where}: column {name!r} would be {short!r} in a task, {of}; rename it, in letters a-z, digits "
                    "and _"
                )
            others[short] = name
        label = self._label(list(others.values()), names, where)
        for role in self.only or ():
            if role not in others:
                raise no_column(role, "task", names, where=where)
        text = [self._named(name, names, where) for name in self.text]
        refuse_doubled(names, (user, time, *others.values()), where=where)
        return replace(self, user=user, label=label, time=time, text=tuple(text), by_name=others)

    def _timed(self, free: Sequence[str], names: Sequence[str], where: str) -> str | None:
        if self.time is None:
            return None
        read = () if self.only is None else self.only
        if self.time == USUAL_TIME:
            time = guessed("time", USUAL_TIMES, [name for name in free if column_name(name) not in read], where=where)
            if time is None:
                raise unrecognised("time", names, where=where)
            return time
        time = self._named(self.time, names, where)
        if column_name(time) in read:
            raise DataError(f"{where}: column {time!r} is read by the task and cannot be the time; add a copy of it")
        return time

    def _label(self, others: Sequence[str], names: Sequence[str], where: str) -> str:
        label = None if self.label is None else self._named(self.label, names, where)
        if label is None:
            label = guessed("label", USUAL_LABELS, others, where=where)
        if label is None:
            raise unrecognised("label", names, where=where)
        if label not in others:
            raise DataError(f"{where}: column {label!r} is the user's or the time's, and cannot be the label")
        return label

    def _named(self, name: str, names: Sequence[str], where: str) -> str:
        """The column that is called so in the table or in a task."""
        if name in names:
            return name
        for column in names:
            if column_name(column) == name:
                return column
        roles = {self.user: "user", self.label: "label", self.time: "time"}
        raise no_column(name, roles.get(name, "text"), names, where=where)

    @property
    def label_name(self) -> str:
        """The label's name in a task, of columns that were found."""
        return next(name for name, column in self.by_name.items() if column == self.label)


def labelled_options(options: Mapping[str, object]) -> LabelledColumns:
    """The settings of a table. Raises ConfigurationError for an option that a table of examples does not have."""
    _validate.known_keys(
        options, ("user", "label", "time", "text", "on_error"), where="the options of labelled examples"
    )
    return LabelledColumns(**options)  # type: ignore[arg-type]
