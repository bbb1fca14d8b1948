"""The yardstick of the secagg benchmark: Bonawitz et al. 2017 as one would write it with numpy and cryptography.

Complete graph, AES-CTR masks as whole vectors, Shamir's sharing in numpy over 2^31 - 1. No signatures, no consistency
check, no state machine: what it leaves out makes it faster, not slower.
"""

from __future__ import annotations

import os
from collections.abc import Collection

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_P = 2**31 - 1
_LIMBS = 11  # of 24 bits


def whole_round(vectors: npt.NDArray[np.uint32], *, dropped: Collection[int], threshold: int) -> npt.NDArray[np.uint32]:
    """The sum of the vectors uint32 [clients, length] of all that are not in ``dropped``, by the protocol."""
    clients, length = vectors.shape
    channels = [X25519PrivateKey.generate() for _ in range(clients)]
    masks = [X25519PrivateKey.generate() for _ in range(clients)]
    channel_public = [key.public_key().public_bytes_raw() for key in channels]
    mask_public = [key.public_key().public_bytes_raw() for key in masks]
    seeds = [os.urandom(32) for _ in range(clients)]
    points = np.arange(1, clients + 1, dtype=np.uint64)

    boxes: dict[tuple[int, int], bytes] = {}
    ciphers: dict[tuple[int, int], AESGCM] = {}
    for me in range(clients):
        secrets = [_share(masks[me].private_bytes_raw(), points, threshold), _share(seeds[me], points, threshold)]
        for other in range(clients):
            if other != me:
                ciphers[me, other] = AESGCM(_key(channels[me], channel_public[other], b"channel"))
                plain = secrets[0][other].tobytes() + secrets[1][other].tobytes()
                boxes[me, other] = ciphers[me, other].encrypt(me.to_bytes(12, "big"), plain, None)

    total = np.zeros(length, dtype=np.uint32)
    for me in range(clients):
        if me in dropped:
            continue
        masked = vectors[me] + _mask(seeds[me], length)
        for other in range(clients):
            if other != me:
                mask = _mask(_key(masks[me], mask_public[other], b"mask"), length)
                masked = masked + mask if me < other else masked - mask
        total += masked

    held: dict[tuple[int, int], npt.NDArray[np.uint64]] = {}
    for me in range(clients):
        if me not in dropped:
            for other in range(clients):
                if other != me:
                    opened = ciphers[me, other].decrypt(other.to_bytes(12, "big"), boxes[other, me], None)
                    half = np.frombuffer(opened, dtype=np.uint64).reshape(2, _LIMBS)
                    held[other, me] = half[0] if other in dropped else half[1]
    for other in range(clients):
        holders = [me for me in range(clients) if (other, me) in held][:threshold]
        secret = _rebuild(points[holders], np.stack([held[other, me] for me in holders]))
        if other not in dropped:
            total -= _mask(secret, length)
            continue
        key = X25519PrivateKey.from_private_bytes(secret)
        for me in range(clients):
            if me not in dropped:
                mask = _mask(_key(key, mask_public[me], b"mask"), length)
                total = total - mask if me < other else total + mask
    return total


def _key(own: X25519PrivateKey, other: bytes, info: bytes) -> bytes:
    shared = own.exchange(X25519PublicKey.from_public_bytes(other))
    return HKDF(hashes.SHA256(), length=32, salt=None, info=info).derive(shared)


def _mask(seed: bytes, length: int) -> npt.NDArray[np.uint32]:
    stream = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(4 * length)), dtype=np.uint32)


def _share(secret: bytes, points: npt.NDArray[np.uint64], threshold: int) -> npt.NDArray[np.uint64]:
    limbs = np.array(
        [int.from_bytes(secret[place : place + 3], "little") for place in range(0, 32, 3)], dtype=np.uint64
    )
    coefficients = np.frombuffer(os.urandom(8 * (threshold - 1) * _LIMBS), dtype=np.uint64).reshape(-1, _LIMBS) % _P
    values = np.zeros((len(points), _LIMBS), dtype=np.uint64)
    for row in coefficients[::-1]:
        values = (values + row) * points[:, None] % _P
    return (values + limbs) % _P


def _rebuild(points: npt.NDArray[np.uint64], shares: npt.NDArray[np.uint64]) -> bytes:
    total = np.zeros(_LIMBS, dtype=np.uint64)
    for place, point in enumerate(points):
        weight = 1
        for other in points:
            if other != point:
                weight = weight * int(other) * pow(int(other) - int(point), -1, _P) % _P
        total = (total + shares[place] * np.uint64(weight)) % _P
    return b"".join(int(limb).to_bytes(3, "little") for limb in total)[:32]
