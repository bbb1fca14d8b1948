"""A real PostgreSQL, started for a session of tests in a temporary folder, and stopped at its end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from benchmarks import temporary_postgresql
from odp.errors import ConfigurationError

#: PostgreSQL's own error of a full disk, as the driver gives it to a program.
_FULL = "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE disk_full; END $$"


class PostgresqlServer(temporary_postgresql.PostgresqlServer):
    """A server of the tests, which are skipped where none can be started."""

    @contextlib.contextmanager
    def full_disk(self, table: str, *, schema: str, at_commit: bool) -> Iterator[None]:
        """While this is open, rows of ``table`` find a full disk: when they are written, or when they are committed."""
        trigger = (
            f"CREATE CONSTRAINT TRIGGER full_disk AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED"
            if at_commit
            else f"CREATE TRIGGER full_disk BEFORE INSERT ON {table}"
        )
        self.execute(_FULL, f"{trigger} FOR EACH ROW EXECUTE FUNCTION full_disk()", schema=schema)
        try:
            yield
        finally:
            self.execute("DROP FUNCTION full_disk CASCADE", schema=schema)

    @contextlib.contextmanager
    def reading(self, table: str, *, schema: str) -> Iterator[None]:
        """While this is open, another program is in the middle of a look at ``table``, as a backup is."""
        # The driver is an extra, and without it the tests that need it are skipped.
        import psycopg

        with psycopg.connect(self.url(schema=schema)) as connection:
            connection.execute(f"SELECT count(*) FROM {table}")
            yield

    def in_tables(self, data: bytes) -> bool:
        """Whether a file of a table or of an index has ``data``; it is the same after a crash."""
        self.execute("CHECKPOINT")
        return any(data in path.read_bytes() for path in (self._folder / "data" / "base").rglob("*") if path.is_file())

    @classmethod
    @contextlib.contextmanager
    def started(cls) -> Iterator[PostgresqlServer]:
        with contextlib.ExitStack() as stack:
            try:
                server = stack.enter_context(super().started())
            except ConfigurationError as error:
                pytest.skip(str(error))
            yield server
