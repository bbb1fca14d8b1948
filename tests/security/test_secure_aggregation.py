"""Attacks on sessions of SecAgg+ by a lying server together with as many clients as the task says may be corrupt.

The server here is the attacker's own: it orders the list of keys, relays what it likes, and rebuilds every secret that
honest clients and its own give it shares of. Honest clients are ``odp.crypto.secure_aggregation.client.Client``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

import odp
from odp.crypto.public_keys import PRIME
from odp.crypto.secure_aggregation import graph, keystream, shamir
from odp.crypto.secure_aggregation.client import Client
from odp.crypto.secure_aggregation.session import Configuration, Session, mask_seed, pack, sign_advert
from odp.crypto.signing import SigningKey
from odp.errors import PrivacyError
from odp.privacy import accounting
from odp.privacy.events import DistributedRelease
from odp.v1 import secure_aggregation_pb2 as messages

LENGTH = 16
Alias = Callable[[bytes], bytes]


def highest_bit(key: bytes) -> bytes:
    """The same key to X25519, which ignores this bit."""
    return key[:31] + bytes([key[31] | 0x80])


def plus_low_order(key: bytes) -> bytes:
    """The key's point plus the one of order 2, canonical and of large order: multiples of 8 of both are the same."""
    return pow(int.from_bytes(key, "little"), -1, PRIME).to_bytes(32, "little")


class Isolation:
    """A session in which the masks of one victim are to cancel.

    Its other neighbours are declared dropped, so that their mask keys are rebuilt, or are aliased by corrupt clients.
    These come before the victim in the list, and the honest clients after it: the victim subtracts the masks with the
    ones and adds those with the others.
    """

    def __init__(self, *, corrupt: float, dropout: float, clients: int, alias: Alias) -> None:
        rng = np.random.default_rng(7)
        self.configuration = Configuration.open(
            messages.SecAggConfig(
                task_sha256=bytes(32), round=0, model_sha256=bytes(32), length=LENGTH, bits=32, bound=1000,
                maximum=clients, minimum=3, corrupt=corrupt, dropout=dropout, lying_server=True,
            ).SerializeToString(deterministic=True)
        )  # fmt: skip
        self.corrupt, gone = int(corrupt * clients), int(dropout * clients)
        self.victim = self.corrupt
        self.copied = clients - self.corrupt - gone - 1
        assert self.copied <= self.corrupt, "as many corrupt clients as honest ones whose keys they copy"
        random: Callable[[int], bytes] = rng.bytes
        self.clients = [
            Client(self.configuration, SigningKey.from_bytes(rng.bytes(32)), random_bytes=random)
            for _ in range(clients)
        ]
        self.vectors = rng.integers(-1000, 1000, (clients, LENGTH))
        self.alive = np.arange(clients) < clients - gone
        self.own_keys = [client._live_secrets.mask_key for client in self.clients[: self.corrupt]]
        for liar, original in zip(range(self.copied), range(self.victim + 1, clients), strict=False):
            copied = alias(self.clients[original].advert.mask_key)
            self.clients[liar].advert = self._advert(self.clients[liar], copied)

    def recovered(self) -> np.ndarray:
        """What the server finds for the victim's vector. Raises PrivacyError where an honest client leaves."""
        adverts = messages.SecAggAdverts(
            config=self.configuration.data, adverts=[client.advert for client in self.clients]
        )
        reveals = [client.reveal(adverts).reveal for client in self.clients]
        session = Session.open(self.configuration, adverts.adverts, roster=None)
        assert session.parameters.neighbours == len(self.clients) - 1
        masked = self._masked(session, reveals)
        shares = self._shares(session, reveals)
        found = np.frombuffer(masked[self.victim], "<u4").copy()
        keystream.add_masks(found, minus=[_rebuilt(session, shares[self.victim])], info=session.id)
        for dropped in np.flatnonzero(~self.alive).tolist():
            key = X25519PrivateKey.from_private_bytes(_rebuilt(session, shares[dropped]))
            keystream.add_masks(found, minus=[mask_seed(key, session, dropped, self.victim)], info=session.id)
        for number in range(self.copied, self.corrupt):  # corrupt clients that copied nobody
            seed = mask_seed(self.own_keys[number], session, number, self.victim)
            keystream.add_masks(found, plus=[seed], info=session.id)
        return self.configuration.ring.decode(found)

    def _advert(self, client: Client, mask_key: bytes) -> messages.SecAggAdvert:
        return sign_advert(
            client._identity, configuration=self.configuration, channel_key=client.advert.channel_key,
            mask_key=mask_key, commitment=client.advert.commitment,
        )  # fmt: skip

    def _masked(self, session: Session, reveals: list[bytes]) -> list[bytes]:
        told = messages.SecAggReveals(session=session.id, reveals=reveals)
        sealed = [client.share(told).sealed for client in self.clients]
        masked = []
        for number, client in enumerate(self.clients):
            senders = [other for other in range(len(self.clients)) if other != number]
            given = [sealed[other][number - (number > other)] for other in senders]
            inbox = messages.SecAggInbox(session=session.id, senders=senders, sealed=given)
            masked.append(client.mask(inbox, self.vectors[number]).vector)
        return masked

    def _shares(self, session: Session, reveals: list[bytes]) -> dict[int, list[tuple[int, bytes]]]:
        """client -> points and shares of its secrets: of mask keys of the dropped, of seeds of the others."""
        survivors = messages.SecAggSurvivors(
            session=session.id, shared=pack(np.ones(len(self.clients), dtype=np.bool_)), survivors=pack(self.alive)
        )
        here = np.flatnonzero(self.alive).tolist()
        signatures = {number: self.clients[number].agree(survivors).signature for number in here}
        seed = graph.graph_seed(session.id, [one.commitment for one in session.adverts], reveals)
        order = graph.order(len(self.clients), seed)
        committee = graph.committee(order, neighbours=session.parameters.neighbours)
        signers = [one for one in committee if one in signatures]
        agreements = messages.SecAggAgreements(
            session=session.id, signers=signers, signatures=[signatures[one] for one in signers]
        )
        shares: dict[int, list[tuple[int, bytes]]] = {}
        for number in here:
            given = self.clients[number].unmask(agreements)
            for other, share in zip(given.neighbours, given.shares, strict=True):
                shares.setdefault(other, []).append((number + 1, share))
        return shares


def _rebuilt(session: Session, shares: list[tuple[int, bytes]]) -> bytes:
    chosen = shares[: session.parameters.threshold]
    parts = np.stack([shamir.from_bytes(share) for _, share in chosen])
    return shamir.rebuild([point for point, _ in chosen], parts)


SETTINGS = [(0.4, 0.25, 15), (0.35, 0.25, 12)]


@pytest.mark.parametrize(("corrupt", "dropout", "clients"), SETTINGS)
def test_r190_a_mask_key_in_another_spelling_ends_the_session_before_anybody_reveals(
    corrupt: float, dropout: float, clients: int
) -> None:
    attack = Isolation(corrupt=corrupt, dropout=dropout, clients=clients, alias=highest_bit)
    with pytest.raises(PrivacyError, match="mask_key in its canonical encoding"):
        attack.recovered()


@pytest.mark.parametrize(("corrupt", "dropout", "clients"), SETTINGS)
def test_r191_masks_with_two_keys_of_one_shared_secret_do_not_cancel(
    corrupt: float, dropout: float, clients: int
) -> None:
    """No check of an encoding tells this alias apart: seeds are bound to both clients' numbers and keys."""
    attack = Isolation(corrupt=corrupt, dropout=dropout, clients=clients, alias=plus_low_order)
    original = attack.clients[attack.victim + 1].advert.mask_key
    own = attack.clients[attack.victim]._live_secrets.mask_key
    secrets = {own.exchange(X25519PublicKey.from_public_bytes(key)) for key in (original, plus_low_order(original))}
    assert len(secrets) == 1, "to X25519 it is the same key"
    found = attack.recovered()
    assert np.abs(found - attack.vectors[attack.victim]).max() > 1_000_000


DELTA = 1e-6


def worst_epsilon(share_std: float, honest: int, sensitivity: int) -> float:
    """Epsilon at ``DELTA`` of one number with the shares of ``honest`` devices, from the exact law of their sum.

    Convolutions of the shares' law, and delta(epsilon) from its definition; by bisection, to a part in 1,000.
    """
    numbers = np.arange(-math.ceil(14 * share_std), math.ceil(14 * share_std) + 1, dtype=np.float64)
    share = np.exp(-(numbers**2) / (2.0 * share_std**2))
    share /= share.sum()
    total = np.ones(1)
    for _ in range(honest):
        total = np.convolve(total, share)
    there = np.concatenate([total, np.zeros(sensitivity)])
    away = np.concatenate([np.zeros(sensitivity), total])
    low, high = 0.0, 100.0
    while high - low > 1e-3 * high:
        middle = (low + high) / 2.0
        over = np.maximum(there - math.exp(middle) * away, 0.0).sum() > DELTA
        low, high = (middle, high) if over else (low, middle)
    return high


@pytest.mark.parametrize(
    ("roster", "minimum", "goal", "corrupt", "dropout"),
    [(1000, 126, 126, 0.1, 0.1), (150, 30, 50, 0.1, 0.1), (60, 40, 60, 0.3, 0.1), (40, 20, 40, 0.2, 0.2)],
)
def test_r192_epsilon_is_not_above_the_charge_in_any_session_that_a_host_can_make_of_a_roster(
    roster: int, minimum: int, goal: int, corrupt: float, dropout: float
) -> None:
    """All corrupt devices of the roster sit in the session and stay; as many honest ones as may be are dropped."""
    terms = secagg_terms(roster=roster, minimum=minimum, goal=goal, corrupt=corrupt, dropout=dropout)
    share_std, sensitivity = 5.0, 6
    event = DistributedRelease(
        "films", sensitivity=sensitivity, noise_std=share_std * math.sqrt(terms.sharers), coordinates=1,
        sharers=terms.sharers, step=1.0, graph_delta=2.0**-38,
    )  # fmt: skip
    charged = accounting.epsilon([event], delta=DELTA)
    liars, fewest = math.floor(corrupt * roster + 1e-9), goal
    for clients in range(minimum, goal + 1):
        survivors = max(minimum, clients - math.floor(dropout * clients + 1e-9))
        fewest = min(fewest, survivors - min(liars, clients))
    assert worst_epsilon(share_std, fewest, sensitivity) <= charged
    assert fewest == terms.sharers, "and no noise is given away"
    if fewest > 1:
        assert worst_epsilon(share_std, fewest - fewest // 3 - 1, sensitivity) > charged


def test_r192_a_session_of_the_corrupt_devices_of_a_roster_and_one_honest_one_is_never_held() -> None:
    """The roster of 1,000 of which 99 work for the host, and a session of 100: 1 was charged, and above 11 was true."""
    with pytest.raises(PrivacyError, match="too few for all 100 corrupt clients of a roster of 1000"):
        secagg_terms(roster=1000, minimum=100, goal=100, corrupt=0.1, dropout=0.0)
    multiplier = 1.0 / accounting.mu_for_shares(epsilon=1.0, delta=DELTA, coordinates=0, graph_delta=0.0)
    share_std = 12.0
    sensitivity = math.floor(share_std * math.sqrt(90) / multiplier)
    event = DistributedRelease(
        "films", sensitivity=sensitivity, noise_std=share_std * math.sqrt(90), coordinates=1, sharers=90, step=1.0,
        graph_delta=2.0**-38,
    )  # fmt: skip
    assert worst_epsilon(share_std, 90, sensitivity) <= accounting.epsilon([event], delta=DELTA) <= 1.0
    assert 11.0 < worst_epsilon(share_std, 1, sensitivity) <= accounting.epsilon_if_alone([event], delta=DELTA) < 13.0


def secagg_terms(*, roster: int, minimum: int, goal: int, corrupt: float, dropout: float) -> Any:
    """What a task with such a cohort says of its sessions."""
    cohort = odp.Cohort(
        minimum=minimum, goal=goal, aggregation="secagg+", corrupt_fraction=corrupt, dropout_fraction=dropout,
        roster_sha256="ab" * 32, roster_size=roster,
    )  # fmt: skip
    return cohort.to_proto(DELTA).secagg
