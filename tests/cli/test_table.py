from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from odp.cli import table as command
from odp.crypto.signing import SigningKey
from odp.errors import ConfigurationError
from odp.signed.tables.table import OpenedTable, Table, open_version, sign_table, sign_version

KEY = SigningKey.from_bytes(bytes(32))
ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


class Connected:
    """Stands in for a server's connection: signs what it is given."""

    def __init__(self) -> None:
        self.published: list[Table] = []

    def publish_table(self, table: Table) -> OpenedTable:
        self.published.append(table)
        return self.table(table.name)

    def table(self, name: str) -> OpenedTable:
        table = next(one for one in reversed(self.published) if one.name == name)
        definition = sign_table(name, table.rows_per_request, KEY)
        entry = table.signed_manifest_entry()
        return open_version(definition, sign_version(definition, len(self.published) - 1, entry, KEY))

    def __enter__(self) -> Connected:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> Connected:
    from odp.services import connection as client

    found = Connected()
    monkeypatch.setattr(client, "connect", lambda *_, **__: found)
    return found


def run(*arguments: str) -> Any:
    found = CliRunner().invoke(command.app, list(arguments), catch_exceptions=False)
    assert found.exit_code == 0
    return found


def test_a_file_is_published_and_shown(connected: Connected, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    options = ["--name", "genres", "--encoding", "int8", "--rows-per-request", "2"]
    run("publish", str(tmp_path / "rows.npy"), *options)
    (published,) = connected.published
    assert published.content == Table("genres", ROWS, "int8", 2).content
    shown = json.loads(run("show", "genres", "--json").stdout)
    assert (shown["rows"], shown["width"], shown["encoding"], shown["bytes"]) == (4, 3, "int8", 28)
    assert "version 0: 4 rows x 3 as int8, 28 bytes" in " ".join(run("show", "genres").output.split())


def test_a_csv_of_numbers_is_a_table_too(connected: Connected, tmp_path: Path) -> None:
    np.savetxt(tmp_path / "rows.csv", ROWS, delimiter=",")
    run("publish", str(tmp_path / "rows.csv"), "--name", "genres")
    np.testing.assert_array_equal(connected.published[0].rows, ROWS)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.npy", b"no array", "does not hold a matrix"),
        ("rows.csv", b"a,b\n", "does not hold a matrix"),
        ("rows.txt", b"1,2\n", "to end in .npy or .csv"),
        ("missing.npy", None, "cannot read"),
    ],
)
def test_a_file_that_is_no_matrix_is_named(
    connected: Connected, tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigurationError, match=message):
        run("publish", str(tmp_path / name), "--name", "genres")
    assert connected.published == []


def test_an_array_of_objects_is_never_loaded(connected: Connected, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    with pytest.raises(ConfigurationError, match="does not hold a matrix"):
        run("publish", str(tmp_path / "rows.npy"), "--name", "genres")
