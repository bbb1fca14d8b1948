"""Blind RSA: the known answer of RFC 9474, its algebra, and what it refuses."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from hypothesis import given, settings, strategies as st

from odp.crypto.blind_rsa import EXPONENT, Blinding, PublicKey, blind, finalize
from odp.crypto.blind_signer import BlindSigner, SigningFault
from odp.crypto.signing import SignatureError
from odp.errors import ConfigurationError

VECTOR = {
    name: value if name == "source" else bytes.fromhex(value)
    for name, value in json.loads((Path(__file__).parent / "blind_rsa_vector.json").read_text()).items()
}
SIGNER = BlindSigner.generate()
PUBLIC = SIGNER.public
OTHER = BlindSigner.generate()


def in_turn(*parts: bytes) -> Callable[[int], bytes]:
    """Gives ``parts`` as random bytes, one after the other."""
    left = list(parts)

    def give(count: int) -> bytes:
        part = left.pop(0)
        assert count == len(part)
        return part

    return give


def seeded(seed: int) -> Callable[[int], bytes]:
    return random.Random(seed).randbytes


def signer_of(p: int, q: int) -> BlindSigner:
    """The signer of known primes, p the larger one."""
    d = pow(EXPONENT, -1, (p - 1) * (q - 1))
    numbers = rsa.RSAPrivateNumbers(
        p, q, d, d % (p - 1), d % (q - 1), pow(q, -1, p), rsa.RSAPublicNumbers(EXPONENT, p * q)
    )
    return BlindSigner(numbers.private_key())


def test_every_step_gives_the_known_answer_of_the_rfc() -> None:
    signer = signer_of(*(int.from_bytes(VECTOR[name], "big") for name in "pq"))
    inverse = int.from_bytes(VECTOR["inv"], "big")
    factor = pow(inverse, -1, signer.public.modulus).to_bytes(signer.public.size, "big")
    blinding = blind(signer.public, VECTOR["msg"], in_turn(VECTOR["salt"], factor))
    assert blinding.blinded_message == VECTOR["blinded_msg"]
    assert blinding.inverse == inverse
    blind_signature = signer.sign(blinding.blinded_message)
    assert blind_signature == VECTOR["blind_sig"]
    assert finalize(signer.public, blinding, blind_signature) == VECTOR["sig"]


@settings(max_examples=25, deadline=None)
@given(message=st.binary(max_size=200), seed=st.integers(0, 2**32))
def test_a_signature_is_an_ordinary_pss_signature_over_its_message(message: bytes, seed: int) -> None:
    blinding = blind(PUBLIC, message, seeded(seed))
    signature = finalize(PUBLIC, blinding, SIGNER.sign(blinding.blinded_message))
    assert len(signature) == PUBLIC.size == 256
    PUBLIC.verify(message, signature)
    ordinary = rsa.RSAPublicNumbers(EXPONENT, PUBLIC.modulus).public_key()
    ordinary.verify(signature, message, padding.PSS(padding.MGF1(hashes.SHA384()), 48), hashes.SHA384())
    with pytest.raises(SignatureError):
        PUBLIC.verify(message + b"x", signature)
    with pytest.raises(SignatureError):
        OTHER.public.verify(message, signature)


@settings(max_examples=25, deadline=None)
@given(place=st.integers(0, 255), bit=st.integers(0, 7))
def test_no_changed_signature_verifies(place: int, bit: int) -> None:
    blinding = blind(PUBLIC, b"m", seeded(1))
    signature = bytearray(finalize(PUBLIC, blinding, SIGNER.sign(blinding.blinded_message)))
    signature[place] ^= 1 << bit
    with pytest.raises(SignatureError):
        PUBLIC.verify(b"m", bytes(signature))


@pytest.mark.parametrize("change", [b"", b"\x00", bytes(255), bytes(256), b"\xff" * 256, bytes(257)])
def test_a_signature_of_another_size_or_no_signature_is_refused(change: bytes) -> None:
    with pytest.raises(SignatureError):
        PUBLIC.verify(b"m", change)


def test_a_signature_plus_the_modulus_is_refused() -> None:
    """Otherwise a signature would have two spellings."""
    # Half of all moduli, or more, leave room for a second spelling of every third signature, or more.
    signer = next(found for _ in range(64) if (found := BlindSigner.generate()).public.modulus < 3 * 2**2046)
    public = signer.public
    for seed in range(128):
        blinding = blind(public, b"m", seeded(seed))
        number = int.from_bytes(finalize(public, blinding, signer.sign(blinding.blinded_message)), "big")
        if number + public.modulus < 2**2048:
            with pytest.raises(SignatureError):
                public.verify(b"m", (number + public.modulus).to_bytes(256, "big"))
            return
    pytest.fail("no signature was small enough")  # has a probability below 2^-64


def test_every_request_fits_every_signature() -> None:
    """Given all that the signer sees, each pairing of requests and signatures is as likely as any other."""
    blindings = [blind(PUBLIC, bytes([number]) * 32, seeded(number)) for number in range(4)]
    signatures = [finalize(PUBLIC, one, SIGNER.sign(one.blinded_message)) for one in blindings]
    for asked, signature in itertools.product(blindings, signatures):
        number = int.from_bytes(signature, "big")
        # What would have to be the blinding factor, were this signature the answer to that request.
        factor = int.from_bytes(SIGNER.sign(asked.blinded_message), "big") * pow(number, -1, PUBLIC.modulus)
        factor %= PUBLIC.modulus
        encoded = pow(number, EXPONENT, PUBLIC.modulus)
        assert encoded * pow(factor, EXPONENT, PUBLIC.modulus) % PUBLIC.modulus == int.from_bytes(
            asked.blinded_message, "big"
        )
        message = blindings[signatures.index(signature)].message
        fitting = Blinding(asked.blinded_message, message, pow(factor, -1, PUBLIC.modulus))
        assert finalize(PUBLIC, fitting, SIGNER.sign(asked.blinded_message)) == signature


def test_two_requests_for_one_message_share_nothing() -> None:
    first, second = (blind(PUBLIC, b"m", seeded(seed)) for seed in (1, 2))
    assert first.blinded_message != second.blinded_message
    # Not even the salt, which is in the signature: else equal messages would have equal signatures.
    signatures = [finalize(PUBLIC, one, SIGNER.sign(one.blinded_message)) for one in (first, second)]
    assert signatures[0] != signatures[1]


def test_the_same_randomness_asks_the_same_again_and_gets_the_same_answer() -> None:
    first, second = (blind(PUBLIC, b"m", seeded(7)) for _ in range(2))
    assert first == second
    assert SIGNER.sign(first.blinded_message) == SIGNER.sign(second.blinded_message)


def test_what_is_no_answer_to_the_request_is_refused() -> None:
    blinding, other = (blind(PUBLIC, b"m", seeded(seed)) for seed in (1, 2))
    wrong = [
        SIGNER.sign(other.blinded_message),
        OTHER.sign(blind(OTHER.public, b"m", seeded(1)).blinded_message),
        blinding.blinded_message,
        bytes(256),
        b"\xff" * 256,
        b"",
        bytes(255),
        bytes(257),
    ]
    for answer in wrong:
        with pytest.raises(SignatureError):
            finalize(PUBLIC, blinding, answer)


@pytest.mark.parametrize(
    "blinded",
    [b"", bytes(255), bytes(257), b"\xff" * 256, PUBLIC.to_bytes(), (PUBLIC.modulus + 1).to_bytes(256, "big")],
    ids=["empty", "short", "long", "largest", "modulus", "above"],
)
def test_a_blinded_message_of_another_size_or_beyond_the_modulus_is_not_signed(blinded: bytes) -> None:
    with pytest.raises(ConfigurationError, match="below the modulus"):
        SIGNER.sign(blinded)


def test_a_faulty_private_operation_gives_nothing_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """One half of a CRT result that is wrong reveals a factor of the modulus (Boneh, DeMillo, Lipton 1997)."""
    signer = BlindSigner.generate()
    right = signer._private_power
    monkeypatch.setattr(signer, "_private_power", lambda value: right(value) ^ 1)
    with pytest.raises(SigningFault):
        signer.sign(blind(signer.public, b"m").blinded_message)


@pytest.mark.parametrize(
    "modulus",
    [0, 1, 15, PUBLIC.modulus + 1, PUBLIC.modulus >> 1 | 1, PUBLIC.modulus << 1 | 1, -PUBLIC.modulus],
    ids=["zero", "one", "tiny", "even", "2047 bits", "2049 bits", "negative"],
)
def test_an_even_modulus_and_one_of_another_size_are_refused(modulus: int) -> None:
    with pytest.raises(ConfigurationError, match="odd RSA modulus"):
        PublicKey(modulus)


def test_a_modulus_has_one_spelling() -> None:
    assert PublicKey.from_bytes(PUBLIC.to_bytes()) == PUBLIC
    for wrong in (b"", b"\x00" + PUBLIC.to_bytes(), PUBLIC.to_bytes()[1:], bytes(256), b"\xff" * 4096):
        with pytest.raises(ConfigurationError):
            PublicKey.from_bytes(wrong)


@pytest.mark.slow
def test_nothing_is_asked_of_a_key_whose_modulus_shares_a_factor_with_what_is_blinded() -> None:
    """A factor of such a message would show in every blinding of it, and mark the request."""
    small = 3 * 5 * 7 * 11 * 13 * 17 * 19 * 23
    modulus = small * (2**2047 // small + 2)
    modulus += 0 if modulus % 2 else small
    key = PublicKey(modulus)
    refused = 0
    for seed in range(20):
        try:
            blinding = blind(key, b"m", seeded(seed))
        except ConfigurationError:
            refused += 1
        else:
            assert blinding.inverse  # the message is a unit, so that its blinding says nothing
    # A message is a unit modulo all eight small primes with a probability of 0.33.
    assert refused


def test_randomness_that_never_gives_a_factor_is_an_error_and_not_a_loop() -> None:
    with pytest.raises(ConfigurationError):
        blind(PUBLIC, b"m", lambda count: b"\xff" * count)
    with pytest.raises(ConfigurationError):
        blind(PUBLIC, b"m", bytes)


def test_a_stored_signer_signs_as_before() -> None:
    again = BlindSigner.from_bytes(SIGNER.to_bytes())
    assert again.public == PUBLIC
    blinded = blind(PUBLIC, b"m").blinded_message
    assert again.sign(blinded) == SIGNER.sign(blinded)


def test_what_is_no_private_key_of_this_kind_is_refused() -> None:
    der = (serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    wrong = [
        b"",
        SIGNER.to_bytes()[:-1],
        ec.generate_private_key(ec.SECP256R1()).private_bytes(*der),
        rsa.generate_private_key(EXPONENT, 1024).private_bytes(*der),
        rsa.generate_private_key(3, 2048).private_bytes(*der),
    ]
    for data in wrong:
        with pytest.raises(ConfigurationError):
            BlindSigner.from_bytes(data)


def test_no_secret_is_in_a_repr() -> None:
    blinding = blind(PUBLIC, b"secret message")
    assert "secret" not in repr(blinding)
    assert str(blinding.inverse) not in repr(blinding)
    assert SIGNER.to_bytes().hex() not in repr(SIGNER)
