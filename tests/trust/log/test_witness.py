"""A witness cosigns one tree per size, whoever asks and whenever it is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from trust.log.world import NOW, Clock, LogWorld, filler

from odp._system.files.state_folder import StateFolder
from odp.crypto.note import Kind, Note, NoteKey
from odp.errors import ConfigurationError, StateError, TransparencyError
from odp.trust.log.checkpoint import verify_checkpoint
from odp.trust.log.witness import Witness

KEY = NoteKey.generate("example.com/witness")


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateFolder]:
    with StateFolder.open(tmp_path / "witness", "witness") as opened:
        yield opened


def witness(state: StateFolder, world: LogWorld, clock: Clock | None = None) -> Witness:
    """A new one on the same folder is the same witness after a restart."""
    return Witness(state, KEY, [world.key.public(Kind.NOTE).text], clock=clock or Clock())


def shown(world: LogWorld, old_size: int) -> dict[str, object]:
    return {
        "note": world.log.note,
        "old_size": old_size,
        "proof": world.log.consistency_proof(old_size, world.log.size),
    }


def test_a_growing_log_is_cosigned_at_each_size(state: StateFolder, world: LogWorld) -> None:
    size, policy = 0, world.policy(witness_keys=(KEY.public(Kind.COSIGNATURE).text,), quorum=1)
    for number in range(6):
        clock = Clock(NOW + number)
        answer = witness(state, world, clock).add_checkpoint(**shown(world, size))  # type: ignore[arg-type]
        assert answer.line is not None
        note = Note.parse(world.log.note).with_lines([answer.line]).encode()
        verified = verify_checkpoint(note, policy)
        assert (verified.witnesses, verified.time) == (("example.com/witness",), int(clock.now))
        size = answer.size
        assert size == world.log.size
        world.append(*filler(3 * number, first=100 * number))


def test_the_same_checkpoint_is_cosigned_again_with_a_newer_time(state: StateFolder, world: LogWorld) -> None:
    clock = Clock()
    one = witness(state, world, clock)
    one.add_checkpoint(**shown(world, 0))  # type: ignore[arg-type]
    clock.now += 60
    answer = one.add_checkpoint(**shown(world, world.log.size))  # type: ignore[arg-type]
    assert answer.line is not None
    assert answer.line.time == NOW + 60


def test_a_log_that_forgot_where_it_stood_is_told(state: StateFolder, world: LogWorld) -> None:
    one = witness(state, world)
    one.add_checkpoint(**shown(world, 0))  # type: ignore[arg-type]
    size = world.log.size
    world.append(*filler(2))
    for forgotten in (0, size - 1, size + 1):
        answer = one.add_checkpoint(world.log.note, old_size=forgotten, proof=[])
        assert (answer.size, answer.line) == (size, None)
    assert one.add_checkpoint(**shown(world, size)).line is not None  # type: ignore[arg-type]


@pytest.mark.parametrize("grown", [0, 4])
def test_two_views_are_never_both_cosigned(state: StateFolder, world: LogWorld, tmp_path: Path, grown: int) -> None:
    witness(state, world).add_checkpoint(**shown(world, 0))  # type: ignore[arg-type]
    fork = LogWorld(tmp_path / "fork", key=world.key)
    fork.append(*filler(grown))
    proofs = [fork.log.consistency_proof(world.log.size, fork.log.size), [], [bytes(32)]]
    for proof in proofs:
        with pytest.raises(TransparencyError) as caught:
            witness(state, world).add_checkpoint(fork.log.note, old_size=world.log.size, proof=proof)
        assert caught.value.reason == ("inconsistent" if grown else "split_view")
    assert witness(state, world).last(world.key.name) == world.log.checkpoint
    fork.close()


def test_a_shrunk_log_is_not_cosigned(state: StateFolder, world: LogWorld) -> None:
    old = world.log.note
    size = world.log.size
    world.append(*filler(1))
    witness(state, world).add_checkpoint(**shown(world, 0))  # type: ignore[arg-type]
    with pytest.raises(TransparencyError) as caught:
        witness(state, world).add_checkpoint(old, old_size=size + 1, proof=[])
    assert caught.value.reason == "shrunk"


def test_logs_that_the_witness_does_not_watch_are_not_cosigned(
    state: StateFolder, world: LogWorld, tmp_path: Path
) -> None:
    for key, reason in (
        (NoteKey.generate("example.com/other"), "wrong_origin"),
        (NoteKey.generate(world.key.name), "wrong_log_key"),
    ):
        other = LogWorld(tmp_path / reason, key=key)
        with pytest.raises(TransparencyError) as caught:
            witness(state, world).add_checkpoint(**shown(other, 0))  # type: ignore[arg-type]
        assert caught.value.reason == reason
        other.close()
    with pytest.raises(ConfigurationError, match="at least one log"):
        Witness(state, KEY, [], clock=Clock())


def test_what_was_cosigned_is_on_the_disk_before_the_cosignature_leaves(
    state: StateFolder, world: LogWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A witness that cannot store does not sign; one that stored and died before it answered is bound all the same."""
    one = witness(state, world)

    def full(name: str, data: bytes) -> None:
        raise StateError("disk full")

    monkeypatch.setattr(state, "write_atomically", full)
    with pytest.raises(StateError):
        one.add_checkpoint(**shown(world, 0))  # type: ignore[arg-type]
    monkeypatch.undo()
    assert witness(state, world).last(world.key.name).size == 0

    def killed(text: bytes, *, now: float) -> None:
        raise KeyboardInterrupt

    dying = NoteKey.generate("example.com/witness")
    monkeypatch.setattr(NoteKey, "cosign", lambda self, text, *, now: killed(text, now=now))
    with pytest.raises(KeyboardInterrupt):
        Witness(state, dying, [world.key.public(Kind.NOTE).text], clock=Clock()).add_checkpoint(**shown(world, 0))  # type: ignore[arg-type]
    monkeypatch.undo()
    assert witness(state, world).last(world.key.name) == world.log.checkpoint


def test_a_witness_that_lost_its_memory_signs_nothing(state: StateFolder, world: LogWorld) -> None:
    one = witness(state, world)
    one.add_checkpoint(**shown(world, 0))  # type: ignore[arg-type]
    (path,) = state.root.glob("*.checkpoint")
    for damaged in (b"", b"junk", path.read_bytes().replace(b"example.com", b"example.org")):
        path.write_bytes(damaged)
        with pytest.raises(StateError, match="damaged"):
            one.add_checkpoint(**shown(world, 0))  # type: ignore[arg-type]
