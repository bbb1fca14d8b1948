"""Ed25519 with domains: known answer, separation, strictness."""

from __future__ import annotations

import itertools

import pytest

from odp.crypto import domains
from odp.crypto.signing import SignatureError, SigningKey, verify
from odp.errors import ConfigurationError, OdpError

# RFC 8032, section 7.1, test 1: this seed has this public key.
RFC_8032_SEED = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
RFC_8032_PUBLIC = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")


def test_the_public_key_is_that_of_rfc_8032() -> None:
    assert SigningKey.from_bytes(RFC_8032_SEED).public == RFC_8032_PUBLIC


@pytest.mark.parametrize("domain", sorted(domains.SIGNED))
def test_a_signature_verifies_in_its_own_domain_and_in_no_other(domain: bytes) -> None:
    key = SigningKey.generate()
    signature = key.sign(domain, b"data")
    assert len(signature) == 64
    verify(key.public, signature, domain, b"data")
    for other in domains.SIGNED - {domain}:
        with pytest.raises(SignatureError):
            verify(key.public, signature, other, b"data")


def test_no_signed_domain_is_a_prefix_of_another() -> None:
    for first, second in itertools.permutations(domains.SIGNED, 2):
        assert not second.startswith(first)


@pytest.mark.parametrize("domain", [b"", b"odp/v1/tas", b"odp/v1/task0", domains.SELECT])
def test_an_unknown_domain_is_neither_signed_nor_verified(domain: bytes) -> None:
    key = SigningKey.generate()
    with pytest.raises(ConfigurationError, match="odp/v1/task"):
        key.sign(domain, b"data")
    with pytest.raises(ConfigurationError, match="odp/v1/task"):
        verify(key.public, bytes(64), domain, b"data")


def test_changed_data_a_changed_signature_and_another_key_are_refused() -> None:
    key = SigningKey.generate()
    signature = key.sign(domains.TASK, b"data")
    flipped = bytes([signature[0] ^ 1]) + signature[1:]
    attempts = [
        (key.public, signature, b"datum"),
        (key.public, flipped, b"data"),
        (key.public, signature[:-1], b"data"),
        (key.public, signature + b"0", b"data"),
        (key.public, b"", b"data"),
        (SigningKey.generate().public, signature, b"data"),
        (key.public[:-1], signature, b"data"),
        (b"\xff" * 32, signature, b"data"),
    ]
    for public, given, data in attempts:
        with pytest.raises(SignatureError):
            verify(public, given, domains.TASK, data)


def test_a_key_survives_storage_and_its_repr_shows_nothing_of_it() -> None:
    key = SigningKey.generate()
    assert SigningKey.from_bytes(key.to_bytes()).public == key.public
    assert key.to_bytes().hex() not in repr(key)
    with pytest.raises(ConfigurationError, match="32 bytes, got 64"):
        SigningKey.from_bytes(bytes(64))


def test_a_bad_signature_is_an_odp_error() -> None:
    assert issubclass(SignatureError, OdpError)
