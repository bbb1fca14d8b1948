"""Stores of released schemas are brought to today's in place; those of newer ones are refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from conformance.dying import deaths
from conformance.postgresql import PostgresqlServer

from odp.errors import StateError
from odp.storage.postgresql import postgresql_place
from odp.storage.sqlite import open_database
from server.storage import TaskRecord, TaskState, migrations as revisions
from server.storage.postgresql import open_postgresql
from server.storage.schema import HEAD, METADATA
from server.storage.sqlite import open_sqlite

#: The statements that make the stores of the last release without a number.
RELEASED = Path(__file__).with_name("released")
INSERT = (
    "INSERT INTO tasks (task_sha256, name, population, definition, signature, planned_rounds, state, failure) "
    "VALUES ({sha256}, 'kept', 'people', {sha256}, {sha256}, 3, {state}, '')"
)
SHA256 = bytes(range(32))


class OnSqlite:
    def __init__(self, path: Path) -> None:
        self.path = path / "server.sqlite"

    def engine(self) -> sa.Engine:
        return open_database(self.path)

    def open(self):
        return open_sqlite(self.path)

    statements = (RELEASED / "sqlite.sql").read_text().split("\n--\n")
    insert = INSERT.format(state=int(TaskState.ACTIVE), sha256=f"x'{SHA256.hex()}'")


class OnPostgresql:
    def __init__(self, url: str) -> None:
        self.url = url

    def engine(self) -> sa.Engine:
        return postgresql_place(self.url, program="tests").engine(1)

    def open(self):
        return open_postgresql(self.url)

    statements = (RELEASED / "postgresql.sql").read_text().split("\n--\n")
    insert = INSERT.format(state=int(TaskState.ACTIVE), sha256=f"decode('{SHA256.hex()}', 'hex')")


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path):
    if request.param == "sqlite":
        return OnSqlite(tmp_path)
    server: PostgresqlServer = request.getfixturevalue("postgresql")
    schema = f"migrated_{abs(hash(tmp_path))}"
    server.execute(f"CREATE SCHEMA {schema}")
    return OnPostgresql(server.url(schema=schema))


def release(place, *, without: str = "none") -> None:
    """Makes the store as the last release did; ``without`` some tables, as an earlier one."""
    _execute(place, *(one for one in place.statements if without not in one), place.insert)


def _execute(place, *statements: str) -> None:
    engine = place.engine()
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


def differences(place) -> list[object]:
    engine = place.engine()
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": "server_schema"})
        found = compare_metadata(context, METADATA)
        assert context.get_current_revision() == HEAD
    engine.dispose()
    return found


def require_kept(place) -> None:
    storage = place.open()
    kept = storage.task(SHA256)
    assert isinstance(kept, TaskRecord)
    assert (kept.name, kept.state) == ("kept", TaskState.ACTIVE)
    storage.close()
    assert differences(place) == []


@pytest.mark.parametrize("without", ["none", "local_r", "charters"])
def test_a_released_store_keeps_its_rows_and_gets_the_tables_of_today(place, without):
    release(place, without=without)
    require_kept(place)
    with pytest.raises(Exception, match="append-only"):
        _execute(place, "INSERT INTO task_history (task_sha256, at, event, detail) SELECT task_sha256, 1, 'x', '' "
                        "FROM tasks", "DELETE FROM task_history")  # fmt: skip


def test_a_new_store_is_one_of_todays_schema(place):
    place.open().close()
    assert differences(place) == []


def test_a_store_of_a_newer_schema_is_refused_in_one_line(place):
    place.open().close()
    _execute(place, "UPDATE server_schema SET version_num = '9999'")
    with pytest.raises(StateError, match="schema 9999 of a newer version") as refused:
        place.open()
    assert "\n" not in str(refused.value)


def test_an_upgrade_that_fails_leaves_the_old_schema(place, monkeypatch, tmp_path):
    release(place)
    with monkeypatch.context() as broken:
        # Half of the revision's tables, then an error.
        broken.setattr(sa.MetaData, "create_all", _half_made(sa.MetaData.create_all))
        with pytest.raises(ZeroDivisionError):
            place.open()
    engine = place.engine()
    names = sa.inspect(engine).get_table_names()
    engine.dispose()
    assert "leases" not in names
    assert "server_schema" not in names
    require_kept(place)


def _half_made(create_all):
    def half(metadata, connection):
        create_all(metadata, connection)
        if "leases" in metadata.tables:
            raise ZeroDivisionError

    return half


@pytest.mark.slow
def test_an_upgrade_that_is_killed_at_any_step_is_done_again(tmp_path):
    def places():
        for number in range(1000):
            path = tmp_path / str(number)
            path.mkdir()
            release(OnSqlite(path))
            yield path

    def act(path, arm):
        arm()
        OnSqlite(path).open()

    # A dozen of its steps; each takes a process that imports Alembic.
    for number, (path, _) in enumerate(deaths(act, places())):
        if number % 5 == 0:
            require_kept(OnSqlite(path))


def test_the_revisions_count_up_to_the_head():
    scripts = ScriptDirectory(str(Path(revisions.__file__).parent))
    assert scripts.get_current_head() == HEAD
    assert [one.revision for one in scripts.walk_revisions()] == [f"{n:04d}" for n in range(int(HEAD), 0, -1)]


def test_a_store_of_todays_schema_opens_without_alembic(tmp_path):
    open_sqlite(tmp_path / "server.sqlite").close()
    code = (
        "import sys; from pathlib import Path; from server.storage.sqlite import open_sqlite; "
        "open_sqlite(Path(sys.argv[1])).close(); sys.exit('alembic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, tmp_path / "server.sqlite"], check=False).returncode == 0
