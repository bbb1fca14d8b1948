"""The statement of a round's key."""

from __future__ import annotations

from typing import Any

import pytest

from odp.crypto import domains
from odp.crypto.blind_signer import BlindSigner
from odp.crypto.signing import SignatureError, SigningKey
from odp.errors import ConfigurationError
from odp.trust.enrolment.token_key import TokenKey, open_token_key
from odp.v1 import enrolment_pb2

ISSUER = SigningKey.generate()
MODULUS = BlindSigner.generate().public.to_bytes()
KEY = TokenKey("viewers", b"t" * 32, 3, MODULUS, 1_790_000_000)
WANTED: dict[str, Any] = {"issuer_key": ISSUER.public, "population": "viewers", "task_sha256": b"t" * 32, "round": 3}


def test_a_statement_opens_for_its_own_round() -> None:
    assert open_token_key(KEY.signed(ISSUER), **WANTED) == KEY


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("issuer_key", SigningKey.from_bytes(b"o" * 32).public, SignatureError),
        ("population", "readers", ConfigurationError),
        ("task_sha256", b"u" * 32, ConfigurationError),
        ("round", 2, ConfigurationError),
    ],
)
def test_a_statement_of_another_issuer_population_task_or_round_is_refused(
    name: str, value: object, error: type[Exception]
) -> None:
    with pytest.raises(error):
        open_token_key(KEY.signed(ISSUER), **{**WANTED, name: value})


def test_a_signature_for_anything_else_is_none() -> None:
    data = KEY.signed(ISSUER).token_key
    for domain in domains.SIGNED - {domains.TOKEN_KEY}:
        signed = enrolment_pb2.SignedTokenKey(token_key=data, signature=ISSUER.sign(domain, data))
        with pytest.raises(SignatureError):
            open_token_key(signed, **WANTED)


@pytest.mark.parametrize(
    "values",
    [
        {"population": ""},
        {"population": "No Name"},
        {"task_sha256": b"t" * 31},
        {"modulus": MODULUS[:-1]},
        {"modulus": MODULUS + b"\x01"},
        {"modulus": b"\x00" + MODULUS[1:]},
        {"modulus": MODULUS[:-1] + bytes([MODULUS[-1] & 0xFE])},
        {"modulus": b"\xff" * 384},
        {"not_after": 2**63},
    ],
)
def test_a_signed_statement_with_a_field_out_of_range_is_refused(values: dict[str, Any]) -> None:
    message = enrolment_pb2.TokenKey.FromString(KEY.signed(ISSUER).token_key)
    for name, value in values.items():
        setattr(message, name, value)
    data = message.SerializeToString(deterministic=True)
    signed = enrolment_pb2.SignedTokenKey(token_key=data, signature=ISSUER.sign(domains.TOKEN_KEY, data))
    with pytest.raises(ConfigurationError):
        open_token_key(signed, **WANTED)


def test_junk_and_too_much_are_refused() -> None:
    for data in (b"\xff\xff", b"x" * 2000, b""):
        signed = enrolment_pb2.SignedTokenKey(token_key=data, signature=ISSUER.sign(domains.TOKEN_KEY, data))
        with pytest.raises(ConfigurationError):
            open_token_key(signed, **WANTED)
