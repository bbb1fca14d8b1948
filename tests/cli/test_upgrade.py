"""What `odp enclave upgrade` does around the hand-over: the log that it waits for, and the folder that it leaves."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from odp._system.files.state_folder import StateFolder
from odp.cli.upgrade import logged
from odp.crypto.note import NoteKey
from odp.crypto.signing import SigningKey
from odp.errors import ConfigurationError, ServiceError, StateError
from odp.operations.local.successor import adopt_successor
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.log.endorsements import EndorsementFile, endorse
from odp.trust.log.entries import PolicyEntry
from odp.trust.log.excerpt import MOST_ENDORSEMENTS
from odp.trust.log.log_files import LogFiles
from odp.v1 import aggregator_pb2, hand_over_pb2
from trusted_aggregator.host.hand_over_service import HISTORY
from trusted_aggregator.host.sqlite_storage import SqliteStorage
from trusted_aggregator.state.records import SealedRecord

NOW = 1_795_000_000.0
POLICY = EnclavePolicy(role="aggregator")
OLD, NEW, OTHER = ("sha384:" + digit * 96 for digit in "012")


class Source:
    """A server that shows a log."""

    def __init__(self, log: LogFiles) -> None:
        self.log = log

    def note(self) -> bytes:
        return self.log.note

    def leaves(self, size: int) -> list[bytes]:
        return list(self.log.hashes(0, 0, size))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogFiles]:
    with LogFiles.open(tmp_path / "log", NoteKey.generate("example.com/log"), now=NOW) as opened:
        yield opened


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    """Endorsements of three images, of which the log has none."""
    key = SigningKey.generate()
    entries = [
        endorse(
            key, role="aggregator", image_digest=image, policy_sha256=POLICY.sha256.hex(), not_before=0, not_after=2**39
        )[0]
        for image in (OLD, NEW, OTHER)
    ]
    EndorsementFile((PolicyEntry(POLICY.to_bytes()),), tuple(entries)).save(tmp_path / "endorsements.json")
    return tmp_path / "endorsements.json"


def test_the_excerpt_comes_once_the_log_has_the_endorsement(log: LogFiles, listed: Path) -> None:
    entries = [entry.encode() for entry in EndorsementFile.load(listed).endorsements]
    log.append(entries[:1], now=NOW)
    waited: list[float] = []

    def pause(seconds: float) -> None:
        waited.append(seconds)
        log.append(entries[1:2], now=NOW)

    found = logged(Source(log), listed, NEW, OLD, POLICY, pause=pause)  # type: ignore[arg-type]  # all that it asks
    assert list(found.endorsements) == entries[:2], "those that the log has, and no others"
    assert len(waited) == 1
    assert len(found.leaves) == 32 * log.size


def test_r283_the_excerpt_fits_a_hand_over_however_many_versions_were_endorsed_before(
    log: LogFiles, tmp_path: Path
) -> None:
    keys = [SigningKey.generate() for _ in range(3)]
    images = [f"sha384:{number:096x}" for number in range(MOST_ENDORSEMENTS)]
    entries = [
        endorse(
            key, role="aggregator", image_digest=image, policy_sha256=POLICY.sha256.hex(), not_before=0, not_after=2**39
        )[0]
        for image in images
        for key in keys
    ]
    EndorsementFile((PolicyEntry(POLICY.to_bytes()),), tuple(entries)).save(tmp_path / "all.json")
    log.append([entry.encode() for entry in entries], now=NOW)
    listed = tmp_path / "all.json"
    found = logged(Source(log), listed, images[-1], images[-2], POLICY)  # type: ignore[arg-type]  # as above
    assert list(found.endorsements) == [entry.encode() for entry in entries[-6:]]


def test_a_log_that_never_has_it_and_a_file_without_it_are_told(log: LogFiles, listed: Path) -> None:
    source = Source(log)
    with pytest.raises(ServiceError, match="does not hold the endorsement"):
        logged(source, listed, NEW, OLD, POLICY, seconds=0.0)  # type: ignore[arg-type]  # as above
    with pytest.raises(ConfigurationError, match="have an endorser add it"):
        logged(source, listed, "sha384:" + "9" * 96, OLD, POLICY)  # type: ignore[arg-type]  # as above


def _folder(path: Path, *records: str, successor: str = "") -> None:
    """The state of an aggregator; ``successor`` is the version that took it over last."""
    with StateFolder.open(path, "aggregator") as folder:
        storage = SqliteStorage(folder)
        storage.apply([SealedRecord(name, b"sealed") for name in records])
        storage.close()
        if successor:
            statement = hand_over_pb2.HandOverStatement(successor_image=successor).SerializeToString()
            history = aggregator_pb2.GetHandOversResponse(hand_overs=[hand_over_pb2.HandOver(statement=statement)])
            folder.write_atomically(HISTORY, history.SerializeToString())


def _adopt(state: Path) -> None:
    """The start of the version ``NEW``."""
    adopt_successor(state, image=lambda: NEW)


def _keys(path: Path) -> list[str]:
    with StateFolder.open(path, "aggregator") as folder:
        storage = SqliteStorage(folder)
        try:
            return storage.keys()
        finally:
            storage.close()


def test_the_new_state_takes_the_place_of_the_old_one_which_is_kept(tmp_path: Path) -> None:
    state = tmp_path / "aggregator"
    _adopt(state)
    for number in range(2):
        _folder(state, f"old-{number}")
        _folder(tmp_path / "aggregator.next", f"new-{number}", successor=NEW)
        _adopt(state)
        assert _keys(tmp_path / f"aggregator.handed-over-{number}") == [f"old-{number}"]
        assert _keys(state) == [f"new-{number}"]
        _adopt(state)
        assert _keys(state) == [f"new-{number}"]
        (state).rename(tmp_path / f"done-{number}")


def test_an_old_state_that_was_removed_leaves_room_for_the_next_one(tmp_path: Path) -> None:
    """An operator removes the first of two old states, which can charge nothing any more."""
    state = tmp_path / "aggregator"
    (tmp_path / "aggregator.handed-over-1").mkdir()
    (tmp_path / "aggregator.handed-over-1" / "sealed.db").write_bytes(b"of another version")
    _folder(state, "old")
    _folder(tmp_path / "aggregator.next", "new", successor=NEW)
    _adopt(state)
    assert _keys(state) == ["new"]
    assert _keys(tmp_path / "aggregator.handed-over-0") == ["old"]


def test_a_state_that_is_not_whole_or_in_use_stays_where_it_is(tmp_path: Path) -> None:
    state = tmp_path / "aggregator"
    _folder(state, "old")
    _folder(tmp_path / "aggregator.next")
    _adopt(state)
    assert _keys(state) == ["old"]
    _folder(tmp_path / "aggregator.next", "new", successor=NEW)
    with StateFolder.open(state, "aggregator"), pytest.raises(StateError, match="in use"):
        _adopt(state)
    # A death came between the two moves.
    state.rename(tmp_path / "aggregator.handed-over-0")
    _adopt(state)
    assert _keys(state) == ["new"]


@pytest.mark.parametrize(
    ("successor", "message"),
    [(OTHER, f"another version, {OTHER}, has taken over .* start that version"), ("", "names no hand-over")],
)
def test_r400_a_version_that_did_not_take_the_state_over_leaves_it_where_it_is_and_names_the_one_that_did(
    tmp_path: Path, successor: str, message: str
) -> None:
    """A service manager starts the old version again after a power cut."""
    state, taken = tmp_path / "aggregator", tmp_path / "aggregator.next"
    _folder(state, "old")
    _folder(taken, "new", successor=successor)
    for _ in range(2):
        with pytest.raises(StateError, match=message):
            _adopt(state)
    assert (_keys(state), _keys(taken)) == (["old"], ["new"])


def test_rounds_that_are_waited_for_are_told_apart_from_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odp: Any
) -> None:
    for name in ("aggregator/address", "aggregator/control-address", "server/address"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("127.0.0.1:1")

    void_rounds: list[object] = []

    def take_over(*_: object, waiting: Callable[[object], None], **named: object) -> SimpleNamespace:
        void_rounds.append(named["void_rounds"])
        waiting(SimpleNamespace(rounds=2, contributions=5))
        return SimpleNamespace(populations=[SimpleNamespace(population="films")], predecessor_image=OLD)

    monkeypatch.setattr("odp.transport.tls.load_identity", lambda **_: SimpleNamespace(ca_pem=b""))
    monkeypatch.setattr("odp.transport.channel.connect", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr("odp.trust.log.sources.LogServer", lambda *_: None)
    monkeypatch.setattr("trusted_aggregator.host.upgrading.PredecessorClient", lambda *_, **__: None)
    monkeypatch.setattr("trusted_aggregator.host.upgrading.upgrade", take_over)
    printed = odp("enclave", "upgrade", "--services", tmp_path, "--json")
    assert json.loads(printed.out)["populations"] == ["films"]
    assert "waiting for 2 rounds with 5 contributions" in printed.err
    odp("enclave", "upgrade", "--services", tmp_path, "--json", "--void-rounds")
    assert void_rounds == [False, True], "rounds end as void on the operator's word alone"
