"""Every spelling of a key but one is refused, and every point under which secrets or signatures are anybody's.

The points of low order are found here by arithmetic on the curve, not taken from a list.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import given, strategies as st

from odp.crypto import HpkeKey, SignatureError, SigningKey, domains, seal, verify
from odp.crypto.hpke import DecryptionError
from odp.crypto.note import Kind, VerifierKey
from odp.crypto.public_keys import PRIME, require_ed25519, require_x25519
from odp.errors import AttestationError, ConfigurationError
from odp.trust.enclave.evidence import Claims
from odp.trust.enclave.registers import NAMES

ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, PRIME) % PRIME

Point = tuple[int, int]


def add(one: Point, two: Point) -> Point:
    """On the twisted Edwards curve of Ed25519."""
    (x, y), (z, w) = one, two
    common = _D * x * y * z * w % PRIME
    return (
        (x * w + z * y) * pow(1 + common, -1, PRIME) % PRIME,
        (y * w + x * z) * pow(1 - common, -1, PRIME) % PRIME,
    )


def times(scalar: int, point: Point) -> Point:
    total: Point = (0, 1)
    while scalar:
        if scalar & 1:
            total = add(total, point)
        point, scalar = add(point, point), scalar >> 1
    return total


def root(square: int) -> int | None:
    found = pow(square, (PRIME + 3) // 8, PRIME)
    if found * found % PRIME != square % PRIME:
        found = found * pow(2, (PRIME - 1) // 4, PRIME) % PRIME
    return found if found * found % PRIME == square % PRIME else None


def points_of_low_order() -> set[Point]:
    """All eight: multiples of a point of order 8, which the group's order makes of a random point."""
    for y in itertools.count(2):
        x = root((y * y - 1) * pow(_D * y * y + 1, -1, PRIME))
        if x is None:
            continue
        torsion = times(ORDER, (x, y))
        found = {times(scalar, torsion) for scalar in range(8)}
        if len(found) == 8:
            return found
    raise AssertionError


TORSION = points_of_low_order()


def u_of(y: int) -> int:
    """The Montgomery form of a point of the Edwards curve; of the neutral element, 0 as X25519 writes it."""
    return (1 + y) * pow(1 - y, -1, PRIME) % PRIME if y != 1 else 0


def encoded(number: int) -> bytes:
    return number.to_bytes(32, "little")


def spellings(number: int) -> list[bytes]:
    """Every 32 bytes that are read as this number, whatever their highest bit."""
    return [encoded(each | bit << 255) for each in (number, number + PRIME) if each < 2**255 for bit in (0, 1)]


def test_every_spelling_of_every_point_of_low_order_is_refused_as_a_signers_key() -> None:
    bad = {spelling for _, y in TORSION for spelling in spellings(y)}
    assert len(bad) >= 14
    for key in sorted(bad):
        with pytest.raises(ConfigurationError, match=r"low order|canonical"):
            require_ed25519(key, name="the key")


@pytest.mark.parametrize("y", sorted({y for _, y in TORSION}))
def test_the_library_takes_signatures_by_nobody_under_such_a_key_and_we_do_not(y: int) -> None:
    """Why it has to be checked: with S = 0 and R of low order, one message in eight at least verifies."""
    key = encoded(y)
    forged = 0
    for number, (x, other) in itertools.product(range(32), TORSION):
        signature, message = encoded(other | (x & 1) << 255) + bytes(32), b"odp/v1/task" + bytes([number])
        try:
            Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
        except InvalidSignature:
            continue
        forged += 1
        with pytest.raises(SignatureError, match="low order"):
            verify(key, signature, domains.TASK, bytes([number]))
    assert forged


def test_every_spelling_of_every_number_that_agrees_on_zeros_is_refused() -> None:
    """Of the curve, and of its twist, which has a point of order 4 at u = -1 besides."""
    own = X25519PrivateKey.generate()
    bad = {spelling for u in {*(u_of(y) for _, y in TORSION), PRIME - 1} for spelling in spellings(u)}
    assert len(bad) == 14
    for key in sorted(bad):
        with pytest.raises(ValueError, match="shared key"):
            own.exchange(X25519PublicKey.from_public_bytes(key))
        with pytest.raises(ConfigurationError, match=r"low order|canonical"):
            require_x25519(key, name="the key")


def test_no_other_small_or_large_number_agrees_on_zeros() -> None:
    own = X25519PrivateKey.generate()
    for number in (*range(2, 64), *range(PRIME - 64, PRIME - 1)):
        require_x25519(encoded(number), name="the key")
        assert own.exchange(X25519PublicKey.from_public_bytes(encoded(number))) != bytes(32)


@given(st.binary(min_size=32, max_size=32))
def test_of_all_spellings_of_a_key_one_is_taken(secret: bytes) -> None:
    public = X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()
    taken = []
    for spelling in spellings(int.from_bytes(public, "little")):
        try:
            require_x25519(spelling, name="the key")
        except ConfigurationError:
            continue
        taken.append(spelling)
    assert taken == [public]
    signer = SigningKey.from_bytes(secret).public
    require_ed25519(signer, name="the key")
    y = int.from_bytes(signer, "little") & ~(1 << 255)
    above = [spelling for spelling in spellings(y) if int.from_bytes(spelling, "little") & ~(1 << 255) >= PRIME]
    for spelling in above:
        with pytest.raises(ConfigurationError, match="canonical"):
            require_ed25519(spelling, name="the key")


@given(st.integers(PRIME, 2**255 - 1), st.booleans())
def test_numbers_of_the_field_and_beyond_are_refused(number: int, sign: bool) -> None:
    key = encoded(number | sign << 255)
    for require in (require_x25519, require_ed25519):
        with pytest.raises(ConfigurationError, match="canonical"):
            require(key, name="the key")


@pytest.mark.parametrize("require", [require_x25519, require_ed25519])
@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_key_of_another_length_is_refused(require: Callable[..., None], length: int) -> None:
    with pytest.raises(ConfigurationError, match=f"the key to be 32 bytes, got {length}"):
        require(bytes(length), name="the key")


def test_an_aliased_key_in_front_of_a_sealed_message_does_not_open_it() -> None:
    """HPKE hashes the key as it was written: whoever spells it otherwise made another message."""
    receiver = HpkeKey.generate()
    sealed = seal(receiver.public, b"ratings", info=b"round 1")
    u = int.from_bytes(sealed[:32], "little")
    assert receiver.open(sealed, info=b"round 1") == b"ratings"
    for alias in (encoded(u | 1 << 255), encoded(pow(u, -1, PRIME))):
        with pytest.raises(DecryptionError):
            receiver.open(alias + sealed[32:], info=b"round 1")


@pytest.mark.parametrize("bit", [True, False], ids=["highest bit", "low order"])
def test_nothing_is_sealed_to_another_spelling_of_a_key(bit: bool) -> None:
    public = HpkeKey.generate().public
    key = public[:31] + bytes([public[31] | 0x80]) if bit else bytes(32)
    with pytest.raises(ConfigurationError, match="canonical" if bit else "low order"):
        seal(key, b"ratings", info=b"round 1")


def test_logs_witnesses_and_endorsers_have_no_key_under_which_anybody_can_sign() -> None:
    for _, y in TORSION:
        with pytest.raises(ConfigurationError, match="low order"):
            VerifierKey("log", Kind.NOTE, encoded(y))


@pytest.mark.parametrize("name", ["hpke_key", "signing_key"])
def test_evidence_for_a_key_that_is_none_is_malformed(name: str) -> None:
    keys = {"hpke_key": HpkeKey.generate().public, "signing_key": SigningKey.generate().public, name: bytes(32)}
    claims = Claims(
        issuer="https://odp.example", issued=1, expires=2, nonce=hashlib.sha256(b"nonce").digest(),
        debug_status="disabled-since-boot", hardware_model="ODP_EMULATED", software_name="odp-aggregator",
        emulated=True, image_digest="sha384:" + "0" * 96,
        registers=dict.fromkeys(NAMES, bytes(48)), report_data=bytes(64),
        **keys,
    )  # fmt: skip
    with pytest.raises(AttestationError, match=f"claim {name} not to be a point of low order"):
        Claims.from_json(claims.to_json())
