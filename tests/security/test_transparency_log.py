"""Attacks on the transparency log, by the threats of docs/threat-model.md: each is refused with its own reason.

The attacker is the server with the log's key (and, where the attack says so, with the endorser's old file or a witness
that it shows two views). The device pins the log, the endorser and, in most attacks, two witnesses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from google.protobuf.message import DecodeError
from trust.log.world import CHARTER, IMAGES, NOW, LogWorld, a_model, a_task, enclave, filler

from odp._system.files.state_folder import StateFolder
from odp.crypto.note import Kind, Note, NoteKey
from odp.crypto.signing import SigningKey
from odp.errors import TransparencyError
from odp.signed.charter import approve, found
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.log.checkpoint import Checkpoint
from odp.trust.log.entries import EndorsementEntry, TaskEntry
from odp.trust.log.log_files import LogFiles
from odp.trust.log.proofs import LogGuard, packed
from odp.trust.log.witness import Witness
from odp.v1 import log_pb2, population_pb2


@dataclasses.dataclass
class Attacked(LogWorld):
    """A log that two witnesses cosign, and a device that may have seen it before."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.charter: population_pb2.SignedCharter | None = CHARTER
        self.device = self.guard()

    def participate(
        self, proof: log_pb2.LogProof | None, *, device: LogGuard | None = None, **enclaves: object
    ) -> None:
        """What a device does with a proof before anything leaves it."""
        device = device or self.device
        logged = device.logged(proof, task=self.task, model=self.model, charter=self.charter)
        for role in IMAGES:
            device.require_endorsed(enclaves.get(role, enclave(role)), logged)  # type: ignore[arg-type]

    def fork(self, folder: Path, **changes: object) -> Attacked:
        """Another tree under the same keys, task and model."""
        return Attacked(
            folder, clock=self.clock, key=self.key, endorser=self.endorser, developer=self.developer,
            witnesses=self.witnesses, **changes,  # type: ignore[arg-type]
        )  # fmt: skip


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Attacked]:
    witnesses = tuple(NoteKey.generate(f"example.com/w{number}") for number in range(2))
    made = Attacked(tmp_path / "log", witnesses=witnesses)
    yield made
    made.close()


Attack = Callable[[Attacked, Path], None]
ATTACKS: dict[str, tuple[str, Attack]] = {}


def attack(name: str, reason: str) -> Callable[[Attack], Attack]:
    """Registers an attack: ``name`` starts with the number of the threat."""

    def register(run: Attack) -> Attack:
        ATTACKS[name] = (reason, run)
        return run

    return register


@attack("R51: no proof at all", "missing")
def _(world: Attacked, tmp: Path) -> None:
    world.participate(None)


@attack("R51: an empty proof", "missing")
def _(world: Attacked, tmp: Path) -> None:
    world.participate(log_pb2.LogProof())


@attack("R51: proof of another leaf", "not_included")
def _(world: Attacked, tmp: Path) -> None:
    world.append(TaskEntry.of(a_task(world.developer, name="other")).encode())
    proof = world.proof()
    other = TaskEntry.of(a_task(world.developer, name="other")).leaf
    proof.task.CopyFrom(world.inclusion(other))
    world.participate(proof)


@attack("R51: a task that is not in the log", "not_included")
def _(world: Attacked, tmp: Path) -> None:
    proof = world.proof()
    world.task = a_task(world.developer, name="hidden")
    world.model = a_model(world.task, world.developer)
    world.participate(proof)


@attack("R51: a model for one device alone", "not_included")
def _(world: Attacked, tmp: Path) -> None:
    proof = world.proof()
    world.model = a_model(world.task, world.developer, version=7)
    world.participate(proof)


@attack("R51: a charter that is not in the log", "not_included")
def _(world: Attacked, tmp: Path) -> None:
    proof = world.proof()
    world.charter = approve(found("people", owners=[SigningKey.generate().public]), world.developer)
    world.participate(proof)


@attack("R51: no charter", "missing")
def _(world: Attacked, tmp: Path) -> None:
    world.charter = None
    world.participate(world.proof())


@attack("R51: an inner node as a leaf", "not_included")
def _(world: Attacked, tmp: Path) -> None:
    proof = world.proof()
    # The path of the parent of leaves 4 and 5, given as that of a leaf.
    proof.task.hashes = packed(world.log.inclusion_proof(4, world.log.size))[32:]
    proof.task.index = 2
    world.participate(proof)


@attack("R51: the proof of another tree's size", "not_included")
def _(world: Attacked, tmp: Path) -> None:
    proof = world.proof()
    world.append(*filler(5))
    proof.checkpoint = world.log.note
    world.participate(proof)


@attack("R51: an index beyond the tree", "not_included")
def _(world: Attacked, tmp: Path) -> None:
    proof = world.proof()
    proof.model.index = world.log.size
    world.participate(proof)


@attack("R51: hashes of another length", "malformed")
def _(world: Attacked, tmp: Path) -> None:
    proof = world.proof()
    proof.task.hashes += b"x"
    world.participate(proof)


@attack("R51: an endorsement that is not in the log", "not_included")
def _(world: Attacked, tmp: Path) -> None:
    proof = world.proof()
    hidden, _withdrawal = world.endorsed("aggregator", days=(-1, 30))
    proof.endorsements[0].entry = hidden.encode()
    world.participate(proof)


@attack("R51: another entry in place of an endorsement", "malformed")
def _(world: Attacked, tmp: Path) -> None:
    proof = world.proof()
    task = TaskEntry.of(world.task)
    proof.endorsements[0].CopyFrom(world.inclusion(task.leaf, task.encode()))
    world.participate(proof)


@attack("R52: a shrunk tree", "shrunk")
def _(world: Attacked, tmp: Path) -> None:
    old = world.proof()
    seen = world.guard(tmp / "view.json")
    world.append(*filler(1))
    world.participate(world.proof(), device=seen)
    world.participate(old, device=world.guard(tmp / "view.json"))


@attack("R52: a shrunk tree, signed anew", "shrunk")
def _(world: Attacked, tmp: Path) -> None:
    shorter = world.fork(tmp / "short")
    world.append(*filler(3))
    world.participate(world.proof())
    world.clock.now += 60
    shorter.log.sign_again(now=world.clock())
    shorter.cosign(*shorter.witnesses)
    world.participate(shorter.proof())


@attack("R52: one size, two trees", "split_view")
def _(world: Attacked, tmp: Path) -> None:
    world.append(*filler(1))
    world.participate(world.proof())
    fork = world.fork(tmp / "fork")
    fork.append(*filler(1, first=9))
    world.participate(fork.proof())


@attack("R52: a rewritten past", "inconsistent")
def _(world: Attacked, tmp: Path) -> None:
    world.append(*filler(1))
    world.participate(world.proof())
    fork = world.fork(tmp / "fork")
    fork.append(*filler(4, first=9))
    world.device._memory._fetch = fork.log.hashes
    world.participate(fork.proof())


@attack("R52: a rewritten past, with the true log's hashes", "inconsistent")
def _(world: Attacked, tmp: Path) -> None:
    world.append(*filler(9))
    world.participate(world.proof())
    fork = world.fork(tmp / "fork")
    fork.append(*filler(20, first=50))
    world.append(*filler(11, first=30))
    world.participate(fork.proof())


@attack("R53: the log's key swapped", "wrong_log_key")
def _(world: Attacked, tmp: Path) -> None:
    swapped = LogFiles.open(tmp / "swapped", NoteKey.generate(world.key.name), now=NOW)
    swapped.append([world.log.entry(number) for number in range(world.log.size)], now=NOW)
    proof = world.proof()
    proof.checkpoint = swapped.note
    swapped.close()
    world.participate(proof)


@attack("R53: another log in place of the pinned one", "wrong_origin")
def _(world: Attacked, tmp: Path) -> None:
    other = Attacked(tmp / "other", key=NoteKey.generate("example.com/another"), witnesses=world.witnesses)
    world.task, world.model = other.task, other.model
    world.participate(other.proof())


@attack("R53: a changed checkpoint", "bad_signature")
def _(world: Attacked, tmp: Path) -> None:
    proof = world.proof()
    size = str(world.log.size).encode()
    proof.checkpoint = proof.checkpoint.replace(b"\n" + size + b"\n", b"\n99\n")
    world.participate(proof)


@attack("R53: a missing witness", "witness_quorum")
def _(world: Attacked, tmp: Path) -> None:
    world.log.append(filler(1), now=NOW)
    world.cosign(world.witnesses[0])
    world.participate(world.proof())


@attack("R53: one witness under two names", "witness_quorum")
def _(world: Attacked, tmp: Path) -> None:
    world.log.append(filler(1), now=NOW)
    world.cosign(world.witnesses[0])
    note = Note.parse(world.log.note)
    first = next(line for line in note.lines if line.name == world.witnesses[0].name)
    renamed = dataclasses.replace(first, name=world.witnesses[1].name)
    proof = world.proof()
    proof.checkpoint = note.with_lines([renamed]).encode()
    world.participate(proof)


@attack("R53: a witness's line of another checkpoint", "bad_signature")
def _(world: Attacked, tmp: Path) -> None:
    old = [line for line in Note.parse(world.log.note).lines if line.name.startswith("example.com/w")]
    world.log.append(filler(1), now=NOW)
    proof = world.proof()
    proof.checkpoint = Note.parse(world.log.note).with_lines(old).encode()
    world.participate(proof)


@attack("R53: a cosignature over another origin", "bad_signature")
def _(world: Attacked, tmp: Path) -> None:
    tree = world.log.checkpoint
    elsewhere = Checkpoint("example.com/another", tree.size, tree.root)
    lines = [witness.cosign(elsewhere.body, now=NOW) for witness in world.witnesses]
    proof = world.proof()
    proof.checkpoint = Note.parse(world.log.note).with_lines(lines).encode()
    world.participate(proof)


@attack("R53: the log as its own witness", "witness_quorum")
def _(world: Attacked, tmp: Path) -> None:
    world.log.append(filler(1), now=NOW)
    world.log.sign_again(now=NOW)
    world.participate(world.proof())


@attack("R54: a withdrawn measurement that the server still serves", "withdrawn")
def _(world: Attacked, tmp: Path) -> None:
    world.append(world.withdrawals["aggregator"].encode())
    world.participate(world.proof())


@attack("R54: a withdrawal after the device has used the enclave", "withdrawn")
def _(world: Attacked, tmp: Path) -> None:
    world.participate(world.proof())
    world.append(world.withdrawals["distributor"].encode())
    world.participate(world.proof())


@attack("R54: a withdrawal, and the proofs of before it", "withdrawn")
def _(world: Attacked, tmp: Path) -> None:
    before = world.proof()
    world.participate(before)
    world.append(world.withdrawals["aggregator"].encode())
    with pytest.raises(TransparencyError):
        world.participate(world.proof())
    world.participate(before)


@attack("R54: an endorsement that has ended", "not_endorsed")
def _(world: Attacked, tmp: Path) -> None:
    ended, _withdrawal = world.endorsed("aggregator", days=(-300, -1))
    world.append(ended.encode())
    world.participate(world.proof(endorsements=[ended, world.endorsements[1]]))


@attack("R54: an endorsement that has not begun", "not_endorsed")
def _(world: Attacked, tmp: Path) -> None:
    early, _withdrawal = world.endorsed("aggregator", days=(1, 300))
    world.append(early.encode())
    world.participate(world.proof(endorsements=[early, world.endorsements[1]]))


@attack("R54: an endorsement by the server itself", "not_endorsed")
def _(world: Attacked, tmp: Path) -> None:
    own, _withdrawal = world.endorsed("aggregator", key=SigningKey.generate())
    world.append(own.encode())
    world.participate(world.proof(endorsements=[own, world.endorsements[1]]))


@attack("R54: an endorsement whose signature was changed", "malformed")
def _(world: Attacked, tmp: Path) -> None:
    forged = EndorsementEntry(world.endorsements[0].statement, bytes(64))
    world.append(forged.encode())
    world.participate(world.proof(endorsements=[forged, world.endorsements[1]]))


@attack("R54: no endorsements", "not_endorsed")
def _(world: Attacked, tmp: Path) -> None:
    world.participate(world.proof(endorsements=[]))


@attack("R54: the endorsement of the other role", "not_endorsed")
def _(world: Attacked, tmp: Path) -> None:
    world.participate(world.proof(endorsements=world.endorsements[1:]))


@attack("R54: an enclave with code that nobody endorsed", "not_endorsed")
def _(world: Attacked, tmp: Path) -> None:
    world.participate(world.proof(), aggregator=enclave("aggregator", image="sha384:" + "00" * 48))


@attack("R54: an enclave with a relaxed policy", "not_endorsed")
def _(world: Attacked, tmp: Path) -> None:
    relaxed = EnclavePolicy(role="aggregator", minimum_cohort=1)
    world.participate(world.proof(), aggregator=enclave("aggregator", policy=relaxed))


@attack("R55: a stale checkpoint", "stale")
def _(world: Attacked, tmp: Path) -> None:
    world.clock.now += 24 * 3600 + 1
    world.participate(world.proof())


@attack("R55: a checkpoint that grew stale at the device", "stale")
def _(world: Attacked, tmp: Path) -> None:
    world.participate(world.proof())
    world.clock.now += 24 * 3600 + 1
    world.participate(world.proof())


@attack("R55: an old cosignature under a new signature of the log", "stale")
def _(world: Attacked, tmp: Path) -> None:
    world.clock.now += 24 * 3600 + 1
    world.log.sign_again(now=world.clock())
    world.participate(world.proof())


@attack("R55: a checkpoint of the future", "not_yet_valid")
def _(world: Attacked, tmp: Path) -> None:
    world.clock.now += 3600
    world.log.sign_again(now=world.clock())
    world.cosign(*world.witnesses)
    world.clock.now -= 3600
    world.participate(world.proof())


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_on_the_log_is_refused_with_its_own_reason(world: Attacked, tmp_path: Path, name: str) -> None:
    reason, run = ATTACKS[name]
    with pytest.raises(TransparencyError) as caught:
        run(world, tmp_path)
    assert caught.value.reason == reason
    assert str(caught.value).startswith(f"transparency log refused ({reason}): ")
    assert "\n" not in str(caught.value)


def test_without_an_attack_the_device_takes_part(world: Attacked) -> None:
    for _ in range(3):
        world.participate(world.proof())
        world.append(*filler(2, first=world.log.size))


def test_r53_of_two_devices_that_are_shown_two_views_one_lacks_the_witness(world: Attacked, tmp_path: Path) -> None:
    """The witness is where two devices' views meet: it cosigns one, and the other device refuses."""
    one = NoteKey.generate("example.com/honest")
    pins = {"witness_keys": (one.public(Kind.COSIGNATURE).text,), "quorum": 1}
    fork = world.fork(tmp_path / "fork")
    world.append(*filler(3))
    fork.append(*filler(3, first=9))
    with StateFolder.open(tmp_path / "witness", "witness") as state:
        witness = Witness(state, one, [world.key.public(Kind.NOTE).text], clock=world.clock)
        answer = witness.add_checkpoint(world.log.note, old_size=0, proof=[])
        assert answer.line is not None
        assert world.log.add_cosignatures(world.log.checkpoint.body, [answer.line])
        for old, proof in ((0, []), (answer.size, []), (answer.size, fork.log.consistency_proof(4, fork.log.size))):
            assert _line(witness, fork, old, proof) is None
    world.participate(world.proof(), device=world.guard(**pins))
    with pytest.raises(TransparencyError) as caught:
        fork.participate(fork.proof(), device=fork.guard(**pins))
    assert caught.value.reason == "witness_quorum"
    # The line that the witness gave for the other view does not help.
    stolen = fork.proof()
    stolen.checkpoint = Note.parse(fork.log.note).with_lines([answer.line]).encode()
    with pytest.raises(TransparencyError) as caught:
        fork.participate(stolen, device=fork.guard(**pins))
    assert caught.value.reason == "bad_signature"
    fork.close()


def _line(witness: Witness, world: Attacked, old_size: int, proof: list[bytes]) -> object:
    """What the witness gives for a log's newest checkpoint; None where it refuses or asks for another proof."""
    try:
        return witness.add_checkpoint(world.log.note, old_size=old_size, proof=proof).line
    except TransparencyError:
        return None


def test_a_refusal_is_not_remembered_and_the_log_can_be_mended(world: Attacked) -> None:
    world.log.append(filler(1), now=NOW)
    with pytest.raises(TransparencyError, match="witness_quorum"):
        world.participate(world.proof())
    world.cosign(*world.witnesses)
    world.participate(world.proof())


def test_another_endorsement_stands_in_for_one_that_was_withdrawn(world: Attacked) -> None:
    world.append(world.withdrawals["aggregator"].encode())
    again, _withdrawal = world.endorsed("aggregator", days=(-2, 200))
    world.append(again.encode())
    world.participate(world.proof(endorsements=[*world.endorsements, again]))


def test_no_proof_with_a_flipped_bit_is_accepted_and_none_crashes(world: Attacked) -> None:
    """Every byte of a proof, one bit each: an unreadable message never reaches the device's code."""
    whole = world.proof()
    note = Note.parse(whole.checkpoint)
    # A line that nobody needs may be damaged: it then is by nobody. With witnesses, the log's own time is such a line.
    spare = world.key.public(Kind.COSIGNATURE)
    whole.checkpoint = Note(note.body, tuple(line for line in note.lines if not line.is_by(spare))).encode()
    world.participate(whole, device=world.guard())
    data, refused = whole.SerializeToString(), 0
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        try:
            proof = log_pb2.LogProof.FromString(bytes(changed))
        except DecodeError:
            continue
        with pytest.raises(TransparencyError):
            world.participate(proof, device=world.guard())
        refused += 1
    assert refused > len(data) / 2
