"""R230 to R239: one device, one token, this round; and a token that links to nothing."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from trust.enrolment.world import Developer, Device, World

from odp.crypto import domains
from odp.crypto.blind_rsa import EXPONENT, blind, finalize
from odp.crypto.roster import read_roster
from odp.crypto.signing import SignatureError, SigningKey
from odp.errors import ConfigurationError, EnrolmentError
from odp.signed.task import task_sha256
from odp.transport.service import NotFound
from odp.trust.enrolment.attesters.roster import RosterAttester, RosterVerifier
from odp.trust.enrolment.token_key import TokenKey, open_token_key
from odp.v1 import enrolment_pb2


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def contribution(device: Device, key: TokenKey, number: int) -> bytes:
    """The message of one of the ids that a hostile device makes up."""
    return domains.contribution_token(hashlib.sha256(b"%d" % number + device.contribution_id(key)).digest())


def test_r230_one_device_that_makes_up_a_hundred_contributions_gets_one_token(world: World) -> None:
    key, device = world.token_key(world.developer.task(), 0), world.device(1)
    token = world.token(device, key, message=contribution(device, key, 0))
    for number in range(1, 100):
        with pytest.raises(EnrolmentError, match="one device, one token"):
            world.token(device, key, message=contribution(device, key, number))
    # And the one that it got admits the one id that it was asked for.
    admitted = [number for number in range(100) if key.admits(contribution(device, key, number), token)]
    assert admitted == [0]


def test_r230_a_stranger_without_an_attestation_gets_none(world: World, tmp_path: Path) -> None:
    key = world.token_key(world.developer.task(), 0)
    stranger = World(tmp_path / "stranger", clock=world.clock)  # a vendor of its own
    for number in range(5):
        with pytest.raises(EnrolmentError):
            world.token(stranger.device(number), key)
    stranger.close()
    request = world.device(1).request(key, world.key.public)
    for statement in (b"", b"x" * 1_000):
        bare = enrolment_pb2.IssueTokenRequest(
            task_sha256=key.task_sha256,
            round=0,
            blinded_message=request.blinding.blinded_message,
            challenge=world.issuer.challenge(),
            attester="emulated",
            statement=statement,
        )
        with pytest.raises(EnrolmentError):
            world.issue(bare)
    assert world.storage.sizes() == (1, 0)


def test_r231_tokens_of_another_round_task_population_or_issuer_admit_nothing(world: World, tmp_path: Path) -> None:
    task, device = world.developer.task(), world.device(1)
    other_issuer = World(tmp_path / "other", clock=world.clock)
    other_issuer.developer = world.developer
    other_issuer.restart()
    wanted = world.token_key(task, 0)
    others = [
        world.token_key(world.developer.task("other"), 0),
        world.token_key(world.developer.task(population="readers"), 0),
        other_issuer.token_key(task, 0),
    ]
    message = domains.contribution_token(device.contribution_id(wanted))
    own = world.token(device, wanted, message=message)
    tokens = [world.token(device, key, message=message) for key in others[:2]]
    tokens.append(other_issuer.token(other_issuer.device(1), others[2], message=message))
    # The key of round 0 ends with that of round 1.
    later = world.token_key(task, 1)
    tokens.append(world.token(device, later, message=message))
    assert wanted.admits(message, own)
    for token, key in itertools.product(tokens, [wanted]):
        assert not key.admits(message, token)
    for key in (*others, later):
        assert not key.admits(message, own)
    other_issuer.close()


def test_r231_a_key_of_another_round_task_population_or_issuer_is_no_key_of_this_round(world: World) -> None:
    task = world.developer.task()
    right = {"issuer_key": world.key.public, "population": "viewers", "task_sha256": task_sha256(task), "round": 0}
    open_token_key(world.signed_key(task, 0), **right)  # type: ignore[arg-type]
    replayed = [
        world.signed_key(world.developer.task("other"), 0),
        world.signed_key(world.developer.task(population="readers"), 0),
        world.signed_key(task, 1),
    ]
    for signed in replayed:
        with pytest.raises(ConfigurationError, match="of another"):
            open_token_key(signed, **right)  # type: ignore[arg-type]
    forged = world.token_key(task, 1)
    with pytest.raises(SignatureError):
        open_token_key(forged.signed(SigningKey.generate()), **right)  # type: ignore[arg-type]


def test_r232_a_token_admits_one_id_and_one_identity_however_it_is_replayed(world: World) -> None:
    key, device = world.token_key(world.developer.task(), 0), world.device(1)
    token = world.token(device, key)
    ids = [device.contribution_id(key), *(world.device(number).contribution_id(key) for number in range(2, 30))]
    assert [number for number, value in enumerate(ids) if key.admits(domains.contribution_token(value), token)] == [0]
    assert not any(key.admits(domains.session_token(value), token) for value in ids)
    # RSA is multiplicative: products and quotients of tokens are tokens of nothing.
    other = world.token(world.device(2), key)
    n = int.from_bytes(key.modulus, "big")
    first, second = (int.from_bytes(value, "big") for value in (token, other))
    for made in (first * second % n, first * pow(second, -1, n) % n, n - first, pow(first, 2, n), first + 1):
        data = made.to_bytes(256, "big")
        assert not any(key.admits(domains.contribution_token(value), data) for value in ids)


def test_r233_hoarded_statements_challenges_and_tokens_are_worthless_in_the_next_round(world: World) -> None:
    task, device = world.developer.task(), world.device(1)
    key = world.token_key(task, 0)
    token = world.token(device, key)
    request = world.device(2).request(key, world.key.public)
    hoarded = [request.answer(world.challenge(), world.device(2).attester) for _ in range(5)]
    later = world.token_key(task, 1)
    for answer in hoarded:
        with pytest.raises(EnrolmentError, match="the round is over"):
            world.issue(answer)
        # Nor can the statement be carried over to the new round.
        answer.round = 1
        with pytest.raises((EnrolmentError, ConfigurationError)):
            world.issue(answer)
    assert not later.admits(domains.contribution_token(device.contribution_id(key)), token)


def test_r233_a_replayed_statement_gets_no_second_signature(world: World) -> None:
    key, device = world.token_key(world.developer.task(), 0), world.device(1)
    request = device.request(key, world.key.public)
    recorded = request.answer(world.challenge(), device.attester)
    world.issue(recorded)
    with pytest.raises(EnrolmentError, match="answered before"):
        world.issue(recorded)
    # Under a new challenge, or for what the thief wants signed, it says nothing.
    thief = world.device(9).request(key, world.key.public)
    for changes in (
        {"challenge": world.issuer.challenge()},
        {"blinded_message": thief.blinding.blinded_message},
        {"challenge": world.issuer.challenge(), "blinded_message": thief.blinding.blinded_message},
    ):
        stolen = enrolment_pb2.IssueTokenRequest()
        stolen.CopyFrom(recorded)
        for name, value in changes.items():
            setattr(stolen, name, value)
        with pytest.raises(EnrolmentError):
            world.issue(stolen)


def test_r233_an_issuer_cannot_use_a_statement_at_another_issuer(world: World, tmp_path: Path) -> None:
    """A hostile issuer hands on the honest one's challenge, and the device's statement back."""
    task = world.developer.task()
    hostile = World(tmp_path / "hostile", clock=world.clock)
    hostile.developer = world.developer
    hostile.restart()
    hostile_key, honest_key = hostile.token_key(task, 0), world.token_key(task, 0)
    # What was blinded for one key may be beyond the other's modulus: that is malformed, and no statement is looked at.
    fits = (
        (device, request)
        for device in map(world.device, range(1, 200))
        if int.from_bytes((request := device.request(hostile_key, hostile.key.public)).blinding.blinded_message, "big")
        < honest_key.public.modulus
    )
    device, request = next(fits)
    relayed = request.answer(world.challenge(), device.attester)
    with pytest.raises(EnrolmentError):
        world.issue(relayed)
    world.token(device, honest_key)
    hostile.close()


def test_r234_a_statement_that_says_emulated_counts_where_the_operator_named_that_vendor_alone(tmp_path: Path) -> None:
    members = [SigningKey.generate()]
    (tmp_path / "roster.txt").write_text(members[0].public.hex() + "\n")
    world = World(tmp_path / "world", verifiers=[RosterVerifier(read_roster(tmp_path / "roster.txt"))])
    key = world.token_key(world.developer.task(), 0)
    emulated = world.device(1)
    request = emulated.request(key, world.key.public)
    with pytest.raises(EnrolmentError, match="it accepts: roster"):
        request.answer(world.challenge(), emulated.attester)
    forced = request.answer(
        enrolment_pb2.GetChallengeResponse(challenge=world.issuer.challenge(), attesters=["emulated"]),
        emulated.attester,
    )
    with pytest.raises(EnrolmentError, match="it accepts: roster"):
        world.issue(forced)
    forced.attester = "roster"
    with pytest.raises(EnrolmentError):
        world.issue(forced)
    world.token(Device(b"r" * 32, RosterAttester(members[0])), key)
    world.close()


def test_r235_every_request_of_a_round_could_have_led_to_every_token_of_it(world: World) -> None:
    """What the issuer saw of each device fits each token: there is a blinding factor that explains the pair.

    An issuer that keeps everything and can compute anything is left with guessing.
    """
    key = world.token_key(world.developer.task(), 0)
    modulus = key.public.modulus
    devices = [world.device(number) for number in range(4)]
    blinded = [int.from_bytes(one.request(key, world.key.public).blinding.blinded_message, "big") for one in devices]
    tokens = [int.from_bytes(world.token(device, key), "big") for device in devices]
    signer = world.issuer._signer(key.task_sha256, 0)
    for asked, token in itertools.product(blinded, tokens):
        answered = int.from_bytes(signer.sign(asked.to_bytes(256, "big")), "big")
        factor = answered * pow(token, -1, modulus) % modulus
        assert pow(token, EXPONENT, modulus) * pow(factor, EXPONENT, modulus) % modulus == asked


def test_r235_requests_and_tokens_of_one_device_are_no_more_alike_than_those_of_two(world: World) -> None:
    """Over 300 seeded pairs, the bits that a request and its token share are as many as those of strangers.

    Each share of 2048 bits is binomial; the bound of five standard deviations of the mean over 300 pairs has a
    false-alarm rate of 6e-7, and the seeds are fixed.
    """
    key = world.token_key(world.developer.task(), 0)
    signer = world.issuer._signer(key.task_sha256, 0)
    source = random.Random(20261120)
    pairs = []
    for number in range(300):
        blinding = blind(key.public, hashlib.sha256(b"%d" % number).digest(), source.randbytes)
        token = finalize(key.public, blinding, signer.sign(blinding.blinded_message))
        pairs.append((blinding.blinded_message, token))

    def alike(first: bytes, second: bytes) -> int:
        # Without the first byte, whose law depends on the modulus.
        different = int.from_bytes(first[1:], "big") ^ int.from_bytes(second[1:], "big")
        return 2040 - different.bit_count()

    tolerance = 5 * (2040 / 4 / 300) ** 0.5
    own = sum(alike(*pair) for pair in pairs) / 300
    strangers = sum(alike(pairs[n][0], pairs[n - 1][1]) for n in range(300)) / 300
    assert abs(own - 1020) < tolerance
    assert abs(strangers - 1020) < tolerance


def test_r236_a_second_key_of_a_round_admits_nothing_under_the_first(world: World, tmp_path: Path) -> None:
    """Both statements are under one issuer's key, which proves that it made two."""
    task = world.developer.task()
    second = World(tmp_path / "second", clock=world.clock, key=world.key)
    second.developer = world.developer
    second.restart()
    keys = [one.token_key(task, 0) for one in (world, second)]
    assert keys[0].modulus != keys[1].modulus
    # A token under the key that was shown to one device alone admits nothing under everybody's.
    token = second.token(second.device(1), keys[1])
    assert not keys[0].admits(domains.contribution_token(second.device(1).contribution_id(keys[1])), token)
    second.close()


def test_r237_a_developer_that_is_not_served_gets_no_key_and_costs_no_storage(world: World) -> None:
    stranger = Developer()
    for number in range(20):
        task = stranger.task(f"task-{number}")
        with pytest.raises(EnrolmentError, match="does not serve"):
            world.issuer.token_key(task, *stranger.order(task, 0))
    key = TokenKey("viewers", bytes(32), 0, world.token_key(world.developer.task(), 0).modulus, 2**40)
    with pytest.raises(NotFound):
        world.token(world.device(1), key)
    assert world.storage.sizes() == (1, 0)
