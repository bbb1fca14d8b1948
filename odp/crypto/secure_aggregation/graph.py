"""The neighbours of each client: a ring in an order that neither the server nor any client can choose.

Each client commits to 32 random bytes with its keys and reveals them once all commitments are fixed. The order is a
shuffle seeded by the hash of the session and of all reveals, so one honest client is enough for it to be random, and
everybody can derive it again. On the ring, a client's neighbours are the ``neighbours / 2`` clients on either side;
with as many neighbours as there are others, everybody is everybody's neighbour.

A reveal that is missing ends the session: if it were only left out, whoever holds c reveals back could choose among 2^c
orders. Clients join few sessions of one round, so that starting again is no such choice either.

Source: Bell et al. 2020, section 3.2 (Harary graph on a random order); commit, then reveal: Blum 1983.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from odp.crypto import domains
from odp.errors import ConfigurationError, PrivacyError

REVEAL_BYTES = 32

Int64Array = npt.NDArray[np.int64]


def commitment(reveal: bytes) -> bytes:
    """SHA-256 (32 bytes) that commits a client to ``reveal`` in advance. Raises ConfigurationError."""
    if len(reveal) != REVEAL_BYTES:
        raise ConfigurationError(f"Expected a reveal of {REVEAL_BYTES} bytes, got {len(reveal)}")
    return hashlib.sha256(domains.GRAPH_COMMITMENT + reveal).digest()


def graph_seed(session: bytes, commitments: Sequence[bytes], reveals: Sequence[bytes]) -> bytes:
    """The 32 bytes that fix the order, from everybody's reveals in the order of the clients.

    Raises:
        PrivacyError: a reveal does not belong to its commitment: somebody chose it after the others were known.
    """
    if len(commitments) != len(reveals):
        raise PrivacyError(f"{len(commitments)} commitments but {len(reveals)} reveals: the server left some out")
    for place, (committed, reveal) in enumerate(zip(commitments, reveals, strict=True)):
        if len(reveal) != REVEAL_BYTES or commitment(reveal) != committed:
            raise PrivacyError(f"the reveal of client {place} does not belong to its commitment")
    return hashlib.sha256(domains.GRAPH_SEED + session + b"".join(reveals)).digest()


def order(clients: int, seed: bytes) -> Int64Array:
    """A uniform order of the clients 0 .. clients - 1 from ``seed``, int64 [clients].

    Each client draws 128 bits of AES-256-CTR; the order is that of the drawn numbers, equal ones by client.
    """
    if not seed or clients < 1:
        raise ConfigurationError(f"Expected clients={clients} to be positive, and a seed")
    stream = Cipher(algorithms.AES(hashlib.sha256(seed).digest()), modes.CTR(bytes(16))).encryptor()
    random_numbers = np.frombuffer(stream.update(bytes(16 * clients)), dtype=">u8").reshape(clients, 2)
    return np.lexsort((np.arange(clients), random_numbers[:, 1], random_numbers[:, 0])).astype(np.int64)


def neighbours_of(client: int, *, order: Int64Array, neighbours: int) -> list[int]:
    """The neighbours of one client, ascending."""
    place = int(np.flatnonzero(order == client)[0])
    return sorted(int(order[(place + step) % len(order)]) for step in _steps(len(order), neighbours))


def edges(*, order: Int64Array, neighbours: int) -> Mapping[int, list[int]]:
    """The neighbours of every client, each list ascending."""
    steps = np.array(_steps(len(order), neighbours), dtype=np.int64)
    places = np.arange(len(order))[:, None]
    adjacent = np.sort(order[(places + steps) % len(order)], axis=1)
    return {int(client): row.tolist() for client, row in zip(order, adjacent, strict=True)}


def committee(order: Int64Array, *, neighbours: int) -> list[int]:
    """The clients whose agreement on the survivors counts for all: the first ``neighbours`` of the order, ascending.

    Agreements of each client's own neighbours would not do: on a sparse graph a lying server could drop other clients
    in each part of the ring, all in all far more than any one client lets it. A threshold of this one committee, in
    which each honest client signs once, lets one story pass in the whole session; the committee is drawn as a client's
    neighbours are, so the same threshold serves.
    """
    return sorted(int(client) for client in order[:neighbours])


def _steps(clients: int, neighbours: int) -> list[int]:
    if neighbours == clients - 1:
        return list(range(1, clients))
    if neighbours % 2 or not 2 <= neighbours < clients - 1:
        raise ConfigurationError(f"Expected neighbours={neighbours} to be even and below the {clients} clients")
    half = neighbours // 2
    return [*range(-half, 0), *range(1, half + 1)]
