"""PostgreSQL through SQLAlchemy Core, opened the same way by every service: durable, with limits, clear errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy
from sqlalchemy import event

from odp._system.extras import advice as missing
from odp.errors import ConfigurationError, DiskFailed, DiskFull, StateError, StoreUnreachable
from odp.transport.statuses import one_line

#: The first version with ``CREATE OR REPLACE TRIGGER``, in PostgreSQL's own numbers.
_OLDEST = 140000
_POOL_SECONDS = 30
_CONNECT_SECONDS = 10
_LOCK_SECONDS = 30
_STATEMENT_SECONDS = 60
# A program that was paused in the middle of a transaction keeps its locks for this time; others wait for them to lead.
_IDLE_SECONDS = 3
_MILLISECONDS = 1000
# A machine that vanished answers nothing, not even that the connection is gone. libpq's names.
_CONNECTION = {
    "connect_timeout": _CONNECT_SECONDS,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": _STATEMENT_SECONDS * _MILLISECONDS,
}
# A commit that a power cut undoes would break what every store guarantees, whatever the database's default is.
_SETTINGS = {
    "statement_timeout": f"{_STATEMENT_SECONDS}s",
    "lock_timeout": f"{_LOCK_SECONDS}s",
    "idle_in_transaction_session_timeout": f"{_IDLE_SECONDS}s",
    "synchronous_commit": "on",
}


@dataclass(frozen=True)
class PostgresqlPlace:
    """A database that can be used: ``name`` is that of its host and itself, without a password."""

    url: sqlalchemy.URL
    name: str
    program: str

    def engine(self, connections: int) -> sqlalchemy.Engine:
        """An engine of at most so many connections, that connects when it is used. Raises ConfigurationError."""
        return _engine(self.url, self.program, connections)

    def errors(self) -> contextlib.AbstractContextManager[None]:
        """``postgresql_errors`` of this database."""
        return postgresql_errors(self.name)


def postgresql_place(url: str, *, program: str) -> PostgresqlPlace:
    """Reads the URL of a database. ``program`` is the name under which the database shows its connections.

    Over a network, ``?sslmode=verify-full`` at the end of ``url`` checks the certificate of the database.

    Raises ConfigurationError where ``url`` is not of PostgreSQL.
    """
    parsed = _checked(url)
    name = one_line(f"{parsed.host or parsed.query.get('host', 'localhost')}/{parsed.database or ''}")
    return PostgresqlPlace(parsed, name, program)


def check_server(engine: sqlalchemy.Engine, name: str) -> None:
    """Raises StateError where a server is older than PostgreSQL 14, keeps commits in memory only, or is a standby."""
    with engine.connect() as connection:
        query = "SELECT current_setting('server_version_num'), current_setting('fsync'), pg_is_in_recovery()"
        version, fsync, standby = connection.exec_driver_sql(query).one()
    if int(version) < _OLDEST:
        raise StateError(f"database {name}: Expected PostgreSQL >= 14 (got {version}); upgrade it")
    if fsync != "on":
        raise StateError(f"database {name} would lose commits at a power cut; set fsync=on in its configuration")
    if standby:
        raise StateError(f"database {name} is a standby, which takes no changes; use the primary")


def _engine(parsed: sqlalchemy.URL, program: str, connections: int) -> sqlalchemy.Engine:
    try:
        engine = sqlalchemy.create_engine(
            parsed,
            isolation_level="READ COMMITTED",
            pool_pre_ping=True,
            pool_size=connections,
            max_overflow=0,
            pool_timeout=_POOL_SECONDS,
            connect_args={
                name: value
                for name, value in (_CONNECTION | {"application_name": program}).items()
                if name not in parsed.query
            },
        )
    except ImportError as error:
        raise ConfigurationError(f"cannot use PostgreSQL: {missing('psycopg')}") from error
    event.listen(engine, "connect", _configure)
    return engine


@contextlib.contextmanager
def postgresql_errors(place: str) -> Iterator[None]:
    """Turns PostgreSQL's errors about a database that cannot be used into a StateError of one line.

    Errors of a statement itself (a broken constraint, a wrong value) stay as they are.
    """
    try:
        yield
    except sqlalchemy.exc.TimeoutError as error:
        raise StoreUnreachable(
            f"database {place}: all connections are in use for {_POOL_SECONDS} s; try again"
        ) from error
    except sqlalchemy.exc.DBAPIError as error:
        if (raised := _state_error(place, error)) is None:
            raise
        raise raised from error


def _checked(url: str) -> sqlalchemy.URL:
    # No message has the URL: it may have a password.
    try:
        parsed = sqlalchemy.make_url(url)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        raise ConfigurationError("Expected url to be postgresql://user:password@host:5432/name") from None
    if parsed.drivername not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise ConfigurationError(
            f"Expected url to be postgresql://user:password@host:5432/name (got a URL of {parsed.drivername!r})"
        )
    return parsed.set(drivername="postgresql+psycopg")


def _configure(connection: Any, _record: Any) -> None:
    with connection.cursor() as cursor:
        for name, value in _SETTINGS.items():
            cursor.execute("SELECT set_config(%s, %s, false)", (name, value))
    connection.commit()


def _state_error(place: str, error: sqlalchemy.exc.DBAPIError) -> StateError | None:
    """By PostgreSQL's code of the error (its documentation, appendix A); None for an error of the statement itself."""
    code = getattr(error.orig, "sqlstate", None) or ""
    reason = one_line(str(error.orig))
    for codes, kind, advice in _ADVICE:
        if code.startswith(codes):
            return kind(f"database {place}: {reason}; {advice}")
    if not code and (error.connection_invalidated or isinstance(error, sqlalchemy.exc.OperationalError)):
        return StoreUnreachable(f"database {place} cannot be reached: {reason}; check the address, and that it runs")
    return None


_ADVICE: tuple[tuple[tuple[str, ...], type[StateError], str], ...] = (
    (("53100",), DiskFull, "disk full: free some space there; nothing was lost"),
    (("58030",), DiskFailed, "check its disk, and restart it"),
    (("XX001", "XX002"), StateError, "it is damaged; restore it from a backup"),
    (("53",), StateError, "it has too few resources; raise its limits"),
    (("28", "3D000"), StateError, "check the name of the database, the user and the password"),
    (("42501",), StateError, "make the user the owner of the database"),
    (("25006",), StateError, "it takes no changes; use the primary"),
    (("55P03", "57014", "40"), StoreUnreachable, "another program has locked it, or it is slow; try again"),
    (("08", "25P03", "57P", "58"), StoreUnreachable, "it has ended the connection; check that it runs, and try again"),
)
