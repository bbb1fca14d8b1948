"""Validation of public keys: the one check for every key that comes from outside.

X25519 accepts any 32 bytes, ignores the highest bit, and reads numbers modulo p = 2^255 - 19: some keys have several
encodings. Ed25519 as OpenSSL implements it does the same, and accepts points whose order divides 8, under which
anybody can sign. So a key is refused here, before it is used or compared, where

- it is no canonical encoding: one key has one spelling, and a comparison of bytes is a comparison of keys;
- its point has low order: the secret that two parties agree on would be known to all, or the signature anybody's.

One alias stays: a point plus one of low order, such as 1 / u for the X25519 key u, has another canonical encoding and
gives the same shared secret, because private keys are multiples of 8. Telling it apart would cost a multiplication by
the group's order. Whoever derives a key from a shared secret therefore binds both public keys as well
(``odp.crypto.secure_aggregation.session``; HPKE does so, RFC 9180, section 4.1).

Sources: RFC 7748, sections 5 and 6.1; RFC 8032, section 5.1.3; Chalkias, Garillot, Nikolaenko 2020, "Taming the many
EdDSAs", for the points of low order.
"""

from __future__ import annotations

from odp.errors import ConfigurationError

KEY_BYTES = 32
#: The field's prime: both kinds of key encode one number below it.
PRIME = 2**255 - 19
_SIGN_BIT = 1 << 255

# u of the points whose order divides 8, on the curve or its twist.
_LOW_ORDER_U = frozenset(
    {
        0,
        1,
        PRIME - 1,
        int.from_bytes(bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"), "little"),
        int.from_bytes(bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"), "little"),
    }
)
# y of the points whose order divides 8; each stands for the two points of either sign.
_LOW_ORDER_Y = frozenset(
    {
        0,
        1,
        PRIME - 1,
        int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little"),
        int.from_bytes(bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"), "little"),
    }
)


def require_x25519(public: bytes, *, name: str) -> None:
    """Returns if ``public`` is the one encoding of an X25519 key, and no point of low order.

    Args:
        public: from outside.
        name: of the key, for the message.

    Raises:
        ConfigurationError: another length, a second spelling of a key, or a point of low order.
    """
    if (u := _number(public, name)) >= PRIME:
        raise ConfigurationError(f"Expected {name} in its canonical encoding: no other encoding of a key is accepted")
    if u in _LOW_ORDER_U:
        raise ConfigurationError(f"Expected {name} not to be a point of low order: its shared secrets are public")


def require_ed25519(public: bytes, *, name: str) -> None:
    """Returns if ``public`` may be an Ed25519 key: the one encoding of its point, which is not of low order.

    Args:
        public: from outside. Whether a point of the curve has this y at all is left to the verification of a signature.
        name: of the key, for the message.

    Raises:
        ConfigurationError: another length, a second spelling of a key, or a point of low order.
    """
    y = _number(public, name) & ~_SIGN_BIT
    if y >= PRIME:
        raise ConfigurationError(f"Expected {name} in its canonical encoding: no other encoding of a key is accepted")
    if y in _LOW_ORDER_Y:  # with either sign: also the spellings of (0, 1) and (0, -1) with a sign that 0 has not
        raise ConfigurationError(f"Expected {name} not to be a point of low order: anybody can sign under it")


def _number(public: bytes, name: str) -> int:
    if len(public) != KEY_BYTES:
        raise ConfigurationError(f"Expected {name} to be {KEY_BYTES} bytes, got {len(public)}")
    return int.from_bytes(public, "little")
