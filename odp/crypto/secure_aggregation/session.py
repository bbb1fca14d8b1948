"""One SecAgg+ session: its checked configuration, its clients' keys, and the id that binds every message to both.

The id is the hash of the configuration and of all advertised keys in order. Two clients with different configurations,
models or key lists are in two sessions, whose keys, masks and shares have nothing in common.

Source: Bonawitz et al. 2017, figure 4; Pasquini et al. 2022 for what different models would give away.

The shared secrets of two clients of a session: the key of their channel, and the seed of their mask.

Both are HKDF-SHA-256 over the X25519 secret of their keys, with

    info = domain || session id || number || number || key || key        the smaller number first, then its key

So a secret belongs to one purpose, one session and one pair of clients with exactly these keys. Another client whose
key gives the same X25519 secret (an alias: ``odp.crypto.public_keys``) shares neither a mask nor a channel with anybody
who shares one with the original: masks that cancel would take honest clients out of the graph.

Sources: RFC 5869; RFC 7748, section 6.1 (why public keys belong into the derivation).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from google.protobuf.message import DecodeError

from odp import _validate
from odp.crypto import domains, signing
from odp.crypto.public_keys import require_ed25519, require_x25519
from odp.crypto.secure_aggregation.graph import REVEAL_BYTES
from odp.crypto.secure_aggregation.parameters import (
    MOST_ATTEMPTS,
    Adversary,
    Parameters,
    Threat,
    fewest_survivors,
    find,
)
from odp.crypto.secure_aggregation.ring import Ring
from odp.errors import ConfigurationError, PrivacyError
from odp.v1 import secure_aggregation_pb2 as messages

HASH_BYTES = 32
#: Length of every advert: four keys and hashes of 32 bytes, a signature of 64, and two bytes before each.
ADVERT_BYTES = 4 * (2 + 32) + 2 + 64
LARGEST_CONFIG = 4096
LARGEST_LENGTH = 2**28

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Configuration:
    """A configuration whose every field was checked; ``data`` are the bytes that were signed and hashed.

    Attributes:
        task_sha256, model_sha256, round: what is summed.
        length: numbers of each vector.
        ring: their range and modulus.
        threat: what is withstood.
        minimum: fewest clients of a sum.
        attempt: from 0.
    """

    data: bytes
    task_sha256: bytes
    model_sha256: bytes
    round: int
    length: int
    ring: Ring
    threat: Threat
    minimum: int
    attempt: int

    @classmethod
    def open(cls, data: bytes) -> Configuration:
        """Reads and checks a serialized SecAggConfig.

        Raises:
            ConfigurationError: malformed, or a field is out of its range.
            PrivacyError: the threat cannot be withstood.
        """
        if not 0 < len(data) <= LARGEST_CONFIG:
            raise ConfigurationError(f"Expected a configuration of 1 to {LARGEST_CONFIG} bytes, got {len(data)}")
        try:
            message = messages.SecAggConfig.FromString(data)
        except DecodeError:
            raise ConfigurationError("Expected a serialized SecAggConfig") from None
        require_length("task_sha256", message.task_sha256, HASH_BYTES)
        require_length("model_sha256", message.model_sha256, HASH_BYTES)
        _validate.integer(low=1, high=LARGEST_LENGTH, length=message.length)
        _validate.integer(low=0, high=MOST_ATTEMPTS - 1, attempt=message.attempt)
        ring = Ring(bits=message.bits, bound=message.bound, maximum=message.maximum, noise=message.noise_bound)
        _validate.integer(low=2, high=ring.maximum, minimum=message.minimum)
        adversary = Adversary.LYING if message.lying_server else Adversary.SEMI_HONEST
        threat = Threat(
            adversary=adversary, corrupt=message.corrupt, dropout=message.dropout, roster=message.roster_size
        )
        return cls(
            data, message.task_sha256, message.model_sha256, message.round, message.length, ring, threat,
            message.minimum,
            message.attempt,
        )  # fmt: skip


@dataclass(frozen=True)
class Session:
    """A configuration with all its clients: made from the same bytes, it is the same for everybody."""

    configuration: Configuration
    adverts: tuple[messages.SecAggAdvert, ...]
    id: bytes
    parameters: Parameters

    @classmethod
    def open(
        cls, configuration: Configuration, adverts: Sequence[messages.SecAggAdvert], *, roster: Collection[bytes] | None
    ) -> Session:
        """Checks every advert, and derives id, neighbours and threshold.

        ``roster`` holds the identities that may take part; None where clients do not know each other, and then nothing
        stops a lying server from playing all other clients itself (docs/secure-aggregation.md).

        Raises:
            PrivacyError: a key is none (``odp.crypto.public_keys``), repeated, unsigned or of nobody on the roster, the
                roster is not as large as the configuration says, or the clients are too few or too many.
        """
        clients = len(adverts)
        if not max(3, configuration.minimum) <= clients <= configuration.ring.maximum:
            raise PrivacyError(
                f"Expected {max(3, configuration.minimum)} to {configuration.ring.maximum} clients in a session, got "
                f"{clients}"
            )
        listed = configuration.threat.roster
        if roster is not None and listed and len(roster) != listed:
            raise PrivacyError(f"Expected a roster of {listed} clients, got {len(roster)}: the task has another roster")
        config_sha256 = hashlib.sha256(configuration.data).digest()
        earlier_keys: set[bytes] = set()
        for place, advert in enumerate(adverts):
            check_advert(advert, config_sha256, name=f"client {place}")
            if roster is not None and advert.identity not in roster:
                raise PrivacyError(f"client {place} of the session is not on the roster")
            keys = {advert.identity, advert.channel_key, advert.mask_key, advert.commitment}
            if len(keys) != 4 or keys & earlier_keys:
                raise PrivacyError(f"client {place} of the session repeats a key of another: one party acts as two")
            earlier_keys |= keys
        total = hashlib.sha256(domains.SECAGG_SESSION + config_sha256)
        for advert in adverts:
            total.update(advert_bytes(advert) + advert.signature)
        parameters = find(clients=clients, threat=configuration.threat)
        return cls(configuration, tuple(adverts), total.digest(), parameters)

    @property
    def clients(self) -> int:
        """How many clients the session has."""
        return len(self.adverts)

    @property
    def fewest_survivors(self) -> int:
        """The smallest number of clients in a sum: the minimum, and all but the declared dropouts."""
        configuration = self.configuration
        return fewest_survivors(clients=self.clients, minimum=configuration.minimum, threat=configuration.threat)


def sign_advert(
    identity: signing.SigningKey,
    *,
    configuration: Configuration,
    channel_key: bytes,
    mask_key: bytes,
    commitment: bytes,
) -> messages.SecAggAdvert:
    """A client's keys under its identity, good for this configuration alone."""
    advert = messages.SecAggAdvert(
        identity=identity.public, channel_key=channel_key, mask_key=mask_key, commitment=commitment
    )
    config_sha256 = hashlib.sha256(configuration.data).digest()
    advert.signature = identity.sign(domains.SECAGG_ADVERT, config_sha256 + _signed_part(advert))
    return advert


def check_advert(advert: messages.SecAggAdvert, config_sha256: bytes, *, name: str) -> None:
    """Raises PrivacyError unless keys and signature of ``advert`` are good for this configuration."""
    try:
        require_ed25519(advert.identity, name="identity")
        require_x25519(advert.channel_key, name="channel_key")
        require_x25519(advert.mask_key, name="mask_key")
        require_length("commitment", advert.commitment, HASH_BYTES)
        if advert.ByteSize() != ADVERT_BYTES:  # fields that nobody knows are handed on, too
            raise ConfigurationError(f"Expected {ADVERT_BYTES} bytes, got {advert.ByteSize()}")
        verify(advert.identity, advert.signature, domains.SECAGG_ADVERT, config_sha256 + _signed_part(advert))
    except (ConfigurationError, signing.SignatureError) as error:
        raise PrivacyError(f"the keys of {name} are refused: {error}") from None


def advert_bytes(advert: messages.SecAggAdvert) -> bytes:
    """A client's part of the session id's hash: fixed lengths, so no two lists give the same bytes."""
    return advert.identity + _signed_part(advert)


def _signed_part(advert: messages.SecAggAdvert) -> bytes:
    return advert.channel_key + advert.mask_key + advert.commitment


@functools.lru_cache(maxsize=4096)
def verify(public: bytes, signature: bytes, domain: bytes, data: bytes) -> None:
    """``signing.verify`` with a cache: a process verifies each signature once, not for each of its clients.

    Raises SignatureError, which is not remembered.
    """
    signing.verify(public, signature, domain, data)


def seed_sha256(seed: bytes, session: bytes) -> bytes:
    """A client's commitment to its self mask's seed (32 bytes): it verifies shares, and reveals nothing of a mask."""
    return hashlib.sha256(domains.SECAGG_SELF_MASK + session + seed).digest()


def pack(members: BoolArray) -> bytes:
    """One bit for each client, the first in the lowest bit of the first byte."""
    return np.packbits(members, bitorder="little").tobytes()


def unpack(data: bytes, *, clients: int, name: str) -> BoolArray:
    """The set that ``pack`` wrote. Raises PrivacyError for another length or a bit beyond the last client."""
    if len(data) != -(-clients // 8):
        raise PrivacyError(f"Expected {name} as {-(-clients // 8)} bytes, got {len(data)}")
    bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little").astype(np.bool_)
    if bits[clients:].any():
        raise PrivacyError(f"{name} names clients that the session does not have")
    return bits[:clients]


def survivors_bytes(session: bytes, shared: bytes, survivors: bytes) -> bytes:
    """The message that clients sign about their list of survivors."""
    return session + hashlib.sha256(shared + survivors).digest()


def require_length(name: str, value: bytes, length: int) -> None:
    """Raises ConfigurationError unless ``value`` has ``length`` bytes."""
    if len(value) != length:
        raise ConfigurationError(f"Expected {name} to be {length} bytes, got {len(value)}")


__all__ = ["REVEAL_BYTES", "Configuration", "Session"]


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
    return HKDF(hashes.SHA256(), length=SECRET_BYTES, salt=None, info=domain + session.id + pair).derive(shared)
