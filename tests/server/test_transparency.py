"""What the server logs, exactly once each, and what it proves to devices."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from odp.crypto.note import Kind, NoteKey
from odp.crypto.signing import SigningKey
from odp.errors import ConfigurationError, DiskFull, ServiceUnavailable, StateError
from odp.transport.sweeping import DAY
from odp.trust.enclave.identity import EnclaveIdentity
from odp.trust.enclave.log_policy import LogPolicy
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.log.audit import AuditReport, audit
from odp.trust.log.client import LogMemory
from odp.trust.log.endorsements import Changed, EndorsementFile, endorse
from odp.trust.log.entries import EvidenceEntry, HandOverEntry, PolicyEntry, decode
from odp.trust.log.log_files import LogFiles
from odp.trust.log.proofs import LogGuard
from odp.trust.log.sources import LogFolder
from odp.v1 import attestation_pb2, common_pb2, hand_over_pb2
from server import transparency
from server.transparency import FRESH_SECONDS, KnownWitness, LogKeeper, read_witness
from server.upkeep import Upkeep
from tests.server.stepping import step_once

KEY = NoteKey.generate("example.com/log")
ENDORSER = SigningKey.generate()


class Kept:
    """A keeper on one folder that a test starts again and again, as a server that dies would."""

    def __init__(self, world: Any, folder: Path) -> None:
        self.world = world
        self.folder = folder
        # Evidence has the real time, since it comes from a real service.
        policy = world.services.policy
        entry, self.withdrawal = endorse(
            ENDORSER, role="aggregator", image_digest=world.services.identity.image_digest,
            policy_sha256=policy.sha256.hex(), not_before=0, not_after=2**39,
        )  # fmt: skip
        self.endorsements = EndorsementFile((PolicyEntry(policy.to_bytes()),), (entry,))
        self.open: LogFiles | None = None

    def start(self, *, endorsements: EndorsementFile | None = None) -> LogKeeper:
        if self.open is not None:
            self.open.close()
        self.open = LogFiles.open(self.folder, KEY, now=self.world.clock())
        return LogKeeper(
            self.open, endorsements=endorsements or self.endorsements, events=self.world.log, clock=self.world.clock
        )

    @property
    def pins(self) -> ReferenceValues:
        values: ReferenceValues = self.world.services.reference_values()
        log = LogPolicy(log_keys=(KEY.public(Kind.NOTE).text,), endorser_keys=(ENDORSER.public.hex(),))
        return ReferenceValues(values.roots, {}, {}, allow_emulated=True, log=log)

    def audit(self) -> AuditReport:
        return audit(LogFolder(self.folder), self.pins)


@pytest.fixture
def kept(world: Any, tmp_path: Path) -> Iterator[Kept]:
    made = Kept(world, tmp_path / "log")
    yield made
    if made.open is not None:
        made.open.close()


@pytest.fixture
def runnable(definition: Any) -> Any:
    """The task, with a cohort that the fake aggregator's policy allows."""
    definition.cohort.minimum, definition.cohort.goal = 100, 120
    return definition


EXPECTED = {
    "task": 1, "policy": 1, "endorsement": 1, "withdrawal": 0, "evidence": 1, "model": 4, "release": 3, "ledger": 3,
    "charter": 1, "hand-over": 0, "catalogue": 0,
}  # fmt: skip


def _truthful(release: Any) -> None:
    """The fake's releases state what a real enclave would."""
    from odp.algorithms.registry import algorithm_for
    from odp.algorithms.release import charge_of, charges_of
    from odp.privacy.accounting import epsilon

    definition = _truthful.definition  # type: ignore[attr-defined]  # set by the test
    query = algorithm_for(definition).query
    release.charges.extend(charge_of(event) for event in charges_of(query(release.round)))
    events = [event for number in range(release.round + 1) for event in charges_of(query(number))]
    release.epsilon_spent = epsilon(events, delta=definition.privacy.delta)
    release.epsilon_remaining = max(0.0, definition.privacy.epsilon - release.epsilon_spent)


@pytest.fixture
def truthful(world: Any, runnable: Any) -> None:
    world.aggregator.contributions = 120
    _truthful.definition = runnable  # type: ignore[attr-defined]
    world.aggregator.tamper = _truthful


@pytest.mark.usefixtures("truthful")
def test_a_task_is_logged_with_everything_that_an_audit_needs(world: Any, runnable: Any, kept: Kept) -> None:
    world.submit(runnable)
    keeper = kept.start()
    world.run(world.driver(keeper=keeper))
    report = kept.audit()
    assert report.counts == EXPECTED
    (task,) = report.tasks
    assert (task.rounds, task.planned_rounds, task.contributions) == (3, 3, (120,) * 3)


def _what(arguments: tuple[Any, ...]) -> object:
    """What a call is about; evidence is another one each time."""
    *_, last = arguments
    if isinstance(last, list):
        return tuple(entry for entry in last if not isinstance(decode(entry), EvidenceEntry))
    return repr([one for one in arguments if isinstance(one, (bytes, int))])


@pytest.mark.usefixtures("truthful")
def test_a_server_that_dies_at_any_call_logs_everything_once(
    world: Any, runnable: Any, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dies once before and once after each batch of the log and each change of the database, and is started again."""
    world.submit(runnable)
    died: set[tuple[object, ...]] = set()

    def dying(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **keywords: Any) -> Any:
            point = (name, _what(arguments))
            for moment in ("before", "after"):
                if moment == "after":
                    result = real(*arguments, **keywords)
                if (moment, *point) not in died:
                    died.add((moment, *point))
                    raise KeyboardInterrupt
            return result

        return wrapper

    with monkeypatch.context() as patched:
        patched.setattr(LogFiles, "append", dying("append", LogFiles.append))
        for name in ("add_first_version", "mark_published", "open_round", "release_round", "apply_round", "end_task"):
            patched.setattr(world.storage, name, dying(name, getattr(world.storage, name)))
        for _ in range(200):
            try:
                world.run(world.driver(keeper=kept.start()))
            except KeyboardInterrupt:
                continue
            break
    assert len(died) > 40
    assert kept.audit().counts == EXPECTED


@pytest.mark.usefixtures("truthful")
def test_devices_get_proofs_that_verify_with_each_assignment_and_model(world: Any, runnable: Any, kept: Kept) -> None:
    sha256 = world.submit(runnable)
    keeper = kept.start()
    populations = world.populations(keeper=keeper)
    board = world.board(charter=populations.newest, proof=keeper.proof)
    driver = world.driver(keeper=keeper, board=board, populations=populations)
    pinned = kept.pins.log
    assert pinned is not None
    assert kept.open is not None
    guard = LogGuard(LogMemory(pinned, None, kept.open.hashes), clock=world.clock)
    rounds = Counter[int]()
    for _ in range(30):
        step_once(driver)
        answer = board.answer("viewers")
        if answer.HasField("assignment"):
            given = answer.assignment
            (logged,) = guard.logged(given.log, task=given.task, model=given.model, charter=given.charter)
            assert logged.endorsement.image_digest == world.services.identity.image_digest
            rounds[given.round] += 1
        model = board.model("viewers")
        if model is not None:
            guard.logged(model.log, task=model.task, model=model.model, charter=model.charter)
    assert sorted(rounds) == [0, 1, 2]
    assert world.storage.task(sha256).state.name == "FINISHED"


def test_what_is_not_in_the_log_is_given_no_proof(world: Any, runnable: Any, kept: Kept) -> None:
    sha256 = world.submit(runnable)
    keeper = kept.start()
    driver = world.driver()  # one that logs nothing
    for _ in range(3):
        step_once(driver)
    version = world.storage.newest_version(sha256)
    charter = world.populations().newest("viewers")
    assert charter is not None
    assert keeper.proof(world.storage.task(sha256).signed, version.signed, charter) is None
    assert keeper.proof(world.storage.task(sha256).signed, version.signed, None) is None


def test_the_newest_checkpoint_is_signed_again_every_minute(world: Any, kept: Kept) -> None:
    keeper = kept.start()
    assert kept.open is not None
    tree = kept.open.checkpoint
    assert not keeper.keep_fresh()
    world.clock.now += FRESH_SECONDS
    assert keeper.keep_fresh()
    assert not keeper.keep_fresh()
    assert kept.open.checkpoint == tree
    pinned = kept.pins.log
    assert pinned is not None
    memory = LogMemory(pinned, None, kept.open.hashes)
    memory.accept(kept.open.note, now=world.clock())
    world.clock.now -= 3 * FRESH_SECONDS
    assert keeper.keep_fresh(), "a clock that was set back"


def test_r251_new_endorsements_are_taken_up_without_a_restart_and_warned_of_before_they_end(
    world: Any, kept: Kept
) -> None:
    policy, now = world.services.policy, int(world.clock())

    def endorsed(days: float) -> EndorsementFile:
        entry, _ = endorse(
            ENDORSER, role="aggregator", image_digest=world.services.identity.image_digest,
            policy_sha256=policy.sha256.hex(), not_before=now - 10, not_after=now + int(days * DAY),
        )  # fmt: skip
        return EndorsementFile((PolicyEntry(policy.to_bytes()),), (entry,))

    soon, later = endorsed(31), endorsed(365)
    keeper = kept.start(endorsements=soon)
    assert kept.open is not None
    keeper.take_endorsements(soon)
    assert "endorsement_expires" not in world.lines.text
    world.clock.now += 2 * DAY
    keeper.take_endorsements(soon)
    assert world.lines.text.count("endorsement_expires") == 1
    assert "role=aggregator" in world.lines.text
    assert "days=29" in world.lines.text
    size = kept.open.size
    keeper.take_endorsements(EndorsementFile(soon.policies, (*soon.endorsements, *later.endorsements)))
    assert kept.open.size == size + 1
    assert world.lines.text.count("endorsement_expires") == 1, "another one holds for longer"


@pytest.mark.usefixtures("truthful")
def test_a_withdrawal_is_logged_with_the_next_start_and_its_endorsement_no_longer_given(
    world: Any, runnable: Any, kept: Kept
) -> None:
    sha256 = world.submit(runnable)
    keeper = kept.start()
    driver = world.driver(keeper=keeper)
    for _ in range(3):
        step_once(driver)
    task, model = world.storage.task(sha256).signed, world.storage.newest_version(sha256).signed
    charter = world.populations().newest("viewers")
    proof = keeper.proof(task, model, charter)
    assert proof is not None
    assert len(proof.endorsements) == 1
    world.clock.now += 400 * DAY
    leapt = keeper.proof(task, model, charter)
    world.clock.now -= 400 * DAY
    assert leapt is not None
    assert leapt.endorsements == proof.endorsements, "devices judge by their own clocks"
    withdrawn = EndorsementFile(kept.endorsements.policies, kept.endorsements.endorsements, (kept.withdrawal,))
    keeper = kept.start(endorsements=withdrawn)
    proof = keeper.proof(task, model, charter)
    assert proof is not None
    assert not proof.endorsements
    assert kept.open is not None
    assert decode(kept.open.entry(kept.open.size - 1)) == kept.withdrawal


def test_a_log_that_cannot_be_written_makes_the_task_wait(
    world: Any, runnable: Any, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha256 = world.submit(runnable)
    driver = world.driver(keeper=kept.start())

    def full(*_: Any, **__: Any) -> None:
        raise StateError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(LogFiles, "append", full)
        assert not step_once(driver)
        assert world.lines.wait_for("task_waits")
        assert world.storage.newest_version(sha256) is None, "nothing follows from what is not logged"
    world.monotonic.now += 60
    assert step_once(driver)


@pytest.mark.parametrize(
    "text",
    ["", "host:1", "host=KEY", "127.0.0.1:1=junk", f"host:1={KEY.public(Kind.NOTE).text}"],
    ids=["empty", "no key", "no port", "junk", "the log's own kind of key"],
)
def test_a_witness_that_is_misspelt_is_named(text: str) -> None:
    with pytest.raises(ConfigurationError):
        read_witness(text)
    right = KEY.public(Kind.COSIGNATURE)
    assert read_witness(f"host:1={right.text}") == ("host:1", right)


def test_endorsements_that_change_while_the_server_runs_are_logged_and_a_damaged_file_is_left(
    kept: Kept, tmp_path: Path
) -> None:
    file = tmp_path / "endorsements.json"
    EndorsementFile(kept.endorsements.policies, (), ()).save(file)
    keeper = kept.start(endorsements=EndorsementFile.load(file))
    keeper._reread = Changed(file)
    assert kept.open is not None
    size = kept.open.size
    kept.endorsements.save(file)
    keeper.reread_endorsements()
    assert kept.open.size == size + 1
    file.write_text("{")
    keeper.reread_endorsements()
    EndorsementFile(kept.endorsements.policies, kept.endorsements.endorsements, (kept.withdrawal,)).save(file)
    keeper.reread_endorsements()
    keeper.reread_endorsements()
    assert kept.open.size == size + 2


def test_r376_a_server_that_does_not_lead_the_log_proves_new_endorsements_too(kept: Kept, tmp_path: Path) -> None:
    """Devices of an upgraded enclave ask any of the servers that share a log."""
    file = tmp_path / "endorsements.json"
    EndorsementFile(kept.endorsements.policies, (), ()).save(file)
    keeper = kept.start(endorsements=EndorsementFile.load(file))
    keeper._reread = Changed(file)
    refreshed: list[bool] = []
    nothing: Any = SimpleNamespace(lease=lambda what: None, refresh=lambda: refreshed.append(True))
    upkeep = Upkeep(nothing, leads=nothing, board=nothing, distributor=nothing, keeper=keeper, log=nothing)
    upkeep.keep_log_fresh()
    assert (keeper._standing_endorsements(), refreshed) == ([], [])
    kept.endorsements.save(file)
    upkeep.keep_log_fresh()
    assert [entry for _, entry in keeper._standing_endorsements()] == list(kept.endorsements.endorsements)
    assert refreshed == [True]


class Hangs:
    """A witness that takes connections, and answers nothing until the test is over."""

    def __init__(self) -> None:
        self.over, self.asked = threading.Event(), threading.Event()
        self.hangs = False

    def add_checkpoint(self, note: bytes, *, old_size: int, hashes: bytes) -> Any:
        if self.hangs:
            self.asked.set()
            self.over.wait(60.0)
        raise ServiceUnavailable("the witness did not answer in time")


@pytest.mark.usefixtures("truthful")
def test_r288_a_witness_that_hangs_holds_up_no_task(
    world: Any, runnable: Any, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transparency, "_PATIENCE_SECONDS", 0.0)
    witness = Hangs()
    key = NoteKey.generate("example.com/witness").public(Kind.COSIGNATURE)
    kept.open = LogFiles.open(kept.folder, KEY, now=world.clock())
    keeper = LogKeeper(
        kept.open, endorsements=kept.endorsements, events=world.log, clock=world.clock,
        witnesses=[KnownWitness(key, witness)],
    )  # fmt: skip
    witness.hangs = True
    world.clock.now += 10.0
    driver = world.driver(keeper=keeper)
    driver.start()
    try:
        assert witness.asked.wait(30.0)
        world.submit(runnable)
        driver.wake()
        assert world.lines.wait_for("task_finished")
    finally:
        witness.over.set()
        driver.stop()


@pytest.mark.parametrize(("begins", "ends"), [(0, 1), (2**38, 2**39)])
def test_r438_evidence_from_a_clock_that_leapt_waits_and_fails_no_later_audit(
    begins: int, ends: int, world: Any, kept: Kept
) -> None:
    identity, policy = world.services.identity, world.services.policy

    class Leapt:
        def evidence(self, nonce: bytes) -> attestation_pb2.GetEvidenceResponse:
            shown = identity.evidence(nonce)
            return attestation_pb2.GetEvidenceResponse(
                token=shown.token, policy=shown.policy, event_log=shown.event_log
            )

    entry, _ = endorse(
        ENDORSER, role="aggregator", image_digest=identity.image_digest, policy_sha256=policy.sha256.hex(),
        not_before=begins, not_after=ends,
    )  # fmt: skip
    keeper = kept.start(endorsements=EndorsementFile((PolicyEntry(policy.to_bytes()),), (entry,)))
    release = common_pb2.SignedRelease(release=b"release")
    with pytest.raises(ServiceUnavailable, match="when no endorsement of its code holds: check its clock"):
        keeper.log_round(bytes(32), 0, release, population="viewers", aggregator=Leapt())  # type: ignore[arg-type]
    assert kept.open is not None
    logged = [decode(kept.open.entry(index)) for index in range(kept.open.size)]
    assert not any(isinstance(each, EvidenceEntry) for each in logged)


def test_r288_an_aggregator_that_does_not_answer_keeps_no_checkpoint_from_being_signed(world: Any, kept: Kept) -> None:
    over, asked = threading.Event(), threading.Event()

    class Silent:
        def evidence(self, nonce: bytes) -> Any:
            asked.set()
            over.wait(60.0)
            raise ServiceUnavailable("the aggregator did not answer in time")

    keeper = kept.start()
    release = common_pb2.SignedRelease(release=b"release")

    def log_round() -> None:
        with contextlib.suppress(ServiceUnavailable):
            keeper.log_round(bytes(32), 0, release, population="viewers", aggregator=Silent())  # type: ignore[arg-type]

    logging = threading.Thread(target=log_round, daemon=True)
    logging.start()
    try:
        assert asked.wait(30.0)
        world.clock.now += FRESH_SECONDS
        signed = threading.Event()
        threading.Thread(target=lambda: keeper.keep_fresh() and signed.set(), daemon=True).start()
        assert signed.wait(30.0)
    finally:
        over.set()
        logging.join()


@pytest.mark.usefixtures("truthful")
def test_r287_what_could_not_be_logged_is_logged_whole_at_the_next_try(
    world: Any, runnable: Any, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when a population's hand-over is logged: a later audit still finds who signed it."""
    guest = world.services.platform.launch(
        image_digest="sha384:" + "cd" * 48, policy=world.services.policy.to_bytes(), name="aggregator"
    )
    before, _ = EnclaveIdentity.restore_or_create(guest=guest, sealed=None)
    evidence = before.evidence(bytes(32))
    statement = hand_over_pb2.HandOverStatement(predecessor_image="sha384:" + "cd" * 48).SerializeToString()
    given = hand_over_pb2.HandOver(
        statement=statement, signature=bytes(64),
        evidence=attestation_pb2.GetEvidenceResponse(
            token=evidence.token, policy=evidence.policy, event_log=evidence.event_log),
    )  # fmt: skip
    world.aggregator.hand_overs = [given]
    world.submit(runnable)
    driver = world.driver(keeper=kept.start())
    append, full = LogFiles.append, [True]

    def fails_once(self: LogFiles, entries: Any, **given: Any) -> list[int]:
        if full and HandOverEntry(statement, bytes(64)).encode() in entries:
            full.clear()
            raise DiskFull("disk full")
        return append(self, entries, **given)

    monkeypatch.setattr(LogFiles, "append", fails_once)
    world.run(driver)
    assert not full, "the hand-over was to be logged"
    world.monotonic.now += 60
    world.run(driver)
    assert kept.open is not None
    entries = [decode(kept.open.entry(number)) for number in range(kept.open.size)]
    (place,) = [place for place, entry in enumerate(entries) if isinstance(entry, HandOverEntry)]
    earlier = [entry.token.decode() for entry in entries[:place] if isinstance(entry, EvidenceEntry)]
    assert earlier == [evidence.token]
