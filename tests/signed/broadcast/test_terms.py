from __future__ import annotations

import re

import pytest

import odp
from odp.crypto.signing import SigningKey
from odp.errors import ConfigurationError
from odp.signed.broadcast.terms import method_of
from odp.signed.task import open_task, sign_task
from odp.tasks.file import parse_task, render_task
from odp.v1 import broadcast_pb2, common_pb2

KEY = "123456789abcdef0" * 3 + "123456789abcde70"


def task(broadcast: odp.Broadcast | None = None, *, items: int = 2000, slices: int | None = None) -> odp.Task:
    return odp.Task(
        name="films",
        model=odp.MatrixFactorization(items=items, rank=2),
        data=odp.RatingsData(low=1, high=5),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-6, max_items_per_user=10),
        training=odp.DPAM(slices_per_device=slices),
        broadcast=broadcast if broadcast is not None else odp.Broadcast(),
    )


@pytest.mark.parametrize(
    ("broadcast", "method"),
    [
        (odp.Broadcast(), "enclave"),
        (odp.Broadcast(method="all"), "all"),
        (odp.Broadcast(method="pir", helper_key=KEY), "pir"),
        (odp.Broadcast(method="auto"), "enclave"),
        (odp.Broadcast(method="auto", helper_key=KEY), "enclave"),
    ],
)
def test_the_signed_task_says_how_devices_ask(broadcast: odp.Broadcast, method: str) -> None:
    definition = open_task(sign_task(task(broadcast).definition(), SigningKey.generate()))
    assert method_of(definition) == method
    assert definition.broadcast.helper_key.hex() == (KEY if method == "pir" else "")
    assert definition.HasField("broadcast") == (method != "enclave"), "a task of before has the same bytes"


def test_a_tiny_table_is_sent_whole() -> None:
    assert method_of(task(odp.Broadcast(method="auto"), items=10).definition()) == "all"


def test_a_task_file_holds_the_method_and_reads_back() -> None:
    given = task(odp.Broadcast(method="pir", helper_key=KEY))
    text = render_task(given)
    assert f'[broadcast]\nmethod = "pir"\nhelper_key = "{KEY}"' in text
    assert parse_task(text) == given


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"method": "pirate"}, "method='pirate'.*pir"),
        ({"method": "pir"}, "Expected helper_key with method='pir'"),
        ({"method": "pir", "helper_key": "AB" * 32}, "to be 64 hex digits"),
        ({"method": "pir", "helper_key": KEY[:-1]}, "to be 64 hex digits"),
        ({"method": "all", "helper_key": KEY}, "uses no helper"),
        ({"method": "pir", "helper_key": "ab" * 32}, "canonical encoding"),
        ({"method": "pir", "helper_key": "00" * 32}, "low order"),
    ],
)
def test_terms_that_cannot_be_are_refused(given: dict[str, str], line: str) -> None:
    with pytest.raises(ConfigurationError, match=line):
        odp.Broadcast(**given)


def test_a_task_file_names_the_line_of_a_wrong_method() -> None:
    text = render_task(task()).replace('method = "enclave"', 'method = "enclav"')
    number = text[: text.index('"enclav"')].count("\n") + 1
    with pytest.raises(ConfigurationError, match=re.escape(f"task.toml:{number}")):
        parse_task(text)


def test_more_rows_than_two_parties_answer_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="slices_per_device=600 to be at most 512"):
        sign_task(
            task(odp.Broadcast(method="pir", helper_key=KEY), items=1000, slices=600).definition(),
            SigningKey.generate(),
        )


def changed(**fields: object) -> common_pb2.TaskDefinition:
    definition = task().definition()
    definition.broadcast.CopyFrom(broadcast_pb2.BroadcastTerms(**fields))
    return definition


@pytest.mark.parametrize(
    ("definition", "line"),
    [
        (changed(method=7), "broadcast.method=7"),
        (changed(method=2), "broadcast.helper_key to be 32 bytes, got 0"),
        (changed(method=1, helper_key=bytes(32)), "no broadcast.helper_key"),
    ],
    ids=["unknown", "no key", "a key too many"],
)
def test_a_definition_that_no_device_could_follow_is_not_signed(
    definition: common_pb2.TaskDefinition, line: str
) -> None:
    with pytest.raises(ConfigurationError, match=line):
        sign_task(definition, SigningKey.generate())


def test_statistics_have_no_broadcast() -> None:
    statistics = odp.Statistics(
        name="hours", queries={"hours": odp.Histogram(bins=3)}, privacy=odp.UserLevelDP(epsilon=1, delta=1e-6)
    )
    definition = statistics.definition()
    definition.broadcast.method = broadcast_pb2.BroadcastTerms.METHOD_ALL
    with pytest.raises(ConfigurationError, match="fetch no rows"):
        sign_task(definition, SigningKey.generate())
