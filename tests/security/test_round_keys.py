"""Whoever gets hold of every long-lived key later: what a host recorded of a round that is over stays closed.

The attacker of these tests has the chip's folder as it is then, every sealed record that the host ever stored, and
every contribution that it carried. The same attacker, while a round is open, opens all of it: so the attack works.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from odp.crypto import SigningKey, domains, segments
from odp.crypto.hpke import DecryptionError, HpkeKey
from odp.crypto.secure_aggregation.masked import mask
from odp.errors import ConfigurationError, PrivacyError, Refusal, StateError
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.sealing import unseal
from odp.trust.enclave.slots import EmulatedSlots
from trusted_aggregator.state.records import NOISE_PREFIX

Make = Callable[..., Any]
LARGE = 300_000
IMAGE = "sha384:" + "0" * 96


class Recorder:
    """A host that keeps all that it ever saw, and an attacker who gets hold of the chip later."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.contexts: list[tuple[bytes, bytes]] = [
            (b"odp/v1/enclave-keys" + world.policy.sha256, world.sealed_keys),
            *((key.encode(), data) for key, data in world.records.items()),
        ]
        self.sealed: list[bytes] = []
        persist = world.persist

        def recorded(writes: Any) -> None:
            kept = tuple(writes)
            self.contexts += [(record.key.encode(), record.data) for record in kept if record.data is not None]
            persist(kept)

        world.persist = recorded

    def fill(self, count: int = 3) -> None:
        for device in range(count):
            sealed = self.world.sealed(device)
            assert self.world.submit(sealed) is None
            self.sealed.append(sealed)

    def plaintexts(self) -> list[tuple[bytes, bytes]]:
        """(context, plaintext) of what opens with all secrets of the chip, alone or one with another."""
        folder: Path = self.world.platform._folder
        chip = self.world.platform.sealing_key(self.world.identity.image_digest)
        slots = [data for path in folder.rglob("*") if path.is_file() and len(data := path.read_bytes()) == 32]
        derived = [
            HKDF(hashes.SHA384(), length=32, salt=slot, info=domains.ROUND_SEALING).derive(chip) for slot in slots
        ]
        found = []
        for key in (chip, *slots, *derived):
            for context, data in self.contexts:
                try:
                    found.append((context, unseal(key, data, context)))
                except DecryptionError:
                    continue
        return found

    def opened(self) -> int:
        """How many of the recorded contributions open with anything that is found."""
        world, keys = self.world, [self.world.identity.hpke]
        for _, plaintext in self.plaintexts():
            with contextlib.suppress(ValueError):  # noise is no text
                values = json.loads(plaintext).values() if plaintext.startswith(b"{") else ()
                keys += [HpkeKey.from_bytes(bytes.fromhex(v)) for v in values if isinstance(v, str) and len(v) == 64]
        return sum(any(_opens(world, key, sealed) for key in keys) for sealed in self.sealed)

    def noises(self) -> int:
        """How many records of noise open."""
        return sum(context.startswith(NOISE_PREFIX.encode()) for context, _ in self.plaintexts())


def _opens(world: Any, key: HpkeKey, sealed: bytes) -> bool:
    arguments = world.task_sha256, 0, world.model(0), world.policy.sha256
    try:
        if segments.is_large(world.algorithm.query(0).payload_bytes) and len(sealed) > 2**20:
            segments.open_segments(key, sealed, domains.large_contribution_info(*arguments))
        else:
            key.open(sealed, domains.contribution_info(*arguments))
    except DecryptionError:
        return False
    return True


@pytest.fixture(params=["dpam", "statistics", "large"])
def recorder(request: pytest.FixtureRequest, make_statistics: Make, make_world: Make) -> Recorder:
    sizes = {"statistics": 40, "large": LARGE}
    world = make_statistics(sizes[request.param]) if request.param in sizes else make_world(minimum=3)
    return Recorder(world)


def _release(world: Any) -> None:
    world.close()


def _abandon(world: Any) -> None:
    world.settle(world.abandon())


def _retire(world: Any) -> None:
    world.settle(world.core.set_charter(world.other_owner(SigningKey.generate())))


def _forget(world: Any) -> None:
    world.persist(world.core.forget(world.task_sha256))


def _give_up(world: Any) -> None:
    world.settle(world.charge().writes)
    world.persist(world.core.give_up(world.task_sha256, 0))


def _void_at_the_start(world: Any) -> None:
    world.settle(world.charge().writes)
    world.restart(rows={})


@pytest.mark.parametrize("end", [_release, _abandon, _retire, _forget, _give_up, _void_at_the_start])
@pytest.mark.slow
def test_r174_all_long_lived_keys_and_all_files_open_nothing_of_a_round_that_is_over(
    recorder: Recorder, end: Callable[[Any], None]
) -> None:
    recorder.world.open()
    recorder.fill()
    assert (recorder.opened(), recorder.noises()) == (3, 1), "while the round is open, the attack works"
    end(recorder.world)
    assert (recorder.opened(), recorder.noises()) == (0, 0)
    recorder.world.restart()
    assert (recorder.opened(), recorder.noises()) == (0, 0)


def test_r174_the_halves_of_masked_contributions_stay_closed_as_well(make_statistics: Make) -> None:
    recorder = Recorder(make_statistics(40, aggregation="masked"))
    world = recorder.world
    world.open()
    sealed = world.sealed(1, payload=bytes(64))
    assert world.core.submit(world.task_sha256, 0, sealed, host_sha256=bytes(32)) is None
    recorder.sealed.append(sealed)
    assert recorder.opened() == 1
    world.settle(world.abandon())
    assert recorder.opened() == 0


def test_r174_the_next_round_has_another_key_and_erases_the_one_before(make_world: Make) -> None:
    recorder = Recorder(make_world(minimum=3))
    world = recorder.world
    world.open()
    recorder.fill()
    first = world.round_key(0)
    world.learn(world.close())
    world.open(1)
    assert world.round_key(1) != first
    assert recorder.opened() == 0


# The key that devices get


def test_r175_opening_again_and_every_restart_give_the_same_signed_key(small: Any) -> None:
    first = small.core.round_key(small.task_sha256, 0)
    small.open()
    assert small.core.round_key(small.task_sha256, 0) == first
    assert small.submit(small.sealed(0)) is None
    for _ in range(2):
        small.restart()
        small.open()
        assert small.core.round_key(small.task_sha256, 0) == first
    assert small.submit(small.sealed(0)) is Refusal.ALREADY_CONTRIBUTED
    assert small.core.round_key(small.task_sha256, 1) is None
    small.fill(range(1, 3))
    small.close()
    assert small.core.round_key(small.task_sha256, 0) is None


def test_r175_the_key_of_evidence_opens_no_contribution(small: Any) -> None:
    sealed = small.seal(small.contribution(1).SerializeToString(), key=small.identity.hpke.public)
    assert small.submit(sealed) is Refusal.MALFORMED


# Slots that cannot be erased, and deaths around it


class Dead(BaseException):
    """The enclave is killed."""


@pytest.fixture
def erasing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Says how the next erasing goes wrong: "before" or "after" it the enclave dies, or it "fails"; "well" mends it."""
    real = EmulatedSlots.erase
    wrong = ["well"]

    def erase(slots: EmulatedSlots, names: Any) -> None:
        if wrong[0] == "fails":
            raise StateError("cannot erase")
        if wrong[0] == "before":
            raise Dead
        real(slots, names)
        if wrong[0] == "after":
            raise Dead

    monkeypatch.setattr(EmulatedSlots, "erase", erase)
    return lambda how: wrong.__setitem__(0, how)


def test_r176_a_release_whose_key_cannot_be_erased_does_not_leave(small: Any, erasing: Any) -> None:
    recorder = Recorder(small)
    recorder.fill()
    small.settle(small.charge().writes)
    small.persist(small.seal_release())
    erasing("fails")
    with pytest.raises(StateError, match="cannot erase"):
        small.core.commit()
    for _ in range(2):
        with pytest.raises(StateError, match="cannot erase"):
            small.release()
    assert recorder.opened() == 3
    erasing("well")
    signed = small.release()
    assert (recorder.opened(), recorder.noises()) == (0, 0)
    assert small.release() == signed


@pytest.mark.parametrize("death", ["before", "after"])
def test_r176_a_death_around_the_erasing_of_a_released_round_leaves_one_release_and_no_key(
    small: Any, erasing: Any, death: str
) -> None:
    recorder = Recorder(small)
    recorder.fill()
    small.settle(small.charge().writes)
    small.persist(small.seal_release())
    erasing(death)
    with pytest.raises(Dead):
        small.core.commit()
    erasing("well")
    small.restart()
    assert (recorder.opened(), recorder.noises()) == (0, 0)
    signed = small.release()
    small.restart()
    assert small.release() == signed
    assert small.charges() == 1


@pytest.mark.parametrize("death", ["before", "after"])
@pytest.mark.parametrize("end", [_abandon, _retire])
def test_r176_a_death_around_the_erasing_of_an_ended_task_leaves_no_key(
    small: Any, erasing: Any, death: str, end: Callable[[Any], None]
) -> None:
    recorder = Recorder(small)
    recorder.fill()
    erasing(death)
    with pytest.raises(Dead):
        end(small)
    erasing("well")
    small.restart()
    assert recorder.opened() == 0
    assert small.submit(recorder.sealed[0]) is Refusal.TASK_ABANDONED


@pytest.mark.parametrize("death", ["before", "after"])
def test_r176_a_death_around_the_erasing_of_a_forgotten_task_loses_its_round_at_most(
    small: Any, erasing: Any, death: str
) -> None:
    recorder = Recorder(small)
    recorder.fill(2)
    before = small.round_key()
    erasing(death)
    with pytest.raises(Dead):
        _forget(small)
    erasing("well")
    small.restart()
    small.persist(small.restored_writes)
    if death == "before":
        assert small.core.round_state(small.task_sha256, 0).contributions == 2
    else:
        assert recorder.opened() == 0
        assert small.core.round_states() == []
        small.open()
        assert small.round_key() != before
        assert small.submit(recorder.sealed[0]) is Refusal.MALFORMED
        small.restart()
        assert small.core.round_state(small.task_sha256, 0).contributions == 0
    _forget(small)
    assert recorder.opened() == 0


@pytest.mark.parametrize("end", [_abandon, _forget, _retire, _give_up])
def test_r176_an_end_whose_key_cannot_be_erased_is_not_acknowledged_and_can_be_ordered_again(
    small: Any, erasing: Any, end: Callable[[Any], None]
) -> None:
    recorder = Recorder(small)
    recorder.fill()
    erasing("fails")
    with pytest.raises(StateError, match="cannot erase"):
        end(small)
    erasing("well")
    if end is _give_up:
        small.persist(small.core.give_up(small.task_sha256, 0))
    elif end is _forget:
        end(small)
    else:
        assert small.abandon() == ()  # in force, and asked again by a server that got no answer
        small.core.commit()
    assert recorder.opened() == 0


def test_r176_a_death_between_slot_and_record_of_an_opening_opens_the_round_anew(make_world: Make) -> None:
    world = make_world(minimum=3)
    world.core.open_round(world.task, *world.order(0, domains.OPEN))
    first = world.round_key()
    world.restart()
    assert world.core.round_states() == []
    world.open()
    assert world.round_key() != first
    world.fill(range(3))
    world.close()


def test_r176_a_slot_that_the_platform_lost_is_a_lost_round(small: Any) -> None:
    small.fill(range(3))
    small.settle(small.charge().writes)
    small.identity.guest.slots.erase([small.task_sha256.hex()])
    small.restart()
    with pytest.raises(PrivacyError, match="void"):
        small.seal_release()


@pytest.mark.parametrize("charged", [False, True])
def test_r179_a_round_that_another_policy_opened_is_lost_with_its_noise(make_world: Make, charged: bool) -> None:
    """A host starts the same code under a laxer policy, lets it draw the noise, and goes on under the endorsed one."""
    lax = EnclavePolicy(role="aggregator", minimum_cohort=3, accumulation="direct")
    world = make_world(minimum=3, policy=lax)
    world.open()
    world.fill(range(3))
    if charged:
        world.settle(world.charge().writes)
    world.policy = dataclasses.replace(world.policy, accumulation="oblivious")
    world.sealed_keys = None
    world.restart()
    assert world.core.round_key(world.task_sha256, 0) is None
    with pytest.raises((PrivacyError, ConfigurationError), match="void" if charged else "not open"):
        world.charge()
    assert world.platform.slots(IMAGE).read(world.task_sha256.hex()) is None
    assert world.charges() == int(charged), "what was charged stays charged"


def test_r176_the_end_of_a_task_whose_records_were_withheld_erases_its_key(make_world: Make) -> None:
    world = make_world(minimum=3)
    world.open()
    world.fill(range(3))
    kept = {key: data for key, data in world.records.items() if key.startswith("population/")}
    world.restart(records=kept, rows={})
    world.settle(world.abandon())
    assert world.platform.slots(IMAGE).read(world.task_sha256.hex()) is None


def test_r177_no_refusal_is_final_for_bytes_that_are_judged_while_their_round_closes(
    make_statistics: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They counted before; the host sends them again, and the release erases the round in between."""
    world = make_statistics(40, aggregation="masked")
    world.open()
    halves = mask(world.payload(0), info=domains.masked_vector_info(world.task_sha256, 0))
    sealed = world.sealed(0, payload=halves.secret)
    digest = hashlib.sha256(halves.vector).digest()
    held = world.held()
    kind = type(held.query)
    check = kind.refusals

    def erased_meanwhile(query: Any, payloads: Any) -> Any:
        found = check(query, payloads)
        held.erase()
        return found

    monkeypatch.setattr(kind, "refusals", erased_meanwhile)
    (judged,) = held.judge([sealed], host_sha256=[digest])
    assert not isinstance(judged, Refusal)
    assert held.keep([judged]) == [Refusal.ROUND_CLOSED]


def test_a_released_round_of_a_task_that_is_forgotten_is_not_opened_again(make_world: Make) -> None:
    """Its release is lost: a server that asks for it has to hear so, and not to ask for ever."""
    world = make_world(minimum=3)
    world.open()
    world.fill(range(3))
    world.close()
    kept = {key: data for key, data in world.records.items() if key.startswith(("population/", "ledger/"))}
    world.restart(records=kept)
    with pytest.raises(PrivacyError, match="was released, and this enclave has erased the task"):
        world.open()
