"""R230 to R232, R236: an enclave counts one contribution per token of the issuer that the charter names."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trust.enrolment.world import Developer, World as IssuerWorld

from odp.crypto import domains
from odp.crypto.secure_aggregation.masked import mask
from odp.crypto.signing import SigningKey
from odp.errors import ConfigurationError, EnrolmentError, PrivacyError, Refusal
from odp.signed.charter import approve, open_charter, succeed
from odp.trust.enrolment.token_key import TokenKey
from odp.v1 import aggregator_pb2, enrolment_pb2


class Admitting:
    """An enclave whose population names a real issuer, and devices that the issuer attests."""

    def __init__(self, folder: Path, make: Callable[..., Any]) -> None:
        self.issuer = IssuerWorld(folder)
        self.enclave = make(issuer_key=self.issuer.key.public)
        self.issuer.developer = Developer(self.enclave.developer)
        self.issuer.restart()

    def signed_key(self, round: int = 0) -> enrolment_pb2.SignedTokenKey:
        return self.issuer.signed_key(self.enclave.task, round)

    def key(self, round: int = 0) -> TokenKey:
        return self.issuer.token_key(self.enclave.task, round)

    def open(self, round: int = 0) -> None:
        self.enclave.open(round, self.signed_key(round))

    def contribution(self, device: int, **changes: Any) -> aggregator_pb2.Contribution:
        """Of a device that keeps the protocol: with the token of its own id."""
        made = self.enclave.contribution(device, **{"token": b"", **changes})
        if "token" not in changes:
            made.token = self.token(device, made.contribution_id)
        return made

    def token(self, attested: int, contribution_id: bytes, round: int = 0) -> bytes:
        """What the issuer gives to the device number ``attested`` for an id."""
        message = domains.contribution_token(contribution_id)
        return self.issuer.token(self.issuer.device(attested), self.key(round), message=message)

    def submit(self, contribution: aggregator_pb2.Contribution) -> Refusal | None:
        return self.enclave.submit(self.enclave.seal(contribution.SerializeToString(), contribution.round))


@pytest.fixture
def admitting(tmp_path: Path, make_world: Callable[..., Any]) -> Iterator[Admitting]:
    made = Admitting(tmp_path, lambda **changes: make_world(minimum=3, **changes))
    yield made
    made.issuer.close()


def test_r230_of_a_hundred_contributions_of_one_device_the_enclave_counts_one(admitting: Admitting) -> None:
    admitting.open()
    own = admitting.contribution(1)
    answers = [admitting.submit(own)]
    for number in range(99):
        identity = hashlib.sha256(b"sybil %d" % number).digest()
        # The issuer gives this device nothing more, so it uses what it has.
        with pytest.raises(EnrolmentError, match="one device, one token"):
            admitting.token(1, identity)
        answers.append(
            admitting.submit(admitting.contribution(1, contribution_id=identity, pseudonym=identity, token=own.token))
        )
    assert answers == [None] + [Refusal.NO_TOKEN] * 99
    assert admitting.enclave.core.round_state(admitting.enclave.task_sha256, 0).contributions == 1


def test_r230_a_contribution_without_a_token_is_not_counted_whatever_stands_in_its_place(admitting: Admitting) -> None:
    admitting.open()
    for token in (bytes(256), b"\xff" * 256, admitting.contribution(1).token[::-1]):
        assert admitting.submit(admitting.contribution(2, token=token)) is Refusal.NO_TOKEN
    for token in (b"", bytes(255), bytes(257)):
        assert admitting.submit(admitting.contribution(2, token=token)) is Refusal.MALFORMED
    assert admitting.submit(admitting.contribution(2)) is None


def test_r231_tokens_of_another_round_task_or_issuer_are_not_counted(
    admitting: Admitting, tmp_path: Path, make_world: Callable[..., Any]
) -> None:
    admitting.open()
    world = admitting.enclave
    wanted = world.contribution(1).contribution_id
    elsewhere = Admitting(tmp_path / "elsewhere", lambda **changes: make_world(minimum=3, **changes))
    other_task = world.sign(world.definition(minimum=3, epsilon=8.0, name="other"))
    message = domains.contribution_token(wanted)
    device = admitting.issuer.device(1)
    tokens = [
        admitting.issuer.token(device, admitting.issuer.token_key(other_task, 0), message=message),
        elsewhere.token(1, wanted),
    ]
    # The key of round 1 ends that of round 0.
    tokens.append(admitting.issuer.token(device, admitting.key(1), message=message))
    for token in tokens:
        assert admitting.submit(admitting.contribution(1, token=token)) is Refusal.NO_TOKEN
    elsewhere.issuer.close()


def test_r232_a_token_that_was_counted_counts_for_no_other_id_and_not_again(admitting: Admitting) -> None:
    admitting.open()
    own = admitting.contribution(1)
    assert admitting.submit(own) is None
    assert admitting.submit(own) is Refusal.ALREADY_CONTRIBUTED
    assert admitting.submit(admitting.contribution(2, token=own.token)) is Refusal.NO_TOKEN
    renamed = admitting.contribution(1, pseudonym=b"p" * 32, token=own.token)
    assert admitting.submit(renamed) is Refusal.ALREADY_CONTRIBUTED


def test_r236_a_round_takes_one_key_and_no_other_one_after_a_restart_either(admitting: Admitting) -> None:
    world, first = admitting.enclave, admitting.signed_key()
    marking = admitting.issuer.token_key(world.sign(world.definition(minimum=3, epsilon=8.0, name="marking")), 0)
    # What an issuer that wants to tell devices apart shows to some of them alone.
    second = dataclasses.replace(admitting.key(), modulus=marking.modulus).signed(admitting.issuer.key)
    world.open(0, first)
    world.open(0, first)
    for _ in range(2):
        for other in (second, None):
            with pytest.raises(PrivacyError, match="open with another token key") as refused:
                world.open(0, other)
            assert "\n" not in str(refused.value)
        assert admitting.submit(admitting.contribution(1)) in (None, Refusal.ALREADY_CONTRIBUTED)
        world.restart()
        assert admitting.submit(admitting.contribution(2, token=bytes(256))) is Refusal.NO_TOKEN
    world.open(0, first)
    assert admitting.enclave.core.round_state(world.task_sha256, 0).contributions == 1


def test_r236_a_round_opens_with_the_key_of_its_own_issuer_round_and_task_alone(
    admitting: Admitting, tmp_path: Path
) -> None:
    world = admitting.enclave
    right = admitting.signed_key()
    key = admitting.key()
    forged = key.signed(SigningKey.generate())
    tampered = enrolment_pb2.SignedTokenKey(token_key=right.token_key, signature=right.signature[::-1])
    for wrong in (None, enrolment_pb2.SignedTokenKey(), forged, tampered):
        with pytest.raises(PrivacyError, match=r"names|token key") as refused:
            world.open(0, wrong)
        assert "\n" not in str(refused.value)
    other_task = world.sign(world.definition(minimum=3, epsilon=8.0, name="other"))
    for other in (admitting.issuer.signed_key(other_task, 0), admitting.signed_key(1)):
        with pytest.raises(ConfigurationError, match="of another"):
            world.open(0, other)
    junk = enrolment_pb2.SignedTokenKey(
        token_key=b"\xff" * 40, signature=admitting.issuer.key.sign(domains.TOKEN_KEY, b"\xff" * 40)
    )
    with pytest.raises(ConfigurationError):
        world.open(0, junk)
    assert world.core.round_states() == []
    world.open(0, right)


def test_r236_a_population_without_an_issuer_takes_no_key(admitting: Admitting, make_world: Callable[..., Any]) -> None:
    open_to_all = make_world(minimum=3)
    with pytest.raises(PrivacyError, match="names no issuer"):
        open_to_all.open(0, admitting.signed_key())
    open_to_all.open()
    assert open_to_all.submit(open_to_all.sealed(1)) is None
    # A field that the round does not have makes the contribution longer than all others.
    assert open_to_all.submit(open_to_all.sealed(2, token=bytes(256))) is Refusal.MALFORMED


def test_r236_another_issuer_of_a_later_charter_has_its_say_from_the_next_round_on(admitting: Admitting) -> None:
    admitting.open()
    world = admitting.enclave
    charter = open_charter(world.core.charter(world.population))
    other = SigningKey.generate()
    after = succeed(charter, owners=charter.owners, issuer_key=other.public)
    world.settle(world.core.set_charter(approve(after, world.developer)))
    assert admitting.submit(admitting.contribution(1)) is None
    world.open(0, admitting.signed_key())
    for device in (2, 3):
        assert admitting.submit(admitting.contribution(device)) is None
    world.learn(world.close())
    with pytest.raises(PrivacyError, match="not signed by the issuer"):
        admitting.open(1)


def test_r230_masked_rounds_ask_for_tokens_too(tmp_path: Path, make_statistics: Callable[..., Any]) -> None:
    masked = Admitting(tmp_path, lambda **changes: make_statistics(40, aggregation="masked", **changes))
    masked.open()
    world = masked.enclave

    def submit(device: int, token: bytes | None = None) -> Refusal | None:
        halves = mask(
            world.payload(device), info=domains.masked_vector_info(world.task_sha256, 0),
            random_bytes=np.random.default_rng(device).bytes,
        )  # fmt: skip
        given = masked.contribution(device, payload=b"", **({} if token is None else {"token": token}))
        given.payload = halves.secret
        digest = hashlib.sha256(halves.vector).digest()
        sealed = world.seal(given.SerializeToString())
        assert len(sealed) == world.core.sealed_bytes(world.task_sha256, 0)
        answer: Refusal | None = world.core.submit(world.task_sha256, 0, sealed, host_sha256=digest)
        return answer

    assert submit(1) is None
    assert submit(2, masked.token(2, bytes(32))) is Refusal.NO_TOKEN
    masked.issuer.close()
