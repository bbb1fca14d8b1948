"""A device's side: the same request again after a death, and nothing for an issuer that does not keep the protocol."""

from __future__ import annotations

import pytest
from trust.enrolment.world import NOW, World

from odp.crypto import domains
from odp.crypto.signing import SignatureError
from odp.errors import ConfigurationError, EnrolmentError
from odp.trust.enrolment.tokens import TokenRequest
from odp.v1 import enrolment_pb2


def test_a_device_that_died_asks_for_the_same_again_without_having_stored_anything(world: World) -> None:
    key, device = world.token_key(world.developer.task(), 0), world.device(1)
    assert device.request(key, world.key.public) == device.request(key, world.key.public, now=NOW + 9.0)


def test_requests_of_other_rounds_messages_and_devices_share_no_randomness(world: World) -> None:
    task = world.developer.task()
    keys = [world.token_key(task, round) for round in range(2)]
    requests = [
        world.device(number).request(key, world.key.public, message=message)
        for number in range(2)
        for key in keys
        for message in (bytes(32), b"m" * 32)
    ]
    assert len({request.blinding.inverse for request in requests}) == len(requests)
    assert len({request.blinding.blinded_message for request in requests}) == len(requests)


def test_a_device_makes_no_statement_that_the_issuer_would_not_take(world: World) -> None:
    key, device = world.token_key(world.developer.task(), 0), world.device(1)
    request = device.request(key, world.key.public)
    reply = enrolment_pb2.GetChallengeResponse(challenge=world.issuer.challenge(), attesters=["roster"])
    with pytest.raises(EnrolmentError, match="it accepts: roster"):
        request.answer(reply, device.attester)
    short = enrolment_pb2.GetChallengeResponse(challenge=b"short", attesters=["emulated"])
    with pytest.raises(ConfigurationError, match="challenge"):
        request.answer(short, device.attester)


def test_what_the_issuer_did_not_sign_is_no_token(world: World) -> None:
    task, device = world.developer.task(), world.device(1)
    first = world.token_key(task, 0)
    request = device.request(first, world.key.public)
    other = device.request(first, world.key.public, message=bytes(32))
    answer = world.issue(request.answer(world.challenge(), device.attester))
    for wrong in (b"", bytes(256), answer.blind_signature[:-1], request.blinding.blinded_message):
        with pytest.raises(SignatureError):
            request.token(enrolment_pb2.IssueTokenResponse(blind_signature=wrong))
    with pytest.raises(SignatureError):
        other.token(answer)


def test_a_secret_or_message_of_another_length_is_refused(world: World) -> None:
    key = world.token_key(world.developer.task(), 0)
    for secret, message in ((b"short", bytes(32)), (bytes(32), b"short")):
        with pytest.raises(ConfigurationError):
            TokenRequest.of(key, message, issuer_key=world.key.public, secret=secret, now=NOW)


def test_a_token_for_a_session_is_none_for_a_contribution_and_the_other_way(world: World) -> None:
    key, device = world.token_key(world.developer.task(), 0), world.device(1)
    value = b"i" * 32
    token = world.token(device, key, message=domains.session_token(value))
    assert key.admits(domains.session_token(value), token)
    assert not key.admits(domains.contribution_token(value), token)
