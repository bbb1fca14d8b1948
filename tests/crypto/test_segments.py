"""Large messages in segments: whole and in order, or not at all."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from odp.crypto import domains, hpke
from odp.crypto.hpke import DecryptionError, HpkeKey
from odp.crypto.segments import SEGMENT_BYTES, is_large, open_segments, seal_segments, sealed_bytes
from odp.errors import ConfigurationError

INFO = b"round 1"
SEGMENT = SEGMENT_BYTES + 16
HEAD = 80


@pytest.fixture(scope="module")
def key() -> HpkeKey:
    return HpkeKey.generate()


@pytest.fixture(scope="module")
def plaintext() -> bytes:
    return bytes(range(251)) * (3 * SEGMENT_BYTES // 251)


@pytest.mark.parametrize("length", [1, 100, SEGMENT_BYTES - 1, SEGMENT_BYTES, SEGMENT_BYTES + 1, 3 * SEGMENT_BYTES])
def test_a_message_opens_to_what_was_sealed_and_has_the_stated_length(key: HpkeKey, length: int) -> None:
    given = bytes(length - 1) + b"x"
    sealed = seal_segments(key.public, given, INFO)
    assert len(sealed) == sealed_bytes(length)
    assert open_segments(key, sealed, INFO) == given


def test_the_format_is_the_one_of_the_proto_file(key: HpkeKey, plaintext: bytes) -> None:
    sealed = seal_segments(key.public, plaintext, INFO)
    content = AESGCM(key.open(sealed[:HEAD], INFO))
    body, opened = sealed[HEAD:], b""
    for index in range(3):
        segment = body[index * SEGMENT : (index + 1) * SEGMENT]
        aad = b"odp/v1/segment" + index.to_bytes(4, "big") + (b"\x01" if index == 2 else b"\x00")
        opened += content.decrypt(bytes(8) + index.to_bytes(4, "big"), segment, aad)
    assert opened == plaintext


def test_two_seals_of_one_message_share_nothing(key: HpkeKey) -> None:
    first, second = (seal_segments(key.public, bytes(100), INFO) for _ in range(2))
    assert first[:32] != second[:32]
    assert first[HEAD:] != second[HEAD:]


def attacks(sealed: bytes, other: bytes) -> dict[str, bytes]:
    head, body = sealed[:HEAD], sealed[HEAD:]
    parts = [body[start : start + SEGMENT] for start in range(0, len(body), SEGMENT)]
    flipped = bytearray(sealed)
    flipped[HEAD + SEGMENT + 5] ^= 1
    wrapped = bytearray(sealed)
    wrapped[40] ^= 1
    return {
        "last segment cut off": head + b"".join(parts[:-1]),
        "last byte cut off": sealed[:-1],
        "cut inside the head": sealed[: HEAD - 1],
        "head alone": head,
        "empty": b"",
        "a byte more": sealed + b"\0",
        "a segment twice": head + parts[0] + parts[0] + parts[2],
        "segments exchanged": head + parts[1] + parts[0] + parts[2],
        "last segment first": head + parts[2] + parts[1] + parts[0],
        "a segment of another message": head + parts[0] + other[HEAD + SEGMENT : HEAD + 2 * SEGMENT] + parts[2],
        "the head of another message": other[:HEAD] + body,
        "a flipped bit": bytes(flipped),
        "a flipped bit of the key": bytes(wrapped),
    }


@pytest.mark.parametrize("name", attacks(bytes(HEAD + 3 * SEGMENT), bytes(HEAD + 3 * SEGMENT)))
def test_whatever_is_done_to_a_message_it_does_not_open(key: HpkeKey, plaintext: bytes, name: str) -> None:
    sealed, other = (seal_segments(key.public, plaintext, INFO) for _ in range(2))
    with pytest.raises(DecryptionError):
        open_segments(key, attacks(sealed, other)[name], INFO)


def test_another_context_or_key_does_not_open(key: HpkeKey) -> None:
    sealed = seal_segments(key.public, b"ratings", INFO)
    for opener, info in ((key, b"round 2"), (HpkeKey.generate(), INFO)):
        with pytest.raises(DecryptionError):
            open_segments(opener, sealed, info)


def test_a_wrapped_key_of_another_length_does_not_open(key: HpkeKey) -> None:
    """AES would take 16 bytes as well; the head's length leaves room for 32 alone."""
    sealed = hpke.seal(key.public, bytes(16), INFO)
    content = AESGCM(bytes(16)).encrypt(bytes(12), bytes(16), domains.segment_aad(0, last=True))
    with pytest.raises(DecryptionError):
        open_segments(key, sealed + content, INFO)


def test_an_empty_message_and_a_useless_key_are_refused(key: HpkeKey) -> None:
    with pytest.raises(ConfigurationError, match="at least one byte"):
        seal_segments(key.public, b"", INFO)
    with pytest.raises(ConfigurationError, match="low order"):
        seal_segments(bytes(32), b"x", INFO)


def test_payloads_above_one_mebibyte_are_large() -> None:
    assert not is_large(2**20)
    assert is_large(2**20 + 1)
