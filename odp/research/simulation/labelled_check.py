"""`odp data check` of labelled examples: what a table holds, the task that fits it, and the least ε that it takes.

What is proposed is guessed from the data, and public once the task is:

==================  ===================================================================================================
column              proposal
==================  ===================================================================================================
numbers             the smallest of some round ranges that holds 99 in 100 of them; others are clamped
words               a category of those that at least ten users have, where there are at most 50
other text          none: a vocabulary has to come from public text
label               classes that at least ten users have, where it holds words or at most 20 whole numbers; else a
                    number in such a range
==================  ===================================================================================================
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from odp.algorithms.draw_and_discard.config import DrawAndDiscard
from odp.algorithms.draw_and_discard.simulation import EncodedUsers
from odp.algorithms.fedavg.config import DPFedAvg
from odp.algorithms.federated.reading import UsableTable
from odp.algorithms.federated.terms import Terms
from odp.algorithms.seam import LocalTable
from odp.datasets.labelled_tables import LabelledColumns, LabelledTable
from odp.errors import ConfigurationError, DataError, PrivacyError
from odp.identity import normal
from odp.models.class_names import is_missing, label_counts_in_words, proposed_classes
from odp.models.example_columns import ExampleColumns
from odp.models.example_tables import columns_of, read_for_task
from odp.models.examples import MOST_FEATURES, Examples
from odp.models.features import MOST_CHARACTERS, Category, Feature, Tensor
from odp.models.glm.shape import Glm
from odp.models.left_out import LeftOut
from odp.privacy.accounting import mu_for
from odp.protocol.terms import Cohort, UserLevelDP
from odp.research.simulation.data_check import EPSILONS, FEW_USERS, Spread, usual_delta
from odp.tasks.task import Task
from odp.tasks.text import task_text

_ROUND = (*(float(f"{first}e{power}") for power in range(-6, 9) for first in (1, 2, 5)), 1e9)
_HELD = 0.99
_MOST_CATEGORIES, _MOST_CLASSES, _MOST_NUMBERED = 50, 100, 20
_FEWEST_USERS = 10
_ROUNDS = 20
_MOST_EXAMPLES = (1000, 300, 100, 30, 10)
_NOISE_SHARE = 0.05
"""Noise of all rounds over the way that clipped updates can move the parameters: up to here, a model of words lost two
points of accuracy at most (100 to 600 users, 10 and 20 rounds)."""

GUESSED = "guessed from the data, and public once the task is: put public ranges, categories and classes in their place"


@dataclass(frozen=True)
class Proposal:
    """A column of the table as a feature of a task.

    Attributes:
      feature: None where none is proposed.
      description: what it is, or why it is none; counts only.
    """

    feature: Feature | None
    description: str


@dataclass(frozen=True, eq=False, repr=False)
class LabelledCheck:
    """Labelled examples, looked at by their owner: counts of the data themselves, so no private release.

    Attributes:
      columns: the examples.
      table: how they were read.
      activity: examples of each user.
      proposals: by the name of each column beside the label.
      label: of the label: its labels and what the task makes of them.
      missing: rows without a value, by column.
      delta: for this number of users.
      epsilon: the least of ``EPSILONS`` at which noise leaves the signal; None where none does.
      task: that fits, at ``epsilon`` or else at the largest of ``EPSILONS``; None where there is none.
      advice: a line for each thing to know before a run.
    """

    columns: ExampleColumns
    table: LabelledTable
    activity: Spread
    proposals: Mapping[str, Proposal]
    label: str
    missing: Mapping[str, int]
    delta: float
    epsilon: float | None
    task: Task | None
    advice: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        bad = self.table.bad
        return {
            "name": self.columns.name,
            "users": self.columns.n_users,
            "examples": len(self.columns.rows),
            "rows": self.table.rows,
            "columns": {"user": self.table.columns.user, "label": self.table.columns.label},
            "label": self.label,
            "features": {name: proposal.description for name, proposal in self.proposals.items() if proposal.feature},
            "no_features": {
                name: proposal.description for name, proposal in self.proposals.items() if not proposal.feature
            },
            "missing": dict(self.missing),
            "examples_per_user": vars(self.activity),
            "bad_rows": bad.total,
            "bad": [{"why": why, "rows": count, "first": list(places)} for why, count, places in bad.reasons],
            "positions_are": bad.counted,
            "delta": self.delta,
            "epsilon": self.epsilon,
            "advice": list(self.advice),
        }


def check_labelled(table: LabelledTable) -> LabelledCheck:
    """Looks at labelled examples; reads all of them, without noise."""
    columns = columns_of(table)
    label = table.columns.label_name
    labels = columns.columns[label]
    if labels.dtype.kind == "U":
        labels = np.array([normal(text) for text in labels.tolist()])
    proposals = {name: _proposal(columns.columns[name], table.users) for name in table.columns.by_name if name != label}
    advice = list(columns.notes)
    features = {name: proposal.feature for name, proposal in proposals.items() if proposal.feature is not None}
    if len(features) > MOST_FEATURES:
        advice.append(f"a task has at most {MOST_FEATURES} features: the first ones of {len(features)} are proposed")
        features = dict(list(features.items())[:MOST_FEATURES])
    delta = usual_delta(columns.n_users)
    model, data, label_text = _model(features, labels, label, table.users)
    epsilon, task = None, None
    if model is not None and data is not None:
        epsilon, task = _fitting(columns, model, data, delta, advice)
    if columns.n_users < FEW_USERS:
        advice.append(
            f"{columns.n_users} users are few: noise hides each one, and below {FEW_USERS} a model learns little"
        )
    if task is not None:
        advice.append(GUESSED)
    missing = {name: int(is_missing(column).sum()) for name, column in columns.columns.items()}
    return LabelledCheck(
        columns=columns,
        table=table,
        activity=Spread.of(np.diff(columns.offsets)),
        proposals=proposals,
        label=label_text
        if data is not None and data.label_range is not None
        else f"{label_counts_in_words(labels)}; {label_text}",
        missing={name: count for name, count in missing.items() if count},
        delta=delta,
        epsilon=epsilon,
        task=task,
        advice=tuple(advice),
    )


def proposed_text(check: LabelledCheck, *, name: str, comment: str) -> str:
    """The task file of a check that has a task, with what was guessed in comments.

    Raises:
      DataError: there is no task.
    """
    if check.task is None:
        reasons = "; ".join([f"label {check.table.columns.label!r}: {check.label}", *check.advice])
        raise DataError(f"no task fits {check.columns.name!r}; {reasons}")
    remarks = {f"data.features.{name}": proposal.description for name, proposal in check.proposals.items()}
    remarks |= dict.fromkeys(("data.classes", "data.label_low"), "guessed from the labels")
    task = dataclasses.replace(check.task, name=name, population="")
    return task_text(task, comment=f"{comment}\n{GUESSED.capitalize()}.", remarks=remarks)


@dataclass(frozen=True)
class UsableRows:
    """How many of a table's examples a task can use.

    Attributes:
      rows: of all users, and why others are left out.
      users: with at least one example that is used.
      all_users: in the table.
      clamped: rows with a number beyond its declared range, which is read as the end of the range, by column.
    """

    rows: LeftOut
    users: int
    all_users: int
    clamped: Mapping[str, int] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """For people."""
        usage = f"{self.rows.used:,} of {self.rows.total:,} rows, of {self.users:,} of {self.all_users:,} users"
        return [usage, *(f"{count:,} {why}" for why, count in self.rows.reasons.items())]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            **self.rows.to_json(), "users": self.users, "all_users": self.all_users, "clamped": dict(self.clamped)
        }  # fmt: skip


def reads_examples(task: object) -> TypeGuard[Task | DrawAndDiscard]:
    """Whether a task trains a model of labelled examples."""
    return isinstance(task.data if isinstance(task, Task) else task, (DrawAndDiscard, Examples))


def read_for(task: Task | DrawAndDiscard, source: object, columns: LabelledColumns) -> LabelledTable:
    """The columns of a table that a task reads; bad rows are left out.

    Raises:
      ConfigurationError: the task is not of labelled examples.
      DataError: as ``odp.data.load_examples``.
    """
    reads = task.terms().features.local_table(most_rows=1) if isinstance(task, DrawAndDiscard) else task.data
    if not isinstance(reads, (LocalTable, Examples)):
        raise ConfigurationError("Expected a task of labelled examples")
    return read_for_task(
        source, dataclasses.replace(columns, on_error="skip"), features=reads.features, label=reads.label,
        classes=tuple(map(str, reads.classes)),
    )  # fmt: skip


def usable_rows(task: Task | DrawAndDiscard, columns: ExampleColumns) -> UsableRows:
    """What a training uses of labelled examples, as a device reads them.

    Raises:
      ConfigurationError: the task is not of labelled examples.
      DataError: a column is missing or of another kind, a label is none that the model takes, or no example can be
        used.
    """
    if isinstance(task, DrawAndDiscard):
        encoded = EncodedUsers.of(task.terms(), columns)
        assert encoded.left_out is not None
        return UsableRows(encoded.left_out, int((np.diff(encoded.offsets) > 0).sum()), columns.n_users)
    if not isinstance(task.data, Examples):
        raise ConfigurationError("Expected a task of labelled examples")
    terms = Terms.of(task.definition())
    users = columns.users_examples(task.data)
    table = UsableTable.of(terms.model, terms.examples, users)
    most = terms.local.most_rows
    rows = table.left_out(users, what="examples", most_rows=most)
    used = np.diff(table.usable(users, most_rows=most).offsets) > 0
    return UsableRows(rows, int(used.sum()), users.n_users, _clamped(task.data, terms, columns))


def _clamped(data: Examples, terms: Terms, columns: ExampleColumns) -> dict[str, int]:
    ranges = {
        name: (feature.low, feature.high) for name, feature in data.features.items() if isinstance(feature, Tensor)
    }
    if terms.model.classes_range is None:
        ranges[data.label] = terms.examples.label_range
    counts = {}
    for name, (low, high) in ranges.items():
        values = np.asarray(columns.columns[name])
        outside = np.any(((values < low) | (values > high)).reshape(len(values), -1), axis=1)
        counts[name] = int(outside[columns.rows].sum())
    return {name: count for name, count in counts.items() if count}


def _proposal(column: npt.NDArray[Any], users: npt.NDArray[np.int64]) -> Proposal:
    if column.dtype.kind != "U":
        # A number that float32 does not hold is infinite, and no missing one.
        numbers = column[~np.isnan(column)] if column.dtype.kind == "f" else column
        return _of_numbers(numbers.astype(np.float64))
    texts = np.array([normal(text) for text in column.tolist()])
    held = texts != ""
    common, rare = _common(texts[held], users[held])
    if len(common) > _MOST_CATEGORIES or rare > len(common) + 10 or any(len(text) > MOST_CHARACTERS for text in common):
        return Proposal(
            None, "free text: declare an odp.Text with a vocabulary of public text, or an odp.Category of public names"
        )
    if len(common) < 2:
        return Proposal(None, f"fewer than two words that {_FEWEST_USERS} users have")
    left = f"; {rare:,} others, of fewer than {_FEWEST_USERS} users each, are left out" if rare else ""
    return Proposal(Category(tuple(map(str, common))), f"{len(common)} categories, guessed: {_listed(common)}{left}")


def _common(values: npt.NDArray[Any], users: npt.NDArray[np.int64]) -> tuple[npt.NDArray[Any], int]:
    """(values that enough users have, ascending; how many others there are): a task is public, and names nobody's."""
    distinct, places = np.unique(values, return_inverse=True)
    having = np.unique(np.stack((places, users)), axis=1)[0]
    enough = np.bincount(having, minlength=len(distinct)) >= _FEWEST_USERS
    return distinct[enough], int((~enough).sum())


def _listed(names: npt.NDArray[Any]) -> str:
    return ", ".join(map(str, names[:8])) + (", .." if len(names) > 8 else "")


def _of_numbers(numbers: npt.NDArray[np.float64]) -> Proposal:
    if not len(numbers) or (numbers.min() == numbers.max() and np.isfinite(numbers[0])):
        return Proposal(None, "one number in all rows" if len(numbers) else "no numbers")
    if (bounds := _range(numbers)) is None:
        return Proposal(None, f"numbers beyond {_ROUND[-1]:g}, such as dates or ids")
    low, high = bounds
    outside = int(((numbers < low) | (numbers > high)).sum())
    clamped = f"; {outside:,} rows are outside, and are clamped" if outside else ""
    feature = Tensor((), low, high, 1.0 / max(abs(low), abs(high)))
    return Proposal(feature, f"numbers from {low:g} to {high:g}, guessed{clamped}")


def _range(numbers: npt.NDArray[np.float64]) -> tuple[float, float] | None:
    """The smallest round range that holds nearly all numbers: constants, and no extremes of single people."""
    sign = -1.0 if (numbers < 0).mean() > 1.0 - _HELD else 0.0
    # Of few numbers that are not zero, a range of nearly all would hold none.
    least = _ROUND[0] if (numbers != 0).mean() >= 0.5 else 1.0
    for size in (size for size in _ROUND if size >= least):
        low = sign * size
        if ((numbers >= low) & (numbers <= size)).mean() >= _HELD:
            return low, size
    return None


def _model(
    features: Mapping[str, Feature], labels: npt.NDArray[Any], label: str, users: npt.NDArray[np.int64]
) -> tuple[Glm | None, Examples | None, str]:
    """(model, data, what the label is), or (None, None, why there is no task)."""
    if not features:
        return None, None, "no column can be a feature"
    inputs = sum(feature.encoded_size for feature in features.values())
    held = ~is_missing(labels)
    present, words = labels[held], labels.dtype.kind == "U"
    whole = words or not (present.astype(np.float64) % 1).any()
    if len(np.unique(present)) < 2:
        return None, None, "one label in all rows, and nothing to learn" if held.any() else "no row has a label"
    if words or (whole and len(np.unique(present)) <= _MOST_NUMBERED):
        common, rare = _common(present, users[held])
        names = proposed_classes(common, count=len(common))
        if not 2 <= len(names) <= _MOST_CLASSES or any(len(name) > MOST_CHARACTERS for name in names):
            return (
                None,
                None,
                (
                    f"no classes: expected 2 to {_MOST_CLASSES} short labels, each of which at least {_FEWEST_USERS} "
                    "users have"
                ),
            )
        numbered = not rare and names == tuple(map(str, range(len(names))))
        data = Examples(features, label=label, classes=() if numbered else names)
        model = Glm("logistic", inputs) if len(names) == 2 else Glm("multinomial", inputs, len(names))
        others = (
            f"; {rare:,} other labels, of fewer than {_FEWEST_USERS} users each, are no class: name them in classes if "
            "they are public, or take their rows out, since a simulation refuses them"
        )
        return model, data, f"{len(names)} classes, guessed{others if rare else ''}"
    if (bounds := _range(present.astype(np.float64))) is None:
        return None, None, f"labels beyond {_ROUND[-1]:g}"
    low, high = bounds
    return (
        Glm("linear", inputs), Examples(features, label=label, label_low=low, label_high=high),
        f"numbers from {low:g} to {high:g}, guessed",
    )  # fmt: skip


def _fitting(
    columns: ExampleColumns, model: Glm, data: Examples, delta: float, advice: list[str]
) -> tuple[float | None, Task | None]:
    users = columns.n_users
    task = Task(
        name="labelled",
        model=model,
        data=data,
        privacy=UserLevelDP(epsilon=EPSILONS[-1], delta=delta),
        training=DPFedAvg(rounds=_ROUNDS, rate=0.5, clip=1.0),
        cohort=Cohort(minimum=min(FEW_USERS, users), goal=users),
    )
    epsilon = next(
        (candidate for candidate in EPSILONS if _noise_share(model, users, candidate, delta) <= _NOISE_SHARE), None
    )
    if epsilon is None:
        share = _noise_share(model, users, EPSILONS[-1], delta)
        advice.append(
            f"at ε = {EPSILONS[-1]:g} the noise is {share:.0%} of the way that {users:,} users can move "
            f"{model.size:,} parameters; {math.ceil(users * share / _NOISE_SHARE):,} users, or fewer features, would do"
        )
    else:
        task = dataclasses.replace(task, privacy=UserLevelDP(epsilon=epsilon, delta=delta))
    refused: Exception | None = None
    for most in _MOST_EXAMPLES:
        fitted = dataclasses.replace(task, training=DPFedAvg(rounds=_ROUNDS, rate=0.5, clip=1.0, most_examples=most))
        try:
            fitted.definition()
        except (ConfigurationError, PrivacyError) as error:
            refused = error
        else:
            return epsilon, fitted
    advice.append(f"no task fits: {refused}")
    return None, None


def _noise_share(model: Glm, users: int, epsilon: float, delta: float) -> float:
    """Noise on the sum of all rounds' means over the longest way of the parameters; the clip and rounds cancel."""
    try:
        mu = mu_for(epsilon=epsilon, delta=delta, coordinates=model.size * _ROUNDS)
    except PrivacyError as error:
        raise DataError(f"{users:,} users: {error}") from None
    return math.sqrt(model.size) / (mu * users)
