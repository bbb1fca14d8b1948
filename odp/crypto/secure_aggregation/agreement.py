"""The shared secrets of two clients of a session: the key of their channel, and the seed of their mask.

Both are HKDF-SHA-256 over the X25519 secret of their keys, with

    info = domain || session id || number || number || key || key        the smaller number first, then its key

So a secret belongs to one purpose, one session and one pair of clients with exactly these keys. Another client whose
key gives the same X25519 secret (an alias: ``odp.crypto.public_keys``) shares neither a mask nor a channel with anybody
who shares one with the original: masks that cancel would take honest clients out of the graph.

Sources: RFC 5869; RFC 7748, section 6.1 (why public keys belong into the derivation).
"""

from __future__ import annotations

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from odp.crypto import domains
from odp.crypto.secure_aggregation.session import Session

SECRET_BYTES = 32
_NUMBER_BYTES = 4


def channel_key(private_key: X25519PrivateKey, session: Session, number: int, other: int) -> bytes:
    """AES-256 key (32 bytes) of the channel between clients ``number`` and ``other``.

    Args:
        private_key: the private half of the channel key that client ``number`` advertised.
        session: whose adverts were checked.
        number, other: of two clients of it.
    """
    keys = [session.adverts[client].channel_key for client in (number, other)]
    return _derived(private_key, domains.SECAGG_CHANNEL, session, (number, other), keys)


def mask_seed(private_key: X25519PrivateKey, session: Session, number: int, other: int) -> bytes:
    """Seed (32 bytes) of the mask between two clients; arguments as of ``channel_key``, but of the mask keys."""
    keys = [session.adverts[client].mask_key for client in (number, other)]
    return _derived(private_key, domains.SECAGG_PAIR_MASK, session, (number, other), keys)


def _derived(
    private_key: X25519PrivateKey, domain: bytes, session: Session, numbers: tuple[int, int], keys: list[bytes]
) -> bytes:
    shared = private_key.exchange(X25519PublicKey.from_public_bytes(keys[1]))
    if numbers[0] > numbers[1]:
        numbers, keys = numbers[::-1], keys[::-1]
    pair = b"".join(number.to_bytes(_NUMBER_BYTES, "big") for number in numbers) + b"".join(keys)
    info = domain + session.id + pair
    return HKDF(hashes.SHA256(), length=SECRET_BYTES, salt=None, info=info).derive(shared)
