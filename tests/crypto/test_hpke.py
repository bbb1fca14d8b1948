"""HPKE against RFC 9180, and against everything that must not open."""

from __future__ import annotations

import hmac

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from odp.crypto.hpke import OVERHEAD, DecryptionError, HpkeKey, seal
from odp.errors import ConfigurationError

# RFC 9180, appendix A.1.1: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-128-GCM, base mode, sequence number 0.
INFO = bytes.fromhex("4f6465206f6e2061204772656369616e2055726e")
EPHEMERAL_SECRET = bytes.fromhex("52c4a758a802cd8b936eceea314432798d5baf2d7e9235dc084ab1b9cfa2f736")
EPHEMERAL_PUBLIC = bytes.fromhex("37fda3567bdbd628e88668c3c8d7e97d1d1253b6d4ea6d44c150f741f1bf4431")
RECEIVER_SECRET = bytes.fromhex("4612c550263fc8ad58375df3f557aac531d26850903e55a9f23f21d8534e8ac8")
RECEIVER_PUBLIC = bytes.fromhex("3948cfe0ad1ddb695d780e59077195da6c56506b027329794ab02bca80815c4d")
KEY = bytes.fromhex("4531685d41d65f03dc48f6b8302c05b0")
BASE_NONCE = bytes.fromhex("56d890e5accaaf011cff4b7d")
PLAINTEXT = bytes.fromhex("4265617574792069732074727574682c20747275746820626561757479")
CIPHERTEXT = bytes.fromhex("f938558b5d72f1a23810b4be2ab4f84331acc02fc97babc53a52ae8218a355a96d8770ac83d07bea87e13c512a")

KEM_SUITE = b"KEM\x00\x20"
HPKE_SUITE = b"HPKE\x00\x20\x00\x01\x00\x01"


def labeled_extract(suite: bytes, salt: bytes, label: bytes, material: bytes) -> bytes:
    return hmac.digest(salt, b"HPKE-v1" + suite + label + material, "sha256")


def labeled_expand(suite: bytes, key: bytes, label: bytes, info: bytes, length: int) -> bytes:
    labeled = length.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
    return hmac.digest(key, labeled + b"\x01", "sha256")[:length]


def key_schedule(shared: bytes, enc: bytes, receiver: bytes, info: bytes) -> tuple[bytes, bytes]:
    """Key and base nonce by RFC 9180 sections 4.1 and 5.1, written from the text, independent of the library."""
    extracted = labeled_extract(KEM_SUITE, b"", b"eae_prk", shared)
    secret = labeled_expand(KEM_SUITE, extracted, b"shared_secret", enc + receiver, 32)
    context = (
        b"\x00"
        + labeled_extract(HPKE_SUITE, b"", b"psk_id_hash", b"")
        + labeled_extract(HPKE_SUITE, b"", b"info_hash", info)
    )
    scheduled = labeled_extract(HPKE_SUITE, secret, b"secret", b"")
    return (
        labeled_expand(HPKE_SUITE, scheduled, b"key", context, 16),
        labeled_expand(HPKE_SUITE, scheduled, b"base_nonce", context, 12),
    )


def test_a_message_sealed_by_an_independent_implementation_that_meets_rfc_9180_a_1_opens() -> None:
    exchanged = X25519PrivateKey.from_private_bytes(EPHEMERAL_SECRET).exchange(
        X25519PublicKey.from_public_bytes(RECEIVER_PUBLIC)
    )
    key, nonce = key_schedule(exchanged, EPHEMERAL_PUBLIC, RECEIVER_PUBLIC, INFO)
    assert (key, nonce) == (KEY, BASE_NONCE)
    assert AESGCM(key).encrypt(nonce, PLAINTEXT, b"Count-0") == CIPHERTEXT
    # The vector has additional data, which one-shot messages of ODP have not: same key and nonce, without it.
    sealed = EPHEMERAL_PUBLIC + AESGCM(key).encrypt(nonce, PLAINTEXT, b"")
    receiver = HpkeKey.from_bytes(RECEIVER_SECRET)
    assert receiver.public == RECEIVER_PUBLIC
    assert receiver.open(sealed, INFO) == PLAINTEXT


def test_an_independent_implementation_opens_what_seal_made() -> None:
    sealed = seal(RECEIVER_PUBLIC, PLAINTEXT, INFO)
    enc, ciphertext = sealed[:32], sealed[32:]
    exchanged = X25519PrivateKey.from_private_bytes(RECEIVER_SECRET).exchange(X25519PublicKey.from_public_bytes(enc))
    key, nonce = key_schedule(exchanged, enc, RECEIVER_PUBLIC, INFO)
    assert AESGCM(key).decrypt(nonce, ciphertext, b"") == PLAINTEXT


@pytest.mark.parametrize("length", [0, 1, 1500, 100_000])
def test_a_sealed_message_opens_and_is_48_bytes_longer(length: int) -> None:
    key = HpkeKey.generate()
    sealed = seal(key.public, b"x" * length, b"info")
    assert len(sealed) == length + OVERHEAD
    assert key.open(sealed, b"info") == b"x" * length


def test_sealing_twice_gives_unrelated_bytes() -> None:
    key = HpkeKey.generate()
    first, second = (seal(key.public, b"same", b"same") for _ in range(2))
    assert first[:32] != second[:32]
    assert first[32:] != second[32:]


def test_every_way_of_not_opening_gives_one_and_the_same_error() -> None:
    key = HpkeKey.generate()
    sealed = seal(key.public, b"private", b"round 1")
    flipped = [bytes([*sealed[:i], sealed[i] ^ 1, *sealed[i + 1 :]]) for i in (0, 31, 32, len(sealed) - 1)]
    attempts = [(message, b"round 1") for message in (*flipped, sealed[:-1], sealed + b"0", b"", bytes(OVERHEAD))]
    attempts += [(sealed, b"round 2"), (sealed, b"")]
    messages = set()
    for message, info in attempts:
        with pytest.raises(DecryptionError) as caught:
            key.open(message, info)
        messages.add(str(caught.value))
        assert caught.value.__cause__ is None
    with pytest.raises(DecryptionError) as other:
        HpkeKey.generate().open(sealed, b"round 1")
    assert messages == {str(other.value)}


@pytest.mark.parametrize("point", [bytes(32), b"\x01" + bytes(31), b"\xec" + b"\xff" * 30 + b"\x7f"])
def test_a_public_key_of_low_order_is_refused_before_anything_is_encrypted(point: bytes) -> None:
    with pytest.raises(ConfigurationError, match="low order"):
        seal(point, b"private", b"info")


def test_keys_of_a_wrong_length_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="32 bytes, got 31"):
        seal(bytes(31), b"", b"")
    with pytest.raises(ConfigurationError, match="32 bytes, got 33"):
        HpkeKey.from_bytes(bytes(33))


def test_a_key_survives_storage_and_its_repr_shows_nothing_of_it() -> None:
    key = HpkeKey.generate()
    again = HpkeKey.from_bytes(key.to_bytes())
    assert again.public == key.public
    assert again.open(seal(key.public, b"m", b"i"), b"i") == b"m"
    assert key.to_bytes().hex() not in repr(key)
    assert repr(key.to_bytes()) not in repr(key)
