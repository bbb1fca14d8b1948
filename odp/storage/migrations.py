"""The schema of a store: marked with its number, brought up in place from an older one, refused where it is newer.

Alembic runs the revisions. It is imported only where a store is older than the program.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from odp.errors import StateError


@dataclass(frozen=True)
class Schema:
    """The schema of one kind of store.

    Attributes:
      name: of the table with its number, as Alembic keeps it.
      head: the newest revision.
      mark: a table that every store of this kind has, also one without a number.
      folder: of the revisions; they are in ``versions`` there, and count up from 0001. None: there is one alone.
    """

    name: str
    head: str
    mark: str
    folder: Path | None = None

    def number(self) -> sa.Table:
        """Alembic's table."""
        return sa.Table(self.name, sa.MetaData(), sa.Column("version_num", sa.String(32), primary_key=True))


@contextlib.contextmanager
def changing(connection: sa.Connection, *, exclusive: Sequence[str] = ()) -> Iterator[None]:
    """One transaction in which also tables are made and changed, all or none, by one program at a time.

    ``exclusive`` are the statements that keep other programs out, where the database needs any.
    """
    with connection.begin():
        if connection.dialect.name == "sqlite":
            # The driver begins one by itself only before rows change.
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        for statement in exclusive:
            connection.exec_driver_sql(statement)
        yield


def bring_up(connection: sa.Connection, schema: Schema) -> bool:
    """Brings the tables of a store to ``schema.head``, in the transaction of ``connection``.

    False where there is no store yet: the caller makes its tables, and calls ``note_new``.

    Raises StateError where the store is of a newer schema.
    """
    tables = sa.inspect(connection)
    version: str | None = None
    if tables.has_table(schema.name):
        version = connection.execute(sa.select(schema.number().c.version_num)).scalar_one_or_none()
        if version == schema.head:
            return True
    if version is None and not tables.has_table(schema.mark):
        return False
    if version is not None and not (version.isdecimal() and int(version) < int(schema.head)):
        raise StateError(
            f"the store has schema {version} of a newer version, and this one knows {schema.head} "
            f"({schema.name}); start "
            "the newer version"
        )
    if schema.folder is None:
        note_new(connection, schema)
    else:
        _upgrade(connection, schema, schema.folder)
    return True


def note_new(connection: sa.Connection, schema: Schema) -> None:
    """Marks a store whose tables are those of the newest schema."""
    number = schema.number()
    number.create(connection, checkfirst=True)
    connection.execute(sa.insert(number).values(version_num=schema.head))


def _upgrade(connection: sa.Connection, schema: Schema, folder: Path) -> None:
    # Slow to import, and nearly no start needs it.
    from alembic.config import Config
    from alembic.runtime.environment import EnvironmentContext
    from alembic.script import ScriptDirectory

    config = Config()
    # Its values are templates.
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    scripts = ScriptDirectory.from_config(config)

    def steps(revision: Any, _context: Any) -> Any:
        return scripts._upgrade_revs(schema.head, revision)

    with EnvironmentContext(config, scripts, fn=steps, destination_rev=schema.head) as environment:
        environment.configure(connection=connection, version_table=schema.name)
        environment.run_migrations()
