"""Audits: a true log passes, and whatever is changed in it is named; with real signatures under every lie."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from e2e.world import World, small_task
from trust.log.run import COHORT, IMAGE, Run
from trust.log.world import CHARTER, NOW, a_task

import device_runtime
from odp.algorithms.registry import algorithm_for
from odp.algorithms.release import charges_of
from odp.crypto.note import Kind, Note, NoteKey
from odp.crypto.signing import SigningKey
from odp.datasets import synthetic_movielens
from odp.errors import ConfigurationError, StateError
from odp.privacy.accounting import epsilon
from odp.privacy.ledger_entry import lines_of
from odp.signed.charter import approve, found, open_charter, succeed
from odp.signed.task import model_sha256, task_sha256
from odp.trust.enclave.log_policy import LogPolicy
from odp.trust.enclave.platform import EmulatedPlatform
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.log.audit import audit
from odp.trust.log.entries import (
    CharterEntry,
    EndorsementEntry,
    Entry,
    EvidenceEntry,
    LedgerEntry,
    ManifestEntry,
    PolicyEntry,
    ReleaseEntry,
    TaskEntry,
    WithdrawalEntry,
    decode,
)
from odp.trust.log.log_files import LogFiles
from odp.trust.log.sources import AuditFailure, LogFolder

#: Of the real run: what an audit reads is as long for any number of them.
DEVICES = 6
FILES = ("entries", "hashes", "checkpoint")


@dataclasses.dataclass(frozen=True)
class Finished:
    """The log of a real run, and what its devices pinned."""

    log: Path
    pins: ReferenceValues
    names: tuple[str, str]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Two tasks of one population, one after the other, on the same devices."""
    root = tmp_path_factory.mktemp("run")
    ratings = synthetic_movielens(n_users=DEVICES, n_items=20, ratings_per_user=8, seed=5)
    tasks = [dataclasses.replace(small_task(ratings, epsilon=4.0), name=name) for name in ("films", "films-again")]
    with contextlib.ExitStack() as stack:
        world = World(root, policy=EnclavePolicy(role="aggregator", minimum_cohort=DEVICES)).start(stack)
        for number, task in enumerate(tasks):
            handle = world.connection.submit(task)
            devices = world.devices(
                None if number else ratings, count=DEVICES, limits=device_runtime.Limits(min_cohort=DEVICES)
            )
            world.finish(handle, devices)
    return Finished(root / "server" / "log", ReferenceValues.load(world.reference_values), ("films", "films-again"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(EmulatedPlatform.open(tmp_path_factory.mktemp("platform"), clock=lambda: NOW))


@pytest.fixture
def broken(finished: Finished, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished.log, tmp_path / "log"))


@pytest.mark.slow
def test_the_log_of_a_real_run_passes_and_says_what_it_cost(finished: Finished) -> None:
    report = audit(LogFolder(finished.log), finished.pins)
    assert report.counts == {
        "task": 2, "policy": 2, "endorsement": 2, "withdrawal": 0, "evidence": 1, "model": 6, "release": 4, "ledger": 4,
        "charter": 1, "hand-over": 0, "catalogue": 0,
    }  # fmt: skip
    assert report.checkpoint.checkpoint.size == sum(report.counts.values())
    assert tuple(task.name for task in report.tasks) == finished.names
    for task in report.tasks:
        assert (task.rounds, task.planned_rounds, task.contributions) == (2, 2, (DEVICES, DEVICES))
        assert task.epsilon == pytest.approx(task.charged_epsilon, rel=1e-12)
        assert 3.99 < task.epsilon <= task.budget == 4.0
    definition = _task_of(finished.log)
    algorithm = algorithm_for(definition)
    charges = [event for number in range(2) for event in charges_of(algorithm.query(number))]
    assert report.tasks[0].epsilon == epsilon(charges, delta=definition.privacy.delta)


def _task_of(log: Path) -> Any:
    from odp.v1 import common_pb2

    entries = [decode(data) for data in LogFolder(log).entries(_size(log))]
    first = next(entry for entry in entries if isinstance(entry, TaskEntry))
    return common_pb2.TaskDefinition.FromString(first.definition)


def _size(log: Path) -> int:
    return int((log / "checkpoint").read_bytes().split(b"\n")[1])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("bit", range(8))
@pytest.mark.slow
def test_one_flipped_bit_in_any_stored_file_fails_and_names_the_record(
    finished: Finished, broken: Path, name: str, bit: int
) -> None:
    """Every file; each bit; places spread over the file and at both ends, other ones for each bit."""
    path = broken / name
    data = path.read_bytes()
    draws = random.Random(bit)
    step = len(data) // 12 + 1
    spread = [draws.randrange(start, min(start + step, len(data))) for start in range(0, len(data), step)]
    for place in {0, len(data) - 1, *spread}:
        changed = bytearray(data)
        changed[place] ^= 1 << bit
        path.write_bytes(changed)
        with pytest.raises(AuditFailure) as caught:
            audit(LogFolder(broken), finished.pins)
        assert caught.value.record in _records_at(finished.log, name, place, bytes(changed)), f"byte {place}"
    path.write_bytes(data)
    audit(LogFolder(broken), finished.pins)


def _records_at(log: Path, name: str, place: int, changed: bytes) -> set[str]:
    """How the audit may name what stands at a byte of a file that was changed there."""
    if name == "checkpoint":
        return {"checkpoint"}
    if name == "hashes":
        return {"file 'hashes'"}
    at = 0
    for number, data in enumerate(LogFolder(log).entries(_size(log))):
        end = at + 4 + len(data)
        if at <= place < end:
            # Where the length before the entry or its prefix is damaged, the number may be all there is; where its type
            # is, it may read as one of the other type.
            names = {f"entry {number} ({decode(data).label})"} | ({f"entry {number}"} if place < at + 17 else set())
            if place == at + 16:
                with contextlib.suppress(ConfigurationError):
                    names.add(f"entry {number} ({decode(changed[at + 4 : end]).label})")
            return names
        at = end
    raise AssertionError("beyond the file")


@pytest.mark.slow
def test_bytes_taken_away_or_added_fail_and_name_the_file(finished: Finished, broken: Path) -> None:
    for name, change, record in (
        ("entries", lambda data: data + b"x", "file 'entries'"),
        ("entries", lambda data: data[:-1], "entry "),
        ("hashes", lambda data: data + bytes(32), "file 'hashes'"),
        ("hashes", lambda data: data[:-32], "file 'hashes'"),
        ("checkpoint", lambda data: data + b"\n", "checkpoint"),
        ("checkpoint", lambda data: b"", "checkpoint"),
    ):
        original = (broken / name).read_bytes()
        (broken / name).write_bytes(change(original))
        with pytest.raises(AuditFailure) as caught:
            audit(LogFolder(broken), finished.pins)
        assert caught.value.record.startswith(record)
        (broken / name).write_bytes(original)


@pytest.mark.parametrize("moment", ["entries", "hashes", "checkpoint", "disk full", "no room for the checkpoint"])
def test_r380_an_audit_beside_a_server_that_appends_passes_at_every_moment(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    encoded = [entry.encode() for entry in run.entries()]
    log = LogFiles.open(tmp_path / "log", run.log_key, now=NOW)
    log.append(encoded[:8], now=NOW)
    sizes = []

    def look() -> None:
        sizes.append(audit(LogFolder(log.folder), run.pins()).checkpoint.checkpoint.size)

    write, store = LogFiles._write_at, LogFiles._store

    def writing(self: LogFiles, file: int, start: int, data: bytes) -> None:
        name = "entries" if file == self._entries_file else "hashes"
        if moment == "disk full" and name == "hashes":
            write(self, file, start, data[:17])
            raise OSError(errno.ENOSPC, "no space")
        write(self, file, start, data)
        if moment == name:
            look()

    def storing(self: LogFiles, note: Note) -> None:
        if moment == "no room for the checkpoint":
            raise StateError("disk full")
        store(self, note)
        if moment == "checkpoint":
            look()

    with monkeypatch.context() as patch:
        patch.setattr(LogFiles, "_write_at", writing)
        patch.setattr(LogFiles, "_store", storing)
        # As a server appends: a release together with its ledger.
        place = 8
        while place < len(encoded):
            end = place + (2 if isinstance(decode(encoded[place]), ReleaseEntry) else 1)
            with contextlib.suppress(StateError):
                log.append(encoded[place:end], now=NOW)
            place = end
    if moment in ("disk full", "no room for the checkpoint"):
        look()
        assert sizes == [8]
        log.append(encoded[8:], now=NOW)
        look()
    assert sizes[-1] in (len(encoded) - 2, len(encoded) - 1, len(encoded))
    log.close()
    look()


def test_r380_an_audit_reads_the_entries_of_the_checkpoint_that_it_began_with(run: Run, tmp_path: Path) -> None:
    encoded = [entry.encode() for entry in run.entries()]
    with LogFiles.open(tmp_path / "log", run.log_key, now=NOW) as log:
        log.append(encoded[:8], now=NOW)

        class Growing(LogFolder):
            """A server appends, and ends, after the auditor has read the checkpoint."""

            def note(self) -> bytes:
                found = super().note()
                if log._entries_file >= 0:
                    log.append(encoded[8:], now=NOW)
                    log.close()
                return found

        assert audit(Growing(log.folder), run.pins()).checkpoint.checkpoint.size == 8


def test_r380_an_audit_waits_for_the_witnesses_of_a_log_that_is_written(run: Run, tmp_path: Path) -> None:
    witness, pinned = NoteKey.generate("example.com/w"), run.pins().log
    assert pinned is not None
    policy = dataclasses.replace(pinned, witness_keys=(witness.public(Kind.COSIGNATURE).text,), quorum=1)
    encoded = [entry.encode() for entry in run.entries()]
    with LogFiles.open(tmp_path / "log", run.log_key, now=NOW) as log:
        log.append(encoded, now=NOW)

        class Awaited(LogFolder):
            """The witness cosigns after the auditor's first look."""

            looks = 0

            def note(self) -> bytes:
                if self.looks:
                    body = Note.parse(super().note()).body
                    log.add_cosignatures(body, [witness.cosign(body, now=NOW)])
                self.looks += 1
                return super().note()

        source = Awaited(log.folder)
        assert audit(source, run.pins(log=policy)).checkpoint.checkpoint.size == len(encoded)
        assert source.looks > 1


def test_an_older_state_of_a_log_is_a_true_log_of_that_time(run: Run, tmp_path: Path) -> None:
    """Why one remembers checkpoints and asks witnesses: an audit alone cannot know what is not shown."""
    entries = run.entries()
    whole = audit(LogFolder(run.write(tmp_path / "whole", entries)), run.pins())
    older = audit(LogFolder(run.write(tmp_path / "older", entries[:8])), run.pins())
    assert [task.rounds for task in (*whole.tasks, *older.tasks)] == [2, 1]


Change = Callable[[Run, list[Entry]], Sequence[Entry | bytes]]


def _at(entries: Sequence[Entry], kind: type, number: int = 0) -> int:
    return [place for place, entry in enumerate(entries) if isinstance(entry, kind)][number]


def _without(kind: type, number: int = 0) -> Change:
    def change(run: Run, entries: list[Entry]) -> list[Entry]:
        del entries[_at(entries, kind, number)]
        return entries

    return change


def _instead(kind: type, number: int, make: Callable[[Run], Entry | bytes]) -> Change:
    def change(run: Run, entries: list[Entry]) -> Sequence[Entry | bytes]:
        changed: list[Entry | bytes] = list(entries)
        changed[_at(entries, kind, number)] = make(run)
        return changed

    return change


def _swapped(kind: type, first: int, second: int) -> Change:
    def change(run: Run, entries: list[Entry]) -> list[Entry]:
        one, two = _at(entries, kind, first), _at(entries, kind, second)
        entries[one], entries[two] = entries[two], entries[one]
        return entries

    return change


def _behind(kind: type, number: int, make: Callable[[Run], Entry]) -> Change:
    def change(run: Run, entries: list[Entry]) -> list[Entry]:
        entries.insert(_at(entries, kind, number) + 1, make(run))
        return entries

    return change


def _release(number: int, change: Callable[[Any], None]) -> Change:
    return _instead(ReleaseEntry, number, lambda run: run.release(number, change=change))


def _set(**values: object) -> Callable[[Any], None]:
    def change(release: Any) -> None:
        for name, value in values.items():
            setattr(release, name, value)

    return change


def _with_another_charge(run: Run) -> Entry:
    """A ledger that charges a task which nobody can see in the log."""
    return run.ledger(
        1, ledger=run.charge(run.ledgers[1], 0, task_id=task_sha256(a_task(run.developer, name="hidden")))
    )


def _smaller_cohort(run: Run) -> Entry:
    return run.ledger(
        0, ledger=run.charge(dataclasses.replace(run.ledgers[0], entries=()), 0, contributions=COHORT - 1)
    )


def _understated(run: Run) -> Entry:
    """The chain holds and the signature too: only whoever recomputes epsilon notices."""
    ledger = run.ledgers[0]
    first = dataclasses.replace(ledger.entries[0], task_epsilon=ledger.entries[0].task_epsilon / 2)
    second = dataclasses.replace(ledger.entries[1], task_epsilon=first.task_epsilon, previous=first.sha256)
    return run.ledger(0, ledger=dataclasses.replace(ledger, entries=(first, second)))


def _charter(founder: SigningKey) -> CharterEntry:
    return CharterEntry.of(approve(found("people", owners=[founder.public]), founder))


def _retiring(run: Run, *, by: SigningKey | None = None) -> CharterEntry:
    """The developer leaves the population to somebody else."""
    after = succeed(open_charter(CHARTER), owners=[SigningKey.generate().public])
    return CharterEntry.of(approve(after, by or run.developer))


def _another_draw(release: Any) -> None:
    """What a second release of the same round would be: other noise, everything else alike."""
    release.tensors[0].integers = bytes([1]) + release.tensors[0].integers[1:]


OTHER_IMAGE = "sha384:" + "0" * 96

LIES: dict[str, tuple[Change, str, str]] = {
    "a task of another developer's key": (
        _instead(TaskEntry, 0, lambda run: TaskEntry(run.task.definition, bytes(64))), "(task 'films')", "signature"),
    "no task": (_without(TaskEntry), "(model version 0)", "is not in the log before it"),
    "no policy": (_without(PolicyEntry), "(endorsement)", "policy"),
    "a policy in another spelling": (
        _instead(PolicyEntry, 0, lambda run: PolicyEntry(b"{}")), "(policy)", "Missing key"),
    "no endorsement": (_without(EndorsementEntry), "(charter of 'people')", "not a founder"),
    "an endorsement by somebody else": (
        _instead(EndorsementEntry, 0, lambda run: run.endorsement(key=SigningKey.generate())[0]),
        "(endorsement)", "not a pinned endorser"),
    "an endorsement of another image": (
        _instead(EndorsementEntry, 0, lambda run: run.endorsement(image_digest="sha384:" + "0" * 96)[0]),
        "(evidence)", "no standing endorsement"),
    "an endorsement that ended before": (
        _instead(EndorsementEntry, 0, lambda run: run.endorsement(not_after=int(NOW) - 1)[0]),
        "(evidence)", "no standing endorsement"),
    "an endorsement after the evidence": (
        lambda run, entries: [
            *entries[: _at(entries, EvidenceEntry)], run.evidence(image=OTHER_IMAGE),
            run.endorsement(image_digest=OTHER_IMAGE)[0], *entries[_at(entries, EvidenceEntry) :],
        ],
        "(evidence)", "no standing endorsement"),
    "an endorsement after the charter": (
        lambda run, entries: [entries[0], entries[2], entries[1], *entries[3:]],
        "(charter of 'people')", "not a founder"),
    "a withdrawal before the evidence": (
        _behind(ManifestEntry, 0, lambda run: run.endorsement()[1]), "(evidence)", "no standing endorsement"),
    "a withdrawal between two releases": (
        _behind(LedgerEntry, 0, lambda run: run.endorsement()[1]), "(release of round 1)", "was withdrawn at entry 8"),
    "no charter": (_without(CharterEntry), "(task 'films')", "no charter in the log"),
    "a population that a stranger founded": (
        _instead(CharterEntry, 0, lambda run: _charter(SigningKey.generate())),
        "(charter of 'people')", "not a founder"),
    "a charter that its founder did not sign": (
        _instead(CharterEntry, 0, lambda run: dataclasses.replace(
            _charter(run.developer), approvals=run.developer.public + bytes(64))),
        "(charter of 'people')", "signature"),
    "a population of other owners": (
        _instead(CharterEntry, 0, lambda run: CharterEntry.of(
            approve(found("people", owners=[SigningKey.generate().public]), run.developer))),
        "(task 'films')", "belongs to other keys"),
    "a population that is founded twice": (
        _behind(CharterEntry, 0, lambda run: CharterEntry.of(
            approve(found("people", owners=[run.developer.public, SigningKey.generate().public]), run.developer))),
        "(charter of 'people')", "does not follow"),
    "a change of owners by a stranger": (
        _behind(CharterEntry, 0, lambda run: _retiring(run, by=SigningKey.generate())),
        "(charter of 'people')", "is not an owner"),
    "a model of a key that was retired": (
        _behind(LedgerEntry, 0, lambda run: _retiring(run)), "(model version 1)", "belongs to other keys"),
    "a release of a key that was retired": (
        _behind(ManifestEntry, 1, lambda run: _retiring(run)), "(release of round 1)", "belongs to other keys"),
    "evidence with another charter": (
        _instead(EvidenceEntry, 0, lambda run: run.evidence(charter=bytes(32))), "(evidence)", "shows a charter"),
    "a ledger that seals another release": (
        _instead(ReleaseEntry, 0, lambda run: run.release(0, change=_another_draw)),
        "(ledger of round 0)", "seals another release"),
    "a withdrawal of nothing": (
        _behind(EndorsementEntry, 0, lambda run: run.endorsement(not_after=int(NOW) + 5)[1]),
        "(withdrawal)", "is not in the log before it"),
    "no evidence": (_without(EvidenceEntry), "(release of round 0)", "no aggregator whose evidence"),
    "evidence of other code": (
        _instead(EvidenceEntry, 0, lambda run: run.evidence(image="sha384:" + "0" * 96)),
        "(evidence)", "no standing endorsement"),
    "evidence of another key": (
        _instead(EvidenceEntry, 0, lambda run: run.evidence(key=SigningKey.generate())),
        "(release of round 0)", "no aggregator whose evidence"),
    "evidence of another role": (
        _instead(EvidenceEntry, 0, lambda run: run.evidence(role="distributor")), "(evidence)", "no standing"),
    "evidence that was changed": (
        _instead(EvidenceEntry, 0, lambda run: dataclasses.replace(
            run.evidence(), token=run.evidence().token[:-4] + b"AAAA")),
        "(evidence)", "evidence refused"),
    "a model left out": (_without(ManifestEntry, 1), "(release of round 1)", "the model that it was made with"),
    "the first model left out": (_without(ManifestEntry), "(release of round 0)", "the model that it was made with"),
    "a second model of one version": (
        _behind(ManifestEntry, 0, lambda run: ManifestEntry.of(run.models[2])), "(model version 2)", "1 comes next"),
    "a model that the developer did not sign": (
        _instead(ManifestEntry, 0, lambda run: ManifestEntry(run.models[0].manifest, bytes(64))),
        "(model version 0)", "signature"),
    "a release left out": (_without(ReleaseEntry), "(ledger of round 0)", "whose release is not the last one"),
    "releases out of order": (_swapped(ReleaseEntry, 0, 1), "(release of round 1)", "0 comes next"),
    "a release of somebody else": (
        _instead(ReleaseEntry, 0, lambda run: run.release(0, key=SigningKey.generate())),
        "(release of round 0)", "no aggregator whose evidence"),
    "a release of another model": (
        _release(1, lambda release: setattr(release, "model_sha256", bytes(32))),
        "(release of round 1)", "the model that it was made with"),
    "a release from too few": (_release(0, _set(contributions=1)), "(release of round 0)", "fewer than"),
    "a release with less noise": (
        _release(0, lambda release: setattr(release.charges[0], "noise_std", 0.1)),
        "(release of round 0)", "not those that its task declares"),
    "a release without a charge": (
        _release(0, lambda release: release.ClearField("charges")), "(release of round 0)", "declares"),
    "a release with one tensor more": (
        _release(0, lambda release: release.tensors.add().CopyFrom(release.tensors[0])),
        "(release of round 0)", "its tensors"),
    "a release on another grid": (
        _release(0, lambda release: setattr(release.tensors[0], "step", 0.5)), "(release of round 0)", "step"),
    "a release that understates epsilon": (
        _release(1, _set(epsilon_spent=0.5, epsilon_remaining=7.5)), "(release of round 1)", "its charges so far give"),
    "a release above its budget": (
        _release(1, _set(epsilon_spent=8.5, epsilon_remaining=0.0)), "(release of round 1)", "above the task's budget"),
    "a release that overstates what is left": (
        _release(0, _set(epsilon_remaining=8.0)), "(release of round 0)", "remaining"),
    "a ledger left out": (_without(LedgerEntry), "(ledger of round 1)", "whose release is not the last one"),
    "the last ledger left out": (_without(LedgerEntry, 1), "release of round 1 of task 'films'", "no ledger"),
    "a ledger of somebody else": (
        _instead(LedgerEntry, 0, lambda run: dataclasses.replace(run.ledger(0), signature=bytes(64))),
        "(ledger of round 0)", "no aggregator whose evidence"),
    "an old ledger for a later round": (
        _instead(LedgerEntry, 1, lambda run: run.ledger(1, ledger=run.ledgers[0])),
        "(ledger of round 1)", "does not charge the release of round 1"),
    "a ledger that does not continue the one before": (
        lambda run, entries: [
            *(entry for place, entry in enumerate(entries) if place < _at(entries, LedgerEntry)),
            run.ledger(0, ledger=run.charge(run.ledgers[0], 1)),
            *entries[_at(entries, LedgerEntry) + 1 : _at(entries, LedgerEntry, 1)],
            run.ledger(1, ledger=run.charge(run.charge(dataclasses.replace(run.ledgers[0], entries=()), 1), 0)),
        ],
        "(ledger of round 1)", "does not continue"),
    "a ledger with a broken chain": (
        _instead(LedgerEntry, 0, lambda run: run.ledger(0, lines=run.ledger(0).lines.replace(
            b'"noise_id":""', b'"noise_id":"00"', 1))),
        "(ledger of round 0)", "altered|chain"),
    "entries of a ledger that are held back": (
        _instead(LedgerEntry, 0, lambda run: run.ledger(0, lines=b"")), "(ledger of round 0)", "does not lead to its"),
    "an entry of a ledger that is logged twice": (
        _instead(LedgerEntry, 1, lambda run: run.ledger(1, lines=lines_of(run.ledgers[1].entries[1:]))),
        "(ledger of round 1)", "does not continue"),
    "a ledger with another cohort": (_instead(LedgerEntry, 0, _smaller_cohort), "(ledger of round 0)", "cohort"),
    "a ledger that understates epsilon": (
        _instead(LedgerEntry, 0, _understated), "(ledger of round 0)", "states an epsilon its events do not have"),
    "a ledger that charges a hidden task": (
        _instead(LedgerEntry, 1, _with_another_charge), "(ledger of round 1)", "is not in the log before it"),
    "something that is no entry": (
        _instead(PolicyEntry, 0, lambda run: b"free text"), "entry 0", "Expected an entry"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_every_lie_is_named_although_every_signature_of_the_log_holds(run: Run, tmp_path: Path, lie: str) -> None:
    change, record, reason = LIES[lie]
    folder = run.write(tmp_path / "log", change(run, run.entries()))
    with pytest.raises(AuditFailure, match=reason) as caught:
        audit(LogFolder(folder), run.pins())
    assert record in caught.value.record


def test_the_truth_that_the_lies_are_made_from_passes(run: Run, tmp_path: Path) -> None:
    report = audit(LogFolder(run.write(tmp_path / "log", run.entries())), run.pins())
    (task,) = report.tasks
    assert (task.rounds, task.contributions, task.budget) == (2, (COHORT, COHORT), 8.0)
    assert run.models[0] != run.models[1]
    assert model_sha256(run.models[0]) != model_sha256(run.models[1])


def test_emulated_enclaves_and_unknown_platforms_fail_where_they_are_not_pinned(run: Run, tmp_path: Path) -> None:
    folder = run.write(tmp_path / "log", run.entries())
    other = EmulatedPlatform.open(tmp_path / "platform", clock=lambda: NOW)
    for changes, reason in (
        ({"allow_emulated": False}, "emulated_not_allowed"),
        ({"roots": (other.root_certificate_pem,)}, "wrong_root"),
    ):
        with pytest.raises(AuditFailure, match=reason) as caught:
            audit(LogFolder(folder), run.pins(**changes))
        assert caught.value.record == "entry 5 (evidence)"


def test_the_pins_decide_whose_log_it_is(run: Run, tmp_path: Path) -> None:
    folder, stranger = run.write(tmp_path / "log", run.entries()), NoteKey.generate(run.log_key.name)
    pinned = run.pins().log
    assert pinned is not None
    witness = NoteKey.generate("example.com/w")
    for policy, reason in (
        (dataclasses.replace(pinned, log_keys=(stranger.public(Kind.NOTE).text,)), "wrong_log_key"),
        (
            dataclasses.replace(pinned, witness_keys=(witness.public(Kind.COSIGNATURE).text,), quorum=1),
            "witness_quorum",
        ),
        (dataclasses.replace(pinned, endorser_keys=()), "not a pinned endorser"),
    ):
        with pytest.raises(AuditFailure, match=reason):
            audit(LogFolder(folder), run.pins(log=policy))
    with pytest.raises(ConfigurationError, match="pin nothing to audit against"):
        audit(LogFolder(folder), run.pins(log=None))
    with pytest.raises(ConfigurationError, match="holds no log"):
        LogFolder(tmp_path)


def test_a_line_of_a_key_that_is_not_pinned_fails(run: Run, tmp_path: Path) -> None:
    folder = run.write(tmp_path / "log", run.entries())
    note = Note.parse((folder / "checkpoint").read_bytes())
    line = NoteKey.generate("example.com/w").cosign(note.body, now=NOW)
    (folder / "checkpoint").write_bytes(note.with_lines([line]).encode())
    with pytest.raises(AuditFailure, match="not pinned") as caught:
        audit(LogFolder(folder), run.pins())
    assert caught.value.record == "checkpoint"


def test_image_and_policy_come_from_the_endorsement_and_not_from_the_pins(run: Run, tmp_path: Path) -> None:
    """Older code that was endorsed at its time stays valid in the log when the pins name newer code alone."""
    newer = {"aggregator": ("sha384:" + "9" * 96,)}
    assert IMAGE not in newer["aggregator"]
    audit(LogFolder(run.write(tmp_path / "log", run.entries())), run.pins(image_digests=newer))
    assert isinstance(run.pins().log, LogPolicy)
    assert isinstance(run.endorsement()[1], WithdrawalEntry)
