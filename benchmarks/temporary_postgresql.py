"""A real PostgreSQL in a temporary folder, for tests and benchmarks; its account is not root."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from odp._system.extras import is_installed
from odp.errors import ConfigurationError

_USER = "odp"
_SECONDS = "60"
# Commits reach the disk, as in production; the rest is small.
_SETTINGS = {
    "listen_addresses": "''",
    "max_connections": "50",
    "shared_buffers": "16MB",
    "max_wal_size": "128MB",
    "autovacuum": "off",
}


class PostgresqlServer:
    """A running server, reached through a socket in ``folder``, which only its user can enter; no port is open.

    ``user`` runs it: PostgreSQL refuses root.
    """

    def __init__(self, folder: Path, *, binaries: Path, user: str | None) -> None:
        self._folder = folder
        self._binaries = binaries
        self._user = user

    @classmethod
    @contextlib.contextmanager
    def started(cls) -> Iterator[PostgresqlServer]:
        """Raises ConfigurationError where the programs, the driver or an account to run them are missing."""
        if not is_installed("psycopg"):
            raise ConfigurationError("psycopg is not installed: pip install 'odp-platform[postgres]'")
        binaries = _binaries()
        user = _account() if os.getuid() == 0 else None
        # Not in pytest's folder: only the account of the tests can enter that one. And the path of a socket is short.
        folder = Path(tempfile.mkdtemp(prefix="odp-postgresql-"))
        try:
            if user is not None:
                shutil.chown(folder, user)
            server = cls(folder, binaries=binaries, user=user)
            server._run("initdb", "--username", _USER, "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
            try:
                server.start()
                yield server
            finally:
                server.stop()
        finally:
            shutil.rmtree(folder)

    def start(self) -> None:
        """Starts it, on the data that it had."""
        settings = [f"-c {name}={value}" for name, value in _SETTINGS.items()]
        options = " ".join([f"-k {self._folder}", *settings])
        self._run("pg_ctl", "start", "--wait", "--timeout", _SECONDS, "--log", self._folder / "log", "-o", options)

    def stop(self) -> None:
        """Stops it as a crash does. Idempotent."""
        # Where it did not start, there is nothing to stop.
        if (self._folder / "data" / "postmaster.pid").exists():
            self._run("pg_ctl", "stop", "--wait", "--timeout", _SECONDS, "--mode=immediate")

    def url(self, *, schema: str = "public", database: str = "postgres", user: str = _USER) -> str:
        return f"postgresql://{user}@/{database}?host={self._folder}&options=-csearch_path%3D{schema}"

    def execute(self, *statements: str, schema: str = "public") -> None:
        """Runs statements by themselves, as the owner of everything; raises what the database does."""
        # The driver is an extra, and without it the tests that need it are skipped.
        import psycopg

        with psycopg.connect(self.url(schema=schema)) as connection:
            for statement in statements:
                connection.execute(statement)

    def _run(self, program: str, *arguments: str | Path) -> None:
        command = [self._binaries / program, "--pgdata", self._folder / "data", *arguments]
        if self._user is not None:
            # Not by ``subprocess``: for another user it forks, in which gRPC's threads of other tests can fail.
            account = pwd.getpwnam(self._user)
            owner = [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
            command = ["setpriv", *owner, "--", *command]
        log = self._folder / f"{program}.log"
        # A file, as the server would keep a pipe open.
        with log.open("wb") as output:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self._folder, check=False,
                timeout=2 * int(_SECONDS),
            )  # fmt: skip
        assert done.returncode == 0, f"{program} failed: {log.read_text()}"


def _binaries() -> Path:
    """The folder with the programs of PostgreSQL; Debian keeps each version in one of its own, outside the path."""
    named = shutil.which("initdb")
    folders = [] if named is None else [Path(named).resolve().parent]
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: folder.parent.name, reverse=True)
    for folder in folders:
        if all((folder / program).is_file() for program in ("initdb", "pg_ctl", "postgres")):
            return folder
    raise ConfigurationError("PostgreSQL is not installed: apt-get install postgresql")


def _account() -> str:
    if shutil.which("setpriv") is None:
        raise ConfigurationError("PostgreSQL refuses root, and there is no setpriv to start it as somebody else")
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise ConfigurationError("PostgreSQL refuses root, and there is no account postgres or nobody")
