"""Hostile uploads: each is refused with its own code, and none moves a sum (R12, R13, R42, R43, R44).

An attacker here is any device, or a host that replays, mixes and invents what devices send.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from odp.crypto import HpkeKey, domains, seal
from odp.errors import Refusal
from odp.evaluation.noise import NoNoise
from odp.trust.enclave.policy import EnclavePolicy
from odp.v1 import aggregator_pb2, common_pb2
from tests.trusted_aggregator.modes.enclave.test_accepted_set import tags

Make = Callable[..., Any]
ITEMS, RANK, PLACES = 12, 2, 4
ROUNDS = (0, 1, 2)


def payload(
    round: int,
    *,
    items: list[int] | None = None,
    weights: list[int] | None = None,
    targets: list[int] | None = None,
    row: list[int] | None = None,
) -> bytes:
    """A payload made by hand, at half of every bound unless told otherwise; written apart from the code under test."""
    made = b"" if round < 2 else np.array(row or [300, -300], dtype="<i2").tobytes()
    made += np.array(items or [1, 5, 7, 11], dtype="<u4").tobytes()
    if round:
        made += np.array(weights or [200] * PLACES, dtype="<u2").tobytes()
        made += np.array(targets or [100, -100, 200, -200], dtype="<i2").tobytes()
    return made


#: threat and name -> (rounds where it means something, changes to the payload); all break the declared sensitivity.
OUT_OF_BOUNDS: dict[str, tuple[tuple[int, ...], dict[str, list[int]]]] = {
    "R12 one item twice": (ROUNDS, {"items": [1, 1, 7, 11]}),
    "R12 one item four times": (ROUNDS, {"items": [7, 7, 7, 7]}),
    "R12 an item beyond the catalogue": (ROUNDS, {"items": [1, 5, 7, ITEMS]}),
    "R12 an item that overflows": (ROUNDS, {"items": [1, 5, 7, 2**31]}),
    "R12 the item next to the mark of nothing": (ROUNDS, {"items": [1, 5, 7, 2**32 - 2]}),
    "R12 weights one above the bound": ((1, 2), {"weights": [1024, 1, 0, 0]}),
    "R12 weights whose squares overflow 32 bits": ((1, 2), {"weights": [65535] * 4}),
    "R12 a weight with the sign bit": ((1, 2), {"weights": [32768, 0, 0, 0]}),
    "R12 a target above": ((1, 2), {"weights": [9] * 4, "targets": [513, 0, 0, 0]}),
    "R12 a target below": ((1, 2), {"weights": [9] * 4, "targets": [0, 0, 0, -513]}),
    "R12 targets that together are beyond their norm": ((1, 2), {"targets": [400, -400, 400, -400]}),
    "R12 the target whose absolute value overflows": ((1, 2), {"targets": [-32768, 0, 0, 0]}),
    "R12 a target out of range under a weight of zero": ((1, 2), {"weights": [9, 0, 0, 0], "targets": [0, 900, 0, 0]}),
    "R12 a row over its norm": ((2,), {"row": [2048, 1]}),
    "R12 a row whose square overflows": ((2,), {"row": [-32768, -32768]}),
}


@pytest.fixture(scope="module")
def worlds(make_world: Make) -> dict[int, Any]:
    """For each round: a world in which it is open."""
    found = {}
    for round in ROUNDS:
        world = make_world(minimum=3, noise=NoNoise())
        for before in range(round):
            world.open(before)
            world.fill(range(3), before)
            world.learn(world.close(before))
        world.open(round)
        found[round] = world
    return found


@pytest.mark.parametrize(
    ("round", "changes"),
    [(round, changes) for rounds, changes in OUT_OF_BOUNDS.values() for round in rounds],
    ids=[f"{name}, round {round}" for name, (rounds, _) in OUT_OF_BOUNDS.items() for round in rounds],
)
def test_what_would_move_a_sum_by_more_than_is_charged_is_refused(
    worlds: dict[int, Any], round: int, changes: dict[str, list[int]]
) -> None:
    world = worlds[round]
    before = world.core.round_state(world.task_sha256, round).contributions
    sealed = world.sealed(1000, round, payload=payload(round, **changes))
    assert world.submit(sealed, round) is Refusal.OUT_OF_BOUNDS
    assert world.core.round_state(world.task_sha256, round).contributions == before


@pytest.mark.parametrize("round", ROUNDS)
def test_the_payload_of_the_table_is_accepted_unchanged_so_that_each_row_fails_for_its_own_reason(
    worlds: dict[int, Any], round: int
) -> None:
    world = worlds[round]
    assert world.submit(world.sealed(2000, round, payload=payload(round)), round) is None


@pytest.mark.parametrize("round", ROUNDS)
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 3.4e38], ids=str)
def test_r12_bytes_that_are_no_finite_float_are_read_as_integers_within_bounds_or_refused(
    worlds: dict[int, Any], round: int, number: float
) -> None:
    world = worlds[round]
    size = world.algorithm.query(round).payload_bytes
    content = (np.full(size, number, dtype="<f4").tobytes())[:size]
    refusal = world.submit(world.sealed(3000 + round, round, payload=content), round)
    assert refusal is Refusal.OUT_OF_BOUNDS


def _sealed_with(world: Any, **changes: Any) -> bytes:
    info = {
        "task_sha256": world.task_sha256,
        "round": 0,
        "model_sha256": world.model(0),
        "policy_sha256": world.policy.sha256,
        **changes,
    }
    plain = world.contribution(4000).SerializeToString()
    return seal(world.round_key(), plain, domains.contribution_info(**info))


RELAXED = EnclavePolicy(role="aggregator", minimum_cohort=3, population_epsilon=1e6)
DIRECT = EnclavePolicy(role="aggregator", minimum_cohort=3, accumulation="direct")

#: name -> what is sent instead of a genuine contribution to round 0.
MALFORMED: dict[str, Callable[[Any], bytes]] = {
    "R13 sealed for another task": lambda world: _sealed_with(world, task_sha256=bytes(32)),
    "R13 sealed for another round": lambda world: _sealed_with(world, round=1),
    "R13 sealed for another model": lambda world: _sealed_with(world, model_sha256=bytes(32)),
    "R42 sealed for a relaxed policy": lambda world: _sealed_with(world, policy_sha256=RELAXED.sha256),
    "R42 sealed for direct sums": lambda world: _sealed_with(world, policy_sha256=DIRECT.sha256),
    "R42 sealed for no policy": lambda world: _sealed_with(world, policy_sha256=bytes(32)),
    "R13 sealed to another enclave's key": lambda world: seal(
        HpkeKey.generate().public,
        world.contribution(1).SerializeToString(),
        domains.contribution_info(world.task_sha256, 0, world.model(0), world.policy.sha256),
    ),
    "R13 truncated by a byte": lambda world: world.sealed(1)[:-1],
    "R13 longer by a byte": lambda world: world.sealed(1) + b"\0",
    "R13 cut to the overhead": lambda world: world.sealed(1)[:48],
    "R13 nothing": lambda world: b"",
    "R13 zeros": lambda world: bytes(len(world.sealed(1))),
    "R13 not sealed": lambda world: world.contribution(1).SerializeToString() + bytes(48),
    "R12 a payload that is too short": lambda world: world.seal(
        world.contribution(1, payload=payload(0)[:-4]).SerializeToString()
    ),
    "R12 a payload that is too long": lambda world: world.sealed(1, payload=payload(0) + bytes(4)),
    "R12 no payload": lambda world: world.sealed(1, payload=b"\0"),
    "R12 a payload of another round": lambda world: world.sealed(1, payload=payload(1)),
    "R13 an id of another length": lambda world: world.sealed(1, contribution_id=bytes(31)),
    "R13 no pseudonym": lambda world: world.sealed(1, pseudonym=b""),
    "R13 two contributions in one": lambda world: world.seal(world.contribution(1).SerializeToString() * 2),
}


@pytest.mark.parametrize("attack", MALFORMED.values(), ids=MALFORMED.keys())
def test_what_is_not_for_this_enclave_task_round_and_model_is_malformed(
    small: Any, attack: Callable[[Any], bytes]
) -> None:
    assert small.submit(attack(small)) is Refusal.MALFORMED
    assert small.core.round_state(small.task_sha256, 0).contributions == 0
    assert small.submit(small.sealed(1)) is None


def test_r13_no_flipped_bit_of_a_sealed_contribution_survives(small: Any) -> None:
    sealed = small.sealed(1)
    for place in range(0, len(sealed), 7):
        flipped = bytearray(sealed)
        flipped[place] ^= 1 << place % 8
        assert small.submit(bytes(flipped)) is Refusal.MALFORMED
    assert small.submit(sealed) is None


def test_r13_duplicates_of_every_kind_count_once(small: Any) -> None:
    first = small.sealed(1)
    assert small.submit(first) is None
    duplicates = [
        first,
        small.sealed(1),
        small.sealed(1, payload=payload(0)),
        small.sealed(1, contribution_id=bytes(32)),
        small.sealed(1, pseudonym=bytes(32)),
    ]
    assert {small.submit(sealed) for sealed in duplicates} == {Refusal.ALREADY_CONTRIBUTED}
    assert small.core.round_state(small.task_sha256, 0).contributions == 1


def test_r43_a_device_counts_at_most_once_per_round_and_in_no_more_rounds_than_the_task_has(make_world: Make) -> None:
    world = make_world(minimum=3, noise=NoNoise())
    rounds = len(world.algorithm.planned_releases())
    counted = 0
    for number in range(rounds):
        world.open(number)
        world.fill(range(2), number)
        for _ in range(3):
            counted += world.submit(world.sealed(9, number), number) is None
        world.learn(world.close(number))
        # A round that is over takes nothing more, and cannot be opened again.
        assert world.submit(world.sealed(9, number), number) is Refusal.ROUND_CLOSED
        world.open(number)
        assert world.submit(world.sealed(10, number), number) is Refusal.ROUND_CLOSED
    assert counted == rounds
    assert world.core.submit(world.task_sha256, rounds, world.sealed(9, rounds - 1)) is Refusal.WRONG_ROUND


def test_r43_the_ids_of_a_device_share_nothing_between_rounds_and_tasks_without_its_secret() -> None:
    secret, task, other = bytes([7]) * 32, bytes([1]) * 32, bytes([2]) * 32
    ids = [domains.contribution_id(secret, one, number) for one in (task, other) for number in range(50)]
    ids += [domains.pseudonym(secret, one) for one in (task, other)]
    assert len(set(ids)) == len(ids)
    # Four bytes in common among 816 random pieces: probability 1e-4.
    pieces = [piece[start : start + 4] for piece in ids for start in range(0, 32, 4)]
    assert len(set(pieces)) == len(pieces)


def test_r43_what_is_kept_of_a_pseudonym_is_another_value_in_every_round(make_world: Make) -> None:
    world = make_world(minimum=3, noise=NoNoise())
    kept = []
    for number in range(2):
        world.open(number)
        world.fill(range(3), number)
        kept.append(tags(world.held(number)._accepted_set))
        world.learn(world.close(number))
    pseudonyms = {world.contribution(device).pseudonym for device in range(3)}
    assert len(kept[0]) == len(kept[1]) == 3
    assert not kept[0] & kept[1]
    assert not (kept[0] | kept[1]) & {pseudonym[:16] for pseudonym in pseudonyms}


def test_r12_after_every_attack_the_release_is_the_sum_of_the_honest(make_world: Make) -> None:
    world = make_world(minimum=3, noise=NoNoise())
    world.open()
    world.fill(range(2))
    for attack in MALFORMED.values():
        assert world.submit(attack(world)) is Refusal.MALFORMED
    for rounds, changes in OUT_OF_BOUNDS.values():
        if 0 in rounds:
            assert world.submit(world.sealed(50, payload=payload(0, **changes))) is Refusal.OUT_OF_BOUNDS
    world.fill(range(2, 4))
    release = common_pb2.Release.FromString(common_pb2.SignedRelease.FromString(world.close()).release)
    expected = world.algorithm.query(0).new_sum()
    expected.add([world.payload(device) for device in range(4)])
    np.testing.assert_array_equal(np.frombuffer(release.tensors[0].integers, "<i8"), expected.totals()["counts"])
    assert release.contributions == 4


def test_r44_an_answer_to_an_upload_is_one_number_of_a_closed_set_and_its_signature() -> None:
    assert {refusal.value for refusal in Refusal} == set(aggregator_pb2.Refusal.values()) - {0}
    assert [field.name for field in aggregator_pb2.SubmitResponse.DESCRIPTOR.fields] == ["refusal", "signature"]
    assert {refusal.name for refusal in Refusal} == {
        name.removeprefix("REFUSAL_")
        for name in aggregator_pb2.Refusal.keys()  # noqa: SIM118  # an enum, no dict
    } - {"UNSPECIFIED"}


def test_r44_nothing_that_leaves_counts_refusals(small: Any) -> None:
    quiet = (small.core.round_state(small.task_sha256, 0), dict(small.records), small.core.ledger(small.task_sha256))
    for attack in MALFORMED.values():
        small.submit(attack(small))
    for _ in range(5):
        small.submit(small.sealed(1, payload=payload(0, items=[1, 1, 7, 11])))
    assert quiet == (
        small.core.round_state(small.task_sha256, 0),
        dict(small.records),
        small.core.ledger(small.task_sha256),
    )
    for message in (aggregator_pb2.GetRoundResponse, common_pb2.Release):
        assert not [field.name for field in message.DESCRIPTOR.fields if "refus" in field.name]
