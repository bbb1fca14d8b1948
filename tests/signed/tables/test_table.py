"""Public tables: what is signed, and that nobody takes one for a task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from odp.algorithms.registry import algorithm_for
from odp.crypto import domains
from odp.crypto.signing import SignatureError, SigningKey
from odp.errors import ConfigurationError
from odp.protocol.wire.encoding import rounded
from odp.signed.tables.table import Table, open_published, open_table, open_version, sign_table, sign_version
from odp.signed.task import open_task, sign_task
from odp.v1 import common_pb2

KEY = SigningKey.from_bytes(bytes(32))
ROWS = np.random.default_rng(1).normal(size=(30, 3))


def resigned(change: Callable[[common_pb2.TaskDefinition], object]) -> common_pb2.SignedTask:
    """The definition of a table, changed and signed by its developer."""
    definition = common_pb2.TaskDefinition.FromString(sign_table("genres", 8, KEY).definition)
    change(definition)
    data = definition.SerializeToString(deterministic=True)
    return common_pb2.SignedTask(definition=data, signature=KEY.sign(domains.TASK, data))


def test_a_signed_version_opens_to_what_was_signed() -> None:
    table = Table("genres", ROWS, "int8", rows_per_request=8)
    signed = sign_table("genres", 8, KEY)
    opened = open_version(signed, sign_version(signed, 3, table.signed_manifest_entry(), KEY), name="genres")
    assert (opened.version, opened.rows_per_request, opened.developer_key) == (3, 8, KEY.public)
    assert (opened.entry.rows, opened.entry.width) == (30, 3)


@pytest.mark.parametrize("encoding", ["float32", "float16", "int8"])
def test_a_tables_rows_are_those_that_devices_get(encoding: Any) -> None:
    table = Table("genres", ROWS, encoding)
    np.testing.assert_array_equal(table.rows, rounded(ROWS, encoding))
    assert Table("genres", table.rows, encoding).content == table.content


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": "Genres!"},
        {"rows": np.zeros(3)},
        {"rows": np.zeros((0, 3))},
        {"rows": np.zeros((3, 0))},
        {"rows": np.array([["a"]])},
        {"rows": np.array([[np.nan]])},
        {"rows": np.array([[1e300]])},
        {"encoding": "float8"},
        {"rows_per_request": 0},
        {"rows_per_request": 4097},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_what_is_out_of_range_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Table(**{"name": "genres", "rows": ROWS, **arguments})


def test_nobody_who_trains_or_charges_takes_a_table_for_a_task() -> None:
    signed = sign_table("genres", 8, KEY)
    with pytest.raises(ConfigurationError):
        open_task(signed)
    definition = open_table(signed)
    with pytest.raises(ConfigurationError, match="training='table'"):
        algorithm_for(definition)
    with pytest.raises(ConfigurationError):
        sign_task(definition, KEY)


@pytest.mark.parametrize(
    "change",
    [
        lambda definition: setattr(definition.privacy, "epsilon", 1.0),
        lambda definition: setattr(definition.cohort, "minimum", 100),
        lambda definition: setattr(definition, "population", "people"),
        lambda definition: definition.dpam.SetInParent(),
        lambda definition: setattr(definition.table, "rows_per_request", 0),
        lambda definition: setattr(definition, "name", ""),
        lambda definition: definition.ClearField("developer_key"),
    ],
    ids=["privacy", "cohort", "population", "another training", "no rows", "no name", "no key"],
)
def test_a_definition_that_is_more_or_less_than_a_tables_is_refused(
    change: Callable[[common_pb2.TaskDefinition], object],
) -> None:
    with pytest.raises(ConfigurationError):
        open_table(resigned(change))


def test_another_signature_is_refused() -> None:
    signed = sign_table("genres", 8, KEY)
    signed.signature = SigningKey.generate().sign(domains.TASK, signed.definition)
    for opened in (open_table, open_published):
        with pytest.raises(SignatureError):
            opened(signed)
    for definition in (b"", b"\xff", bytes(70_000)):
        with pytest.raises(ConfigurationError):
            open_published(common_pb2.SignedTask(definition=definition))


@pytest.mark.parametrize("change", ["name", "keyed", "two", "encoding"])
def test_a_manifest_that_is_not_the_one_table_is_refused(change: str) -> None:
    signed = sign_table("genres", 8, KEY)
    entry = Table("genres", ROWS).signed_manifest_entry()
    manifest = common_pb2.ModelManifest.FromString(sign_version(signed, 0, entry, KEY).manifest)
    if change == "name":
        manifest.tables[0].name = "years"
    elif change == "keyed":
        manifest.tables[0].keyed = False
    elif change == "encoding":
        manifest.tables[0].encoding = 9  # type: ignore[assignment]
    else:
        manifest.tables.add(name="more", rows=1, width=1, sha256=bytes(32))
    data = manifest.SerializeToString(deterministic=True)
    with pytest.raises(ConfigurationError):
        open_version(signed, common_pb2.SignedManifest(manifest=data, signature=KEY.sign(domains.MANIFEST, data)))
