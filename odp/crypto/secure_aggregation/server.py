"""The server of SecAgg+: collects, relays, and unmasks the sum. It is not trusted: its checks only protect the round.

Each stage takes the messages of the clients that are still there, and ends with ``close_*`` whenever the caller likes:
who has not answered by then has dropped out. Vectors are summed as they come and never kept.

    advertise* close_adverts  reveal* close_reveals  share* close_shares  masked* close_masked  agree* close_agreements
    unmask* finish

Source: Bonawitz et al. 2017, figure 4; Bell et al. 2020, algorithm 2.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import itertools
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent import futures

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from odp.crypto import domains
from odp.crypto.secure_aggregation import graph, keystream, shamir
from odp.crypto.secure_aggregation.session import (
    HASH_BYTES,
    BoolArray,
    Configuration,
    Session,
    check_advert,
    mask_seed,
    pack,
    require_length,
    seed_sha256,
    survivors_bytes,
    verify,
)
from odp.errors import ConfigurationError, OdpError, PrivacyError, StateError
from odp.v1 import secure_aggregation_pb2 as messages

#: So many wrong shares of one secret are surely found, where enough others are left ..
MOST_WRONG = 2
# .. within this number of attempts.
_MOST_TRIES = 5000


class Stage(enum.Enum):
    """What the server waits for."""

    ADVERTS = 10
    REVEALS = 20
    SHARES = 30
    MASKED = 40
    AGREEMENTS = 50
    UNMASKS = 60
    DONE = 70


class TooFew(OdpError):
    """Too few clients answered to continue the round; nothing was learned. Start the round again."""


class Server:
    """The server's side of one session. Messages may come in any threads.

    Args:
        configuration: what is summed.
        roster: identities that may take part; None accepts any.
        threads: how many cores unmask.
    """

    def __init__(
        self, configuration: Configuration, *, roster: Collection[bytes] | None = None, threads: int = 1
    ) -> None:
        self.configuration = configuration
        self.stage = Stage.ADVERTS
        self._config_sha256 = hashlib.sha256(configuration.data).digest()
        self._roster, self._threads = roster, threads
        self._lock = threading.Lock()
        self._adverts: dict[bytes, messages.SecAggAdvert] = {}
        self._session: Session
        self._reveals: dict[int, bytes] = {}
        self._edges: Mapping[int, list[int]] = {}
        self._committee: list[int] = []
        self._shares: dict[int, dict[int, bytes]] = {}  # sender -> receiver -> ciphertext
        self._seed_sha256: dict[int, bytes] = {}
        self._sum = np.zeros(configuration.length, dtype=configuration.ring.dtype)
        self._alive: set[int] = set()
        self._announced = messages.SecAggSurvivors()
        self._agreements: dict[int, bytes] = {}
        self._unmasks: dict[int, dict[int, bytes]] = {}  # sender -> of whom -> share
        self._suspects: set[int] = set()

    @property
    def session(self) -> Session:
        """The session, once its adverts are closed."""
        return self._session

    def number_of(self, identity: bytes) -> int:
        """The client's number in the session. Raises PrivacyError for an identity that is not in it."""
        for number, advert in enumerate(self._session.adverts):
            if advert.identity == identity:
                return number
        raise PrivacyError("this client is not in the session")

    def advertise(self, advert: messages.SecAggAdvert) -> None:
        """Takes a client's keys; a repetition of the same keys changes nothing."""
        check_advert(advert, self._config_sha256, name="the client")
        if self._roster is not None and advert.identity not in self._roster:
            raise PrivacyError("the client is not on the roster")
        with self._at(Stage.ADVERTS):
            if self._adverts.setdefault(advert.identity, advert) != advert:
                raise PrivacyError("the client advertised other keys before")
            if len(self._adverts) > self.configuration.ring.maximum:
                del self._adverts[advert.identity]
                raise PrivacyError(f"the session has its {self.configuration.ring.maximum} clients already")

    def close_adverts(self) -> messages.SecAggAdverts:
        """Fixes the clients of the session. Raises TooFew below the minimum."""
        with self._at(Stage.ADVERTS):
            adverts = list(self._adverts.values())
            self._require_enough(len(adverts), "advertised")
            self._session = Session.open(self.configuration, adverts, roster=self._roster)
            self.stage = Stage.REVEALS
            return messages.SecAggAdverts(config=self.configuration.data, adverts=adverts)

    def reveal(self, number: int, reveal: messages.SecAggReveal) -> None:
        """Takes a client's reveal."""
        self._require(number, reveal.session)
        if graph.commitment(reveal.reveal) != self._session.adverts[number].commitment:
            raise PrivacyError(f"the reveal of client {number} does not belong to its commitment")
        with self._at(Stage.REVEALS):
            self._reveals[number] = reveal.reveal

    def close_reveals(self) -> messages.SecAggReveals:
        """Fixes the graph. Raises TooFew if a reveal is missing: the remaining clients start again (see ``graph``)."""
        with self._at(Stage.REVEALS):
            session = self._session
            if len(self._reveals) < session.clients:
                self.stage = Stage.DONE
                raise TooFew(f"{session.clients - len(self._reveals)} clients did not reveal; start the next attempt")
            reveals = [self._reveals[number] for number in range(session.clients)]
            seed = graph.graph_seed(session.id, [advert.commitment for advert in session.adverts], reveals)
            order, neighbours = graph.order(session.clients, seed), session.parameters.neighbours
            self._edges = graph.edges(order=order, neighbours=neighbours)
            self._committee = graph.committee(order, neighbours=neighbours)
            self.stage = Stage.SHARES
            return messages.SecAggReveals(session=session.id, reveals=reveals)

    def share(self, number: int, shares: messages.SecAggShares) -> None:
        """Takes a client's sealed shares for its neighbours."""
        self._require(number, shares.session)
        require_length("seed_sha256", shares.seed_sha256, HASH_BYTES)
        with self._at(Stage.SHARES):
            neighbours = self._edges[number]
            if len(shares.sealed) != len(neighbours):
                raise PrivacyError(f"Expected shares for {len(neighbours)} neighbours, got {len(shares.sealed)}")
            for sealed in shares.sealed:
                require_length("a sealed share", sealed, shamir.SEALED_BYTES)
            self._shares.setdefault(number, dict(zip(neighbours, shares.sealed, strict=True)))
            self._seed_sha256.setdefault(number, shares.seed_sha256)

    def close_shares(self) -> dict[int, messages.SecAggInbox]:
        """The message for each client that shared: its neighbours' shares. Raises TooFew below the minimum."""
        with self._at(Stage.SHARES):
            self._require_enough(len(self._shares), "shared")
            self.stage = Stage.MASKED
            inboxes = {}
            for receiver in self._shares:
                senders = [neighbour for neighbour in self._edges[receiver] if neighbour in self._shares]
                sealed = [self._shares[sender][receiver] for sender in senders]
                inboxes[receiver] = messages.SecAggInbox(session=self._session.id, senders=senders, sealed=sealed)
            return inboxes

    def masked(self, number: int, masked: messages.SecAggMasked) -> None:
        """Adds a client's masked vector to the sum; once."""
        self._require(number, masked.session)
        vector = self.configuration.ring.from_bytes(masked.vector, length=self.configuration.length)
        with self._at(Stage.MASKED):
            if number not in self._shares:
                raise PrivacyError(f"client {number} did not share its secrets: its mask could not be removed")
            if number not in self._alive:
                np.add(self._sum, vector, out=self._sum)
                self._alive.add(number)

    def summed(self) -> tuple[list[int], bytes]:
        """The clients whose vectors are in the sum, ascending, and the sum so far: residues, little-endian."""
        with self._at(Stage.MASKED):
            return sorted(self._alive), self._sum.astype(self._sum.dtype.newbyteorder("<")).tobytes()

    def restore_sum(self, clients: Collection[int], total: bytes) -> None:
        """Takes back what ``summed`` returned, before any vector comes. Raises ConfigurationError."""
        vector = self.configuration.ring.from_bytes(total, length=self.configuration.length)
        with self._at(Stage.MASKED):
            if self._alive or not set(clients) <= set(self._shares):
                raise ConfigurationError("Expected the sum of clients that shared, before any vector came")
            self._sum, self._alive = vector.astype(self._sum.dtype), set(clients)

    def close_masked(self) -> messages.SecAggSurvivors:
        """Fixes the vectors of the sum. Raises TooFew below the minimum."""
        with self._at(Stage.MASKED):
            self._require_enough(len(self._alive), "sent a vector", least=self._session.fewest_survivors)
            self.stage = Stage.AGREEMENTS
            self._announced = messages.SecAggSurvivors(
                session=self._session.id,
                shared=pack(self._members(self._shares)),
                survivors=pack(self._members(self._alive)),
            )
            return self._announced

    def agree(self, number: int, agreement: messages.SecAggAgreement) -> None:
        """Takes a survivor's signature under the list of survivors."""
        self._require(number, agreement.session)
        signed = survivors_bytes(self._session.id, self._announced.shared, self._announced.survivors)
        verify(self._session.adverts[number].identity, agreement.signature, domains.SECAGG_SURVIVORS, signed)
        with self._at(Stage.AGREEMENTS):
            if number not in self._alive:
                raise PrivacyError(f"client {number} is not among the survivors")
            self._agreements[number] = agreement.signature

    def close_agreements(self) -> dict[int, messages.SecAggAgreements]:
        """The message for each client that agreed: the committee's signatures. Raises TooFew below the threshold."""
        with self._at(Stage.AGREEMENTS):
            threshold = self._session.parameters.threshold
            self._require_enough(len(self._agreements), "agreed", least=threshold)
            signers = [client for client in self._committee if client in self._agreements]
            if len(signers) < threshold:
                self.stage = Stage.DONE
                raise TooFew(f"only {len(signers)} of the committee agreed, fewer than {threshold}")
            self.stage = Stage.UNMASKS
            message = messages.SecAggAgreements(
                session=self._session.id,
                signers=signers,
                signatures=[self._agreements[signer] for signer in signers],
            )
            return dict.fromkeys(self._agreements, message)

    def unmask(self, number: int, unmask: messages.SecAggUnmask) -> None:
        """Takes a client's shares of its neighbours' secrets."""
        self._require(number, unmask.session)
        # Without those whose shares did not open.
        revealed = set(unmask.neighbours)
        expected = [
            neighbour for neighbour in self._edges[number] if neighbour in self._shares and neighbour in revealed
        ]
        if list(unmask.neighbours) != expected or len(unmask.shares) != len(expected):
            raise PrivacyError(f"client {number} gave shares of other clients than its neighbours")
        for share in unmask.shares:
            shamir.from_bytes(share)  # refused here, it costs its sender alone; later, the whole sum
        with self._at(Stage.UNMASKS):
            if number not in self._agreements:
                raise PrivacyError(f"client {number} did not agree on the survivors")
            self._unmasks.setdefault(number, dict(zip(expected, unmask.shares, strict=True)))

    def finish(self) -> npt.NDArray[np.int64]:
        """The sum of the survivors' vectors, int64 [length].

        What the shares of a client give is compared with what it said of its secrets before, so wrong shares cannot
        spoil the sum unseen; where a client has more neighbours left than the threshold, others take their place.

        Raises:
            TooFew: fewer shares of some client's secret than the threshold.
            PrivacyError: no shares of a client that were tried give its secret: somebody lied; no sum.
        """
        with self._at(Stage.UNMASKS):
            session = self._session
            self_seeds: list[bytes] = []
            plus: list[bytes] = []
            minus: list[bytes] = []
            for number in sorted(self._shares):
                secret = self._rebuild(number)
                if number in self._alive:
                    self_seeds.append(secret)
                    continue
                key = X25519PrivateKey.from_private_bytes(secret)
                for partner in self._edges[number]:
                    if partner in self._alive:
                        # The survivor added the mask where the dropped client's number is the larger one.
                        seed = mask_seed(key, session, number, partner)
                        (minus if number > partner else plus).append(seed)
            with futures.ThreadPoolExecutor(max(self._threads, 1)) as pool:
                keystream.add_masks(
                    self._sum, plus=plus, minus=[*self_seeds, *minus], info=session.id, pool=pool, workers=self._threads
                )
            self.stage = Stage.DONE
            return self.configuration.ring.decode(self._sum)

    @property
    def survivors(self) -> int:
        """Clients whose vectors are in the sum."""
        return len(self._alive)

    def _rebuild(self, number: int) -> bytes:
        threshold = self._session.parameters.threshold
        holders = [holder for holder in self._edges[number] if number in self._unmasks.get(holder, {})]
        if len(holders) < threshold:
            raise TooFew(
                f"{len(holders)} shares of the secret of client {number}, fewer than the threshold {threshold}"
            )
        # Whoever was wrong about others before is asked last.
        holders.sort(key=lambda holder: holder in self._suspects)
        for chosen in _choices(holders, threshold):
            secret = self._from_shares(number, chosen)
            if secret is not None and self._is_secret(number, secret):
                if chosen != holders[:threshold]:
                    others = [holder for holder in holders if holder not in chosen]
                    self._suspects.update(
                        other for other in others if self._from_shares(number, [other, *chosen[1:]]) != secret
                    )
                return secret
        raise PrivacyError(
            f"the shares of client {number} do not give the secret that it committed to: it or its "
            "neighbours sent wrong data"
        )

    def _from_shares(self, number: int, holders: Sequence[int]) -> bytes | None:
        try:
            shares = np.stack([shamir.from_bytes(self._unmasks[holder][number]) for holder in holders])
            return shamir.rebuild([holder + 1 for holder in holders], shares)
        except (ConfigurationError, PrivacyError):
            return None

    def _is_secret(self, number: int, secret: bytes) -> bool:
        if number in self._alive:
            return hmac.compare_digest(seed_sha256(secret, self._session.id), self._seed_sha256[number])
        key = X25519PrivateKey.from_private_bytes(secret)
        return key.public_key().public_bytes_raw() == self._session.adverts[number].mask_key

    def _members(self, numbers: Collection[int]) -> BoolArray:
        members = np.zeros(self._session.clients, dtype=np.bool_)
        members[list(numbers)] = True
        return members

    def _require(self, number: int, session: bytes) -> None:
        if self.stage is Stage.ADVERTS or session != self._session.id:
            raise PrivacyError("the message is of another session")
        if not 0 <= number < self._session.clients:
            raise ConfigurationError(f"Expected number={number} to be from 0 to {self._session.clients - 1}")

    def _require_enough(self, count: int, what: str, *, least: int = 0) -> None:
        least = max(least, self.configuration.minimum, 3)
        if count < least:
            self.stage = Stage.DONE
            raise TooFew(f"only {count} clients {what}, fewer than {least}; nothing was learned")

    def _at(self, stage: Stage) -> _Stage:
        return _Stage(self, stage)


def _choices(holders: Sequence[int], threshold: int) -> Iterator[list[int]]:
    """Subsets of holders of threshold size: the first, then without any one of them, then without any two."""
    most = min(len(holders) - threshold, MOST_WRONG)
    left_out = itertools.chain.from_iterable(itertools.combinations(holders, count) for count in range(most + 1))
    for wrong in itertools.islice(left_out, _MOST_TRIES):
        yield [holder for holder in holders if holder not in wrong][:threshold]


class _Stage:
    """Holds the server's lock while it is in one stage."""

    def __init__(self, server: Server, stage: Stage) -> None:
        self._server, self._stage = server, stage

    def __enter__(self) -> None:
        self._server._lock.acquire()
        if self._server.stage is not self._stage:
            stage = self._server.stage
            self._server._lock.release()
            raise StateError(f"too late or too early: the session is at {stage.name}, not at {self._stage.name}")

    def __exit__(self, *_: object) -> None:
        self._server._lock.release()
