"""A file that is lost is missed: no program takes its absence for a first start."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from trust.log.world import NOW, LogWorld, filler

from odp._system.files.state_folder import StateFolder
from odp.crypto.note import Kind, NoteKey
from odp.errors import StateError
from odp.operations.local.processes import Services
from odp.transport.logs import Log
from odp.trust.enclave.platform import EmulatedPlatform
from odp.trust.enrolment import issuer_program
from odp.trust.log.client import LogMemory
from odp.trust.log.endorsements import EndorsementFile
from odp.trust.log.log_files import LogFiles
from odp.trust.log.witness import Witness
from server import program as server_program
from server.transparency import LogKeeper
from trusted_aggregator.host.sqlite_storage import SqliteStorage

Start = Callable[[Path], object]


def _server(folder: Path) -> None:
    with StateFolder.open(folder, "server") as state:
        state.write_atomically(server_program.DATABASE_FILE, b"")
    server_program.start(server_program.Config(state=folder))


def _issuer(folder: Path) -> None:
    with StateFolder.open(folder, "issuer") as state:
        state.write_atomically("issuer.sqlite", b"")
    issuer_program.start(
        issuer_program.Config(state=folder, developers=("ab" * 32,), roster=_roster(folder), listen="127.0.0.1:0")
    )


def _roster(folder: Path) -> Path:
    path = folder.parent / "roster"
    path.write_text("cd" * 32 + "\n")
    return path


def _contributions(folder: Path) -> None:
    with StateFolder.open(folder, "aggregator") as state:
        SqliteStorage(state).close()
        for path in folder.glob("contributions.db*"):
            path.unlink()
        SqliteStorage(state)


def _platform(folder: Path) -> None:
    EmulatedPlatform.open(folder).counter("ledger").advance(expected=0, to=7)
    (folder / "platform.json").unlink()
    EmulatedPlatform.open(folder)


def _slots(folder: Path) -> None:
    EmulatedPlatform.open(folder).slots("sha384:" + "0" * 96).create("round")
    shutil.rmtree(folder / "slots")
    EmulatedPlatform.open(folder)


@pytest.mark.parametrize(
    ("start", "file"),
    [
        (_server, "developer.key"), (_issuer, "issuer.key"), (_contributions, "contributions.db"),
        (_platform, "platform.json"), (_slots, "slots"),
    ],
)  # fmt: skip
def test_r243_a_program_whose_key_or_state_is_lost_does_not_start_anew(tmp_path: Path, start: Start, file: str) -> None:
    with pytest.raises(StateError, match=f"{file} is gone"):
        start(tmp_path / "state")
    assert not (tmp_path / "state" / file).exists()


def _serve(folder: Path) -> None:
    server_program.start(server_program.Config(state=folder, listen="127.0.0.1:0")).stop()


def _issue(folder: Path) -> None:
    config = issuer_program.Config(
        state=folder, developers=("ab" * 32,), roster=_roster(folder), listen="127.0.0.1:0",
        control_listen="127.0.0.1:0",
    )  # fmt: skip
    issuer_program.start(config).stop()


def _store(folder: Path) -> None:
    with StateFolder.open(folder, "aggregator") as state:
        SqliteStorage(state).close()


@pytest.mark.parametrize("lost", ["removed", "empty"])
@pytest.mark.parametrize(
    ("run", "file"),
    [(_serve, "server.sqlite"), (_issue, "issuer.sqlite"), (_store, "sealed.db"), (_store, "contributions.db")],
)
def test_r286_a_program_whose_database_is_lost_does_not_start_anew(
    tmp_path: Path, run: Start, file: str, lost: str
) -> None:
    """Without it a server forgets its tasks, an issuer which device has its token, an aggregator its open rounds."""
    folder = tmp_path / "state"
    for _ in range(2):
        run(folder)
    (folder / file).unlink()
    if lost == "empty":
        (folder / file).touch(0o600)
    for _ in range(2):
        with pytest.raises(StateError, match=f"{file} is gone or empty: restore it from a backup"):
            run(folder)
    (folder / f"kept-{file}").unlink()
    if file != "contributions.db":
        run(folder)


def test_r243_a_witness_without_its_last_checkpoint_cosigns_nothing(tmp_path: Path) -> None:
    world = LogWorld(tmp_path / "log")
    world.log.append(filler(3), now=NOW)
    with StateFolder.open(tmp_path / "state", "witness") as state:
        keys = [world.key.public(Kind.NOTE).text]
        witness = Witness(state, NoteKey.generate("example.com/w"), keys, clock=lambda: NOW)
        assert witness.add_checkpoint(world.log.note, old_size=0, proof=[]).line is not None
        (lost,) = state.root.glob("*.checkpoint")
        lost.unlink()
        with pytest.raises(StateError, match=f"{lost.name} is gone"):
            witness.add_checkpoint(world.log.note, old_size=0, proof=[])


def test_r243_a_device_that_lost_what_it_saw_of_a_log_believes_no_other_one(tmp_path: Path) -> None:
    world = LogWorld(tmp_path / "log")
    world.log.append(filler(3), now=NOW)
    file = tmp_path / "seen.json"
    LogMemory(world.policy(), file, world.log.hashes).accept(world.log.note, now=NOW)
    file.unlink()
    for _ in range(2):
        with pytest.raises(StateError, match=f"{file.name} is gone: this device's state of the log is lost"):
            LogMemory(world.policy(), file, world.log.hashes).accept(world.log.note, now=NOW)
    file.with_suffix(".lock").unlink()
    LogMemory(world.policy(), file, world.log.hashes).accept(world.log.note, now=NOW)


def test_r243_a_log_that_is_older_than_the_servers_database_is_not_served(tmp_path: Path) -> None:
    world = LogWorld(tmp_path / "log")
    key = NoteKey.generate("example.com/server")

    def keeper(folder: Path) -> tuple[LogKeeper, LogFiles]:
        files = LogFiles.open(folder, key, now=NOW)
        return LogKeeper(files, endorsements=EndorsementFile(), events=Log("server"), clock=lambda: NOW), files

    one, files = keeper(tmp_path / "server-log")
    one.log_task(world.task)
    one.require_tasks([world.task])
    files.close()
    other, files = keeper(tmp_path / "started-anew")
    with pytest.raises(StateError, match="older than the database, or new"):
        other.require_tasks([world.task])
    files.close()


def test_r383_services_whose_chip_is_gone_start_no_program_and_make_no_other(tmp_path: Path) -> None:
    """They share a chip: the first program to start would make one that is in the way of the right one."""
    with StateFolder.open(tmp_path / "aggregator", "aggregator") as state:
        state.write_atomically("enclave.sealed", b"keys")
    begun: list[object] = []
    services = Services(tmp_path)
    try:
        with pytest.raises(StateError, match="which is gone: a backup holds no chip"):
            services.start(on_serving=begun.append)
    finally:
        services.stop()
    assert begun == []
    assert not (tmp_path / "platform").exists()
