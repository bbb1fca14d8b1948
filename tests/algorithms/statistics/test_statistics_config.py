"""Questions as a developer writes them, and the definitions that nobody may send."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import odp
from odp.algorithms.registry import algorithm_for
from odp.algorithms.statistics.terms import Terms
from odp.crypto import SigningKey
from odp.errors import ConfigurationError, PrivacyError
from odp.signed.task import open_task, sign_task
from odp.tasks.file import parse_task, render_task
from odp.v1 import common_pb2


def task(**changes: Any) -> odp.Statistics:
    given: dict[str, Any] = {
        "name": "asked",
        "queries": {"hours": odp.Histogram(bins=24), "minutes": odp.Mean(low=0, high=60)},
        "privacy": odp.UserLevelDP(epsilon=1, delta=1e-6),
        "cohort": odp.Cohort(minimum=20, goal=100),
    }
    return odp.Statistics(**{**given, **changes})


def test_a_definition_survives_its_signature() -> None:
    definition = open_task(sign_task(task().definition(), SigningKey.generate()))
    assert [part.name for part in Terms.of(definition).parts] == ["hours", "minutes"]
    assert algorithm_for(definition).local_tables == {"ratings"}
    assert algorithm_for(definition).tables == (("statistics", 26, 1, False),)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: odp.Histogram(), "bins, or bins with low and high, or edges"),
        (lambda: odp.Histogram(bins=3, edges=(0, 1, 2, 3)), "bins, or bins with low and high, or edges"),
        (lambda: odp.Histogram(edges=(0, 1), low=0, high=1), "bins, or bins with low and high, or edges"),
        (lambda: odp.Histogram(bins=3, low=0), "both low=0 and high=None"),
        (lambda: odp.Histogram(bins=3, low=2, high=2), "low=2 to be below high=2"),
        (lambda: odp.Histogram(edges=(0, 2, 2)), "ascending"),
        (lambda: odp.Histogram(edges=(0, math.nan)), r"edges\[1\]=nan"),
        (lambda: odp.Histogram(bins=0), "bins=0"),
        (lambda: odp.Histogram(bins=3, counts="user"), "did you mean 'users'"),
        (lambda: odp.Histogram(bins=3, counts="records"), "Expected clip"),
        (lambda: odp.Histogram(bins=3, clip=0), "clip=0"),
        (lambda: odp.Histogram(bins=3, share=-1), "share=-1"),
        (lambda: odp.Histogram(bin=3), "did you mean 'bins'"),  # type: ignore[call-arg]
        (lambda: odp.Mean(low=1, high=1), "low=1 to be below high=1"),
        (lambda: odp.Mean(low=0, high=math.inf), "mean_high=inf"),
        (lambda: odp.Mean(low=0, high=1, max_records=0), "max_records=0"),
        (lambda: task(queries={}), "Expected queries"),
        (lambda: task(queries={"Hours": odp.Histogram(bins=3)}), "name='Hours'"),
        (lambda: task(queries={"hours": 3}), "query 'hours' to be an odp.Histogram or odp.Mean"),
        (lambda: task(privacy=odp.UserLevelDP(epsilon=1, delta=1e-6, max_items_per_user=5)), "max_items_per_user=5"),
        (lambda: task(privacy=odp.UserLevelDP(epsilon=math.inf, delta=1e-6)), "noise=False"),
        (lambda: task(queries={"items": odp.Histogram(bins=10**6)}, cohort=odp.Cohort(goal=900_000)), "fit 32 bits"),
    ],
)
def test_a_question_that_makes_no_sense_is_one_line(make: Callable[[], object], message: str) -> None:
    with pytest.raises((ConfigurationError, PrivacyError), match=message):
        make()


def test_a_delta_that_is_no_guarantee_is_refused() -> None:
    with pytest.raises(PrivacyError, match="below 1/users"):
        task(privacy=odp.UserLevelDP(epsilon=1, delta=1e-2))


def _share(definition: common_pb2.TaskDefinition) -> None:
    definition.statistics.queries[0].share = 0.9


def _twice(definition: common_pb2.TaskDefinition) -> None:
    definition.statistics.queries[1].name = "hours"


def _edges(definition: common_pb2.TaskDefinition) -> None:
    definition.statistics.queries[0].column = 2
    definition.statistics.queries[0].histogram.edges = np.arange(24.0).tobytes()


def _nan_edges(definition: common_pb2.TaskDefinition) -> None:
    definition.statistics.queries[0].column = 2
    definition.statistics.queries[0].histogram.edges = np.full(25, math.nan).tobytes()


def _sampled(definition: common_pb2.TaskDefinition) -> None:
    definition.cohort.enclave_poisson.CopyFrom(
        common_pb2.EnclavePoisson(probability=0.5, most_contributions=200, cap=150)
    )


def _kind(definition: common_pb2.TaskDefinition) -> None:
    definition.statistics.queries[0].ClearField("histogram")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_share, "sum to 1"),
        (_twice, "distinct names"),
        (_edges, "bins \\+ 1 edges"),
        (_nan_edges, "finite and ascending"),
        (_kind, "to be a histogram or a mean"),
        (lambda d: d.statistics.queries[0].histogram.__setattr__("clip", math.nan), "clip"),
        (lambda d: d.statistics.queries[0].histogram.__setattr__("counting", 0), "counting"),
        (lambda d: d.statistics.queries[0].histogram.__setattr__("bins", 2**31), "bins="),
        (lambda d: d.statistics.queries[0].__setattr__("column", 0), "column"),
        (lambda d: d.statistics.queries[0].__setattr__("share", 0.0), "share=0.0"),
        (lambda d: d.statistics.queries[0].__setattr__("table", "../x"), "table="),
        (lambda d: d.statistics.queries[1].__setattr__("column", 1), "to be value"),
        (lambda d: d.statistics.queries[1].mean.__setattr__("max_records", 0), "max_records=0"),
        (lambda d: d.statistics.queries[1].mean.__setattr__("high", -1.0), "below high"),
        (lambda d: d.statistics.dense.__setattr__("noise_std", 0.0), "noise_std=0.0"),
        (lambda d: d.statistics.dense.__setattr__("noise_std", 1e-6), "at least 64 steps"),
        (lambda d: d.statistics.dense.__setattr__("clip", math.inf), "clip=inf"),
        (lambda d: d.statistics.dense.__setattr__("grid_bits", 0), "grid_bits=0"),
        (lambda d: d.statistics.dense.__setattr__("grid_bits", 21), "grid_bits=21"),
        (lambda d: d.statistics.dense.__setattr__("maximum", 2**27), "fit 32 bits"),
        (lambda d: d.statistics.ClearField("queries"), "1 to 64 queries"),
        (lambda d: d.model.__setattr__("items", 3), "no model"),
        (lambda d: d.data.__setattr__("table", "ratings"), "no local data"),
        (lambda d: d.privacy.__setattr__("max_items_per_user", 3), "max_items_per_user to be 0"),
        (lambda d: d.privacy.__setattr__("epsilon", math.inf), "epsilon=inf"),
        (_sampled, "no sampling"),
    ],
)
def test_a_definition_with_one_wrong_field_is_not_signed(
    edit: Callable[[common_pb2.TaskDefinition], None], message: str
) -> None:
    definition = task().definition()
    edit(definition)
    with pytest.raises(ConfigurationError, match=message):
        sign_task(definition, SigningKey.generate())


def test_sampling_is_refused_where_it_is_written() -> None:
    cohort = odp.Cohort(minimum=10, sampling="enclave_poisson", sampling_probability=0.5, most_contributions=100)
    with pytest.raises(ConfigurationError, match=r"no sampling='enclave_poisson' with odp\.Statistics"):
        dataclasses.replace(task(), cohort=cohort)


FILE = """
name = "listening"

[queries.hours]
bins = 24
clip = 2.5
share = 2

[queries.session]
kind = "histogram"
edges = [0, 5, 60]
counts = "shares"

[queries.minutes]
kind = "mean"
low = 0
high = 60
max_records = 8

[privacy]
epsilon = 1
delta = 1e-6
"""


def test_a_task_file_is_the_python_task_and_survives_being_written() -> None:
    parsed = parse_task(FILE)
    assert isinstance(parsed, odp.Statistics)
    assert parsed.queries == {
        "hours": odp.Histogram(bins=24, clip=2.5, share=2.0),
        "session": odp.Histogram(edges=(0, 5, 60), counts="shares"),
        "minutes": odp.Mean(low=0, high=60, max_records=8),
    }
    again = parse_task(render_task(parsed))
    assert again == parsed
    assert again.definition() == parsed.definition()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("bins = 24", "bin = 24", r"task.toml:5 \[queries.hours\]; did you mean 'bins'"),
        ('kind = "mean"', 'kind = "median"', r"task.toml:15: Unknown kind 'median' in \[queries.minutes\]"),
        ("high = 60\n", "", r"task.toml:14: \[queries.minutes\] lacks 'high'"),
        ("clip = 2.5", "clip = -1", r"task.toml:6: Expected clip=-1"),
        ("[privacy]", "[model]\nitems = 3\n[privacy]", "Unknown key 'model'"),
        ("epsilon = 1\n", "epsilon = 1\nmax_items_per_user = 3\n", r"task.toml:\d+: Expected no max_items_per_user=3"),
        ("[queries.hours]\nbins = 24\nclip = 2.5\nshare = 2\n", "[queries]\nhours = 3\n", "to be a table of keys"),
        ("[privacy]\nepsilon = 1\ndelta = 1e-6\n", "", "missing 'privacy'"),
    ],
)
def test_a_wrong_line_of_a_task_file_is_named(old: str, new: str, message: str) -> None:
    assert old in FILE
    with pytest.raises((ConfigurationError, PrivacyError), match=message):
        parse_task(FILE.replace(old, new))
