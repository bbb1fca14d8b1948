from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from odp.crypto.signing import SigningKey
from odp.errors import Busy, ConfigurationError, StateError
from odp.signed.tables.table import Table, open_version
from odp.signed.task import model_sha256
from odp.transport.service import NotFound
from odp.v1 import table_pb2
from server.storage.sqlite import open_sqlite
from server.tables import TableBook, TableFiles

KEY = SigningKey.from_bytes(bytes(32))


def table(value: float = 1.0, *, rows_per_request: int = 8) -> table_pb2.TableHeader:
    return Table("genres", np.full((5, 2), value), rows_per_request=rows_per_request).header()


@pytest.fixture
def book(tmp_path: Path) -> TableBook:
    return TableBook(TableFiles(tmp_path / "tables"), KEY)


def announced(book: TableBook, request: table_pb2.TableHeader) -> int:
    record = book.sign(request)
    return book.announce("genres", model_sha256(record.signed)).version


def test_a_book_goes_on_after_a_restart_where_it_was(book: TableBook, tmp_path: Path) -> None:
    assert announced(book, table(1)) == 0
    signed = book.sign(table(2))
    again = TableBook(TableFiles(tmp_path / "tables"), KEY)
    assert again.newest("genres").announced == book.newest("genres").announced
    assert again.sign(table(2)) == signed
    assert announced(again, table(2)) == 1


def test_a_version_that_is_not_the_last_one_signed_is_not_announced(book: TableBook) -> None:
    first = book.sign(table(1))
    announced(book, table(2))
    with pytest.raises(ConfigurationError, match="signed last"):
        book.announce("genres", model_sha256(first.signed))
    record = book.newest("genres")
    assert open_version(record.definition, record.announced).version == 1


def test_unknown_tables_are_named(book: TableBook) -> None:
    with pytest.raises(NotFound, match="'genres' was not published here"):
        book.newest("genres")
    with pytest.raises(NotFound, match="never signed"):
        book.announce("genres", bytes(32))
    for name in ("../log.key", "", "A", "a" * 65):
        with pytest.raises(ConfigurationError):
            book.newest(name)


def test_the_number_of_rows_per_request_never_changes(book: TableBook) -> None:
    book.sign(table(1))
    with pytest.raises(ConfigurationError, match="rows_per_request=9 to be 8"):
        book.sign(table(2, rows_per_request=9))


@pytest.mark.parametrize("field", ["rows", "width", "rows_per_request", "sha256", "encoding", "name"])
def test_a_request_that_is_out_of_range_is_refused(book: TableBook, field: str) -> None:
    request = table()
    if field == "encoding":
        request.encoding = 9  # type: ignore[assignment]
    else:
        request.ClearField(field)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError):
        book.sign(request)


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x0a\x00\x12\x00"])
def test_a_damaged_file_is_named_and_nothing_is_signed_over_it(book: TableBook, tmp_path: Path, data: bytes) -> None:
    announced(book, table(1))
    (tmp_path / "tables" / "genres").write_bytes(data)
    with pytest.raises(StateError, match=r"genres is damaged|cannot be used"):
        book.sign(table(2))
    assert (tmp_path / "tables" / "genres").read_bytes() == data


def test_servers_on_one_database_go_on_where_the_other_was_and_never_sign_one_version_twice(tmp_path: Path) -> None:
    storage = open_sqlite(tmp_path / "server.sqlite")
    one, two = (TableBook(storage.log_rows, KEY) for _ in range(2))
    assert announced(one, table(1)) == 0
    assert announced(two, table(2)) == 1
    assert one.newest("genres") == two.newest("genres")

    class Slow:
        """Its first change comes after another server's."""

        def __getattr__(self, name: str) -> object:
            return getattr(storage.log_rows, name)

        def set_table(self, name: str, record: bytes, *, before: bytes | None) -> bool:
            announced(two, table(3))
            return storage.log_rows.set_table(name, record, before=before)

    with pytest.raises(Busy, match="another server publishes table 'genres'"):
        TableBook(Slow(), KEY).sign(table(4))
    assert announced(one, table(4)) == 3
    storage.close()
