"""What each program keeps, as steps that acknowledge something, and what has to be there after each of them.

``steps`` run in order on a folder. ``check`` reads a copy of that folder as a new start does, and goes on from it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest
from aggregator_host import StoredHost
from device_runtime_ledger import TASK, participation, prepare
from trust.log.world import NOW, filler
from worlds import conftest_of

from device_runtime.round.secagg import begin_attempt
from device_runtime.store.schema import State
from device_runtime.store.store import Store
from distributor.model_folders import ModelFolders
from distributor.model_store import ModelStore
from odp._system.files.state_folder import StateFolder
from odp.crypto.note import Kind, NoteKey
from odp.errors import ContributionRefused, PrivacyError, Refusal
from odp.evaluation.noise import NoNoise
from odp.privacy.ledger_entry import ReleaseState, entries_of
from odp.privacy.ledger_state import LedgerHead
from odp.trust.enclave.identity import EnclaveIdentity
from odp.trust.enclave.platform import EmulatedPlatform
from odp.trust.enrolment.storage import Grant, KeyRecord, Storage as IssuerStorage
from odp.trust.log import merkle
from odp.trust.log.checkpoint import Checkpoint, sign_checkpoint
from odp.trust.log.log_files import LogFiles
from odp.trust.log.witness import Witness
from odp.v1 import common_pb2, enrolment_pb2
from server.storage import NewVersion, TaskRecord
from server.storage.sqlite import open_sqlite
from trusted_aggregator.boundary.interface import SealedContribution
from trusted_aggregator.host.large_files import LARGE_BYTES
from trusted_aggregator.host.sqlite_storage import SqliteStorage

SECONDS = 30.0
KEY = NoteKey.generate("example.com/log")
WITNESS = NoteKey.generate("example.com/witness")
IMAGE = "sha384:" + "0" * 96
ID = hashlib.sha256(b"task").digest()
MODEL = hashlib.sha256(b"model").digest()
Step = Callable[[], object]


class Service(Protocol):
    """One program's files below ``folder``, as a fresh process begins with them."""

    steps: Sequence[Step]

    def check(self, folder: Path, done: int) -> None:
        """Fails where ``folder`` lacks what the first ``done`` steps acknowledged, or work cannot go on from it."""
        ...

    def close(self) -> None:
        """The process is gone."""
        ...


class Aggregator:
    """Host and enclave through one round of three devices."""

    _tests = conftest_of("trusted_aggregator")

    def __init__(self, folder: Path) -> None:
        platform = EmulatedPlatform.open(folder / "platform")
        self.world: Any = self._tests.StatisticsWorld(platform, "people", minimum=3, noise=NoNoise())
        self.state = StateFolder.open(folder / "state", "aggregator")
        self.host = StoredHost(self.world, self.state)
        self.world.records = {}
        self.released = b""
        self.sealed: dict[tuple[bytes, int], bytes] = {}
        self.steps: list[Step] = [self.host.open]
        self.steps += [functools.partial(self._submit, self.host, device) for device in range(3)]
        self.steps.append(self._close)

    def _submit(self, host: StoredHost, device: int) -> None:
        world = self.world
        place = world.round_keys.get((world.task_sha256, 0), b""), device
        if place not in self.sealed:
            self.sealed[place] = world.sealed(device)
        submit = SealedContribution(world.task_sha256, 0, self.sealed[place])
        refused = host.service._ingest.submit(submit).result(SECONDS)
        if refused is not None and refused.refusal is not Refusal.ALREADY_CONTRIBUTED:
            raise ContributionRefused(refused.refusal)

    def _close(self) -> None:
        self.released = self.host.close_round().SerializeToString()

    def check(self, folder: Path, done: int) -> None:
        world = self.world
        before = world.platform, world.identity, dict(world.round_keys)
        world.platform = EmulatedPlatform.open(folder / "platform")
        world.identity, _ = EnclaveIdentity.restore_or_create(guest=world.guest(), sealed=world.sealed_keys)
        with StateFolder.open(folder / "state", "aggregator") as state:
            host = StoredHost(world, state)
            try:
                found = host.core.round_state(world.task_sha256, 0)
                held = 0 if found is None else found.contributions
                assert done == 0 or found is not None, "the round was acknowledged to be open"
                assert held >= min(done - 1, 3), "a contribution was acknowledged, and is lost"
                host.open()
                for device in range(3):
                    with contextlib.suppress(ContributionRefused):  # where the round is over
                        self._submit(host, device)
                released = host.close_round().SerializeToString()
                assert self.released in (b"", released), "the round had another release before"
                head = LedgerHead.decode(host.core.ledger(world.task_sha256)[0])
                assert host.core.state.populations[world.population].ledger.charges == 1
                lines = host.storage.ledger_lines(world.population, 0, head.entries, most_bytes=2**20)
                assert sum(entry.state is ReleaseState.CHARGED for entry in entries_of(lines)) == 1
            finally:
                host.end()
        world.platform, world.identity, world.round_keys = before

    def close(self) -> None:
        self.host.end()
        self.state.close()


class Contributions:
    """What an aggregator's host stores of contributions: in rows, and in files where they are large."""

    def __init__(self, folder: Path) -> None:
        self.state = StateFolder.open(folder / "state", "aggregator")
        self.storage = SqliteStorage(self.state)
        self.given = [
            SealedContribution(ID, 0, b"small"), SealedContribution(ID, 0, bytes(LARGE_BYTES + 1)),
            SealedContribution(ID, 0, b"c", hashlib.sha256(bytes(LARGE_BYTES + 2)).digest(), bytes(LARGE_BYTES + 2)),
            SealedContribution(ID, 1, b"of the next round"),
        ]  # fmt: skip
        self.steps: list[Step] = [functools.partial(self._add, one) for one in self.given]

    def _add(self, one: SealedContribution) -> None:
        self.storage.add([one])

    def check(self, folder: Path, done: int) -> None:
        with StateFolder.open(folder / "state", "aggregator") as state:
            storage = SqliteStorage(state)
            for round in (0, 1):
                expected = [one.stored for one in self.given[:done] if one.round == round]
                assert list(storage.contributions(ID, round))[: len(expected)] == expected
            storage.close()

    def close(self) -> None:
        self.storage.close()
        self.state.close()


class Log:
    """The transparency log of a server."""

    def __init__(self, folder: Path) -> None:
        self.log = LogFiles.open(folder / "log", KEY, now=NOW)
        self.signed = [self.log.checkpoint]
        self.steps: list[Step] = [functools.partial(self._append, number) for number in range(4)]
        self.steps.insert(2, lambda: self.log.sign_again(now=NOW + 9))

    def _append(self, number: int) -> None:
        self.log.append(filler(2, first=2 * number), now=NOW)
        self.signed.append(self.log.checkpoint)

    def check(self, folder: Path, done: int) -> None:
        with LogFiles.open(folder / "log", KEY, now=NOW) as log:
            for tree in self.signed:
                assert merkle.root(tree.size, log.node) == tree.root, (
                    "a tree was signed that this one does not continue"
                )
            assert log.size >= self.signed[-1].size
            for number in range(4):
                log.append(filler(2, first=2 * number), now=NOW)
            assert log.size == 8

    def close(self) -> None:
        self.log.close()


class Models:
    """The models of a distributor."""

    def __init__(self, folder: Path) -> None:
        self.store = ModelFolders(folder / "models")
        self.steps: list[Step] = [
            functools.partial(self._publish, MODEL),
            functools.partial(self._publish, ID),
            lambda: self.store.remove(MODEL),
        ]

    def _publish(self, model: bytes, store: ModelStore | None = None) -> None:
        store = self.store if store is None else store
        task, manifest = common_pb2.SignedTask(definition=b"t"), common_pb2.SignedManifest(manifest=b"m")
        with store.receive(model, task, manifest, 6) as incoming:
            incoming.write_table([b"abc", b"def"])
            incoming.commit()

    def check(self, folder: Path, done: int) -> None:
        store = ModelFolders(folder / "models")
        found = store.models()
        assert (MODEL in found) is (1 <= done < 3) or done in (0, 2)
        assert done < 2 or ID in found
        for model in found:
            stored = store.load(model)
            assert b"".join(store.contents(stored, 100)) == b"abcdef", "half a model"
        self._publish(hashlib.sha256(b"another").digest(), store)

    def close(self) -> None:
        """Nothing is held."""


class Server:
    """The database of a server: one round of a task."""

    def __init__(self, folder: Path) -> None:
        self.state = StateFolder.open(folder / "state", "server")
        self.storage = open_sqlite(self.state.path("server.sqlite"), health=self.state.health, clock=lambda: 7.0)
        release = common_pb2.SignedRelease(release=b"release", signature=b"s")
        self.steps: list[Step] = [
            lambda: self.storage.add_task(_task()),
            lambda: self.storage.add_first_version(ID, _version(0)),
            lambda: self.storage.mark_published(ID, 0),
            lambda: self.storage.open_round(ID, 0),
            lambda: self.storage.release_round(ID, 0, release, contributions=5),
            lambda: self.storage.apply_round(ID, 0, _version(1)),
        ]

    def check(self, folder: Path, done: int) -> None:
        with StateFolder.open(folder / "state", "server") as state:
            storage = open_sqlite(state.path("server.sqlite"), clock=lambda: 7.0)
            events = [entry.event for entry in storage.history(ID)]
            expected = ["submitted", "published", "round_opened", "round_released", "round_applied"]
            assert events[: len(events)] == expected[: len(events)]
            assert len(events) >= done - (done > 1)
            storage.close()

    def close(self) -> None:
        self.storage.close()
        self.state.close()


class DeviceStore:
    """The ledger of a device: a contribution, and an attempt at a session."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "devices" / "00" / "0.sqlite"
        self.store = Store.open_or_create(self.path)
        self.steps: list[Step] = [
            lambda: prepare(self.store, participation()),
            lambda: self.store.settle(TASK, 0, State.SENT),
            lambda: begin_attempt(self.store, TASK, 1, 0),
            lambda: self.store.rate(7, 2.0),
        ]

    def check(self, folder: Path, done: int) -> None:
        with Store.open(folder / "devices" / "00" / "0.sqlite") as store:
            found = store.participation(TASK, 0)
            assert done < 1 or found is not None, "what may have been sent is not in the ledger"
            assert done < 2 or (found is not None and found.state is State.SENT)
            if done >= 3:
                with pytest.raises(PrivacyError, match="attempt 0"):
                    begin_attempt(store, TASK, 1, 0)
            assert done < 4 or store.ratings().items.tolist() == [7]

    def close(self) -> None:
        self.store.close()


class IssuedTokens:
    """The database of an issuer."""

    def __init__(self, folder: Path) -> None:
        self.state = StateFolder.open(folder / "state", "issuer")
        self.storage = IssuerStorage(self.state.path("issuer.sqlite"), health=self.state.health)
        key = KeyRecord(ID, 0, b"d" * 32, enrolment_pb2.SignedTokenKey(token_key=b"k", signature=b"s"), b"p", 2**40)
        self.steps: list[Step] = [lambda: self.storage.add_key(key)]
        self.steps += [functools.partial(self._grant, self.storage, device) for device in range(3)]

    def _grant(self, storage: IssuerStorage, device: int) -> Grant:
        given = storage.grant(bytes([device]) * 32, ID, 0, b"b" * 32, now=1.0, per_device=5, per_round=5)
        assert given in (Grant.NEW, Grant.AGAIN)
        return given

    def check(self, folder: Path, done: int) -> None:
        with StateFolder.open(folder / "state", "issuer") as state:
            storage = IssuerStorage(state.path("issuer.sqlite"))
            assert done == 0 or storage.key(ID, 0) is not None
            for device in range(done - 1):
                assert self._grant(storage, device) is Grant.AGAIN, "a device gets a second token"
            storage.close()

    def close(self) -> None:
        self.storage.close()
        self.state.close()


class Platform:
    """Counters and slots of the emulated platform."""

    def __init__(self, folder: Path) -> None:
        self.platform = EmulatedPlatform.open(folder / "platform")
        self.counter = self.platform.counter("ledger")
        slots = self.platform.slots(IMAGE)
        self.steps: list[Step] = [
            lambda: self.counter.advance(expected=0, to=3), lambda: slots.create("round"),
            lambda: self.counter.advance(expected=3, to=5), lambda: slots.erase(["round"]),
        ]  # fmt: skip

    def check(self, folder: Path, done: int) -> None:
        platform = EmulatedPlatform.open(folder / "platform")
        assert platform.counter("ledger").value >= (0, 3, 3, 5, 5)[done], "a counter went down"
        slot = platform.slots(IMAGE).read("round")
        assert slot is not None if done in (2,) else slot is None or done in (1, 3)

    def close(self) -> None:
        """Nothing is held."""


class Witnessing:
    """What a witness cosigned."""

    def __init__(self, folder: Path) -> None:
        self.state = StateFolder.open(folder / "state", "witness")
        self.witness = Witness(self.state, WITNESS, [KEY.public(Kind.NOTE).text], clock=lambda: NOW)
        self.steps: list[Step] = [functools.partial(self._cosign, self.witness, size) for size in (1, 2, 5)]

    def _cosign(self, witness: Witness, size: int) -> None:
        leaves = [merkle.leaf_hash(entry) for entry in filler(size)]
        last = witness.last(KEY.name).size
        tree = Checkpoint(KEY.name, size, merkle.root_of(leaves))
        note = sign_checkpoint(tree, KEY, now=NOW).encode()
        answer = witness.add_checkpoint(note, old_size=last, proof=_proof(leaves, last))
        assert answer.line is not None

    def check(self, folder: Path, done: int) -> None:
        with StateFolder.open(folder / "state", "witness") as state:
            witness = Witness(state, WITNESS, [KEY.public(Kind.NOTE).text], clock=lambda: NOW)
            assert witness.last(KEY.name).size >= (0, 1, 2, 5)[done], "what was cosigned does not bind it any more"

    def close(self) -> None:
        self.state.close()


SERVICES: dict[str, type[Service]] = {
    "aggregator": Aggregator, "contributions": Contributions, "log": Log, "models": Models, "server": Server,
    "device": DeviceStore, "issuer": IssuedTokens, "platform": Platform, "witness": Witnessing,
}  # fmt: skip


def _task() -> TaskRecord:
    return TaskRecord(sha256=ID, name="films", population="viewers", definition=b"d", signature=b"s", planned_rounds=3)


def _version(number: int) -> NewVersion:
    manifest = common_pb2.SignedManifest(manifest=b"m%d" % number, signature=b"s")
    return NewVersion(version=number, state=b"state", tables=b"tables", manifest=manifest)


def _proof(leaves: Sequence[bytes], first: int) -> list[bytes]:
    def node(level: int, place: int) -> bytes:
        return merkle.root_of(leaves[place << level : (place + 1) << level])

    return merkle.consistency_proof(first, len(leaves), node)
