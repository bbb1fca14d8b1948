"""The client of SecAgg+: it gives the server shares and one masked vector, and checks every message of the server.

==========  ==============================  =================================================================
state       call that leads out of it       what the call refuses
==========  ==============================  =================================================================
CREATED     ``reveal(adverts)``             its own keys changed or missing, keys that are malformed, repeated,
                                            of low order or of strangers, another configuration
REVEALED    ``share(reveals)``              reveals that are not what was committed to, or incomplete
SHARED      ``mask(inbox, vector)``         shares of strangers, or that open of fewer neighbours than the threshold
MASKED      ``agree(survivors)``            itself listed as dropped, fewer survivors than the minimum or than the
                                            threshold among its neighbours, a survivor that never shared
AGREED      ``unmask(agreements)``          fewer than the threshold of the committee that were told the same
DONE        none                            everything: a second request to unmask above all
ABORTED     none                            everything
==========  ==============================  =================================================================

Whatever is refused aborts the session. Every way out erases all that is secret: after an answer, a refusal or
``leave`` the client holds no key, seed, share or reveal, and once its vector is masked, none of its own any more.
About a neighbour, a client gives away a share of the self mask's seed *or* of the mask key, never both; with the
threshold of ``parameters`` this keeps both secrets of an honest client from a server that sends its clients different
lists.

Who agrees is the same committee for everybody (``graph.committee``), so that no two parts of a session unmask two
different sets of survivors.

Source: Bonawitz et al. 2017, figure 4 (with the consistency check); Bell et al. 2020, algorithm 2, but for the
committee.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from odp.crypto import domains, signing
from odp.crypto.secure_aggregation import graph, keystream, shamir
from odp.crypto.secure_aggregation.keystream import RingArray
from odp.crypto.secure_aggregation.session import (
    BoolArray,
    Configuration,
    Session,
    channel_key,
    mask_seed,
    seed_sha256,
    sign_advert,
    survivors_bytes,
    unpack,
    verify,
)
from odp.errors import ConfigurationError, PrivacyError, StateError
from odp.v1 import secure_aggregation_pb2 as messages


class State(enum.Enum):
    """Where a client stands; see the module docstring."""

    CREATED = 10
    REVEALED = 20
    SHARED = 30
    MASKED = 40
    AGREED = 50
    DONE = 60
    ABORTED = 90


@dataclass(frozen=True)
class _Secrets:
    """The client's secrets of one session. Its ``repr`` shows nothing of it."""

    channel: X25519PrivateKey = field(repr=False)
    mask_key: X25519PrivateKey = field(repr=False)
    self_seed: bytes = field(repr=False)
    reveal: bytes = field(repr=False)

    @classmethod
    def generate(cls, random_bytes: Callable[[int], bytes]) -> _Secrets:
        return cls(
            X25519PrivateKey.from_private_bytes(random_bytes(32)),
            X25519PrivateKey.from_private_bytes(random_bytes(32)),
            random_bytes(keystream.SEED_BYTES),
            random_bytes(graph.REVEAL_BYTES),
        )


class Client:
    """One client in one session. Not thread-safe.

    Args:
        configuration: what is summed: the caller has compared it with the task that it agreed to.
        identity: the client's long-lived key.
        roster: identities that may take part; None accepts any (see ``Session.open``).
        random_bytes: where secrets come from.

    Raises:
        PrivacyError: the configuration counts on a roster, and none is given.
    """

    def __init__(
        self,
        configuration: Configuration,
        identity: signing.SigningKey,
        *,
        roster: Collection[bytes] | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        if configuration.threat.roster and roster is None:
            raise PrivacyError("the session relies on a roster that is not pinned here")
        self._configuration = configuration
        self._identity: signing.SigningKey | None = identity
        self._roster, self._random_bytes = roster, random_bytes
        self._live_secrets: _Secrets | None = _Secrets.generate(random_bytes)
        self.state = State.CREATED
        self.advert = sign_advert(
            identity,
            configuration=configuration,
            channel_key=self._live_secrets.channel.public_key().public_bytes_raw(),
            mask_key=self._live_secrets.mask_key.public_key().public_bytes_raw(),
            commitment=graph.commitment(self._live_secrets.reveal),
        )
        self._session: Session
        self._number = -1
        self._neighbours: list[int] = []
        self._committee: list[int] = []
        self._ciphers: dict[int, AESGCM] = {}
        self._partners: list[int] = []  # neighbours that the server says shared
        # Of those whose shares opened: share of the mask key || share of the self mask's seed.
        self._inbox: dict[int, bytes] = {}
        self._survivors: messages.SecAggSurvivors

    def reveal(self, adverts: messages.SecAggAdverts) -> messages.SecAggReveal:
        """Answers all keys with this client's random contribution to the order."""
        with self._step(State.CREATED, State.REVEALED):
            if adverts.config != self._configuration.data:
                raise PrivacyError("the server sums under another configuration than the one it announced")
            encoded_advert = self.advert.SerializeToString(deterministic=True)
            places = [
                place
                for place, advert in enumerate(adverts.adverts)
                if advert.identity == self.advert.identity
                and advert.SerializeToString(deterministic=True) == encoded_advert
            ]
            if len(places) != 1:
                raise PrivacyError("the session does not list this client's own keys exactly once")
            self._session = Session.open(self._configuration, adverts.adverts, roster=self._roster)
            self._number = places[0]
            return messages.SecAggReveal(session=self._session.id, reveal=self._secrets.reveal)

    def share(self, reveals: messages.SecAggReveals) -> messages.SecAggShares:
        """Answers all reveals with shares of its secrets for each neighbour."""
        with self._step(State.REVEALED, State.SHARED):
            session, own_secrets = self._require_session(reveals.session), self._secrets
            seed = graph.graph_seed(session.id, [advert.commitment for advert in session.adverts], reveals.reveals)
            order, neighbours = graph.order(session.clients, seed), session.parameters.neighbours
            self._neighbours = graph.neighbours_of(self._number, order=order, neighbours=neighbours)
            self._committee = graph.committee(order, neighbours=neighbours)
            shares = shamir.share(
                [own_secrets.mask_key.private_bytes_raw(), own_secrets.self_seed],
                points=[neighbour + 1 for neighbour in self._neighbours],
                threshold=session.parameters.threshold,
                random_bytes=self._random_bytes,
            )
            sealed = []
            for place, neighbour in enumerate(self._neighbours):
                self._ciphers[neighbour] = AESGCM(channel_key(own_secrets.channel, session, self._number, neighbour))
                plaintext = shamir.to_bytes(shares[0, place]) + shamir.to_bytes(shares[1, place])
                sealed.append(self._ciphers[neighbour].encrypt(_nonce(self._number, neighbour), plaintext, session.id))
            return messages.SecAggShares(
                session=session.id, sealed=sealed, seed_sha256=seed_sha256(own_secrets.self_seed, session.id)
            )

    def mask(self, inbox: messages.SecAggInbox, vector: npt.NDArray[np.int64]) -> messages.SecAggMasked:
        """Answers the neighbours' shares with the masked vector.

        A neighbour whose shares do not open counts as one that did not share, but is masked with all the same: so one
        that seals garbage cannot make others leave, and whoever changes what was sealed has less to unmask with.

        Args:
            inbox: what the neighbours sealed for this client.
            vector: int64 [length], within the declared bound; noise is added by the caller, within the declared bound.
        """
        with self._step(State.SHARED, State.MASKED):
            session = self._require_session(inbox.session)
            senders = list(inbox.senders)
            if len(senders) != len(inbox.sealed) or sorted(set(senders)) != senders:
                raise PrivacyError("the inbox does not name its senders once each, in ascending order")
            if not set(senders) <= set(self._neighbours):
                raise PrivacyError("the inbox has shares of clients that are not neighbours")
            if len(senders) < session.parameters.threshold:
                raise PrivacyError(
                    f"only {len(senders)} neighbours shared, fewer than the threshold {session.parameters.threshold}"
                )
            self._partners = senders
            for sender, sealed in zip(senders, inbox.sealed, strict=True):
                if (opened := self._open(sender, sealed)) is not None:
                    self._inbox[sender] = opened
            if len(self._inbox) < session.parameters.threshold:
                raise PrivacyError(
                    f"the shares of {len(senders) - len(self._inbox)} neighbours do not open (replayed, changed, not "
                    f"their own), which leaves fewer than the threshold {session.parameters.threshold}"
                )
            if len(vector) != self._configuration.length:
                raise ConfigurationError(f"Expected a vector of {self._configuration.length}, got {len(vector)}")
            masked = self._masked(vector, senders)
            self._live_secrets, self._ciphers = None, {}
            return messages.SecAggMasked(
                session=session.id, vector=masked.astype(masked.dtype.newbyteorder("<")).tobytes()
            )

    def agree(self, survivors: messages.SecAggSurvivors) -> messages.SecAggAgreement:
        """Answers the list of survivors with a signature, so that clients can compare their lists."""
        with self._step(State.MASKED, State.AGREED):
            session = self._require_session(survivors.session)
            shared = unpack(survivors.shared, clients=session.clients, name="the clients that shared")
            alive = unpack(survivors.survivors, clients=session.clients, name="the survivors")
            self._check_survivors(shared, alive)
            self._survivors = survivors
            signed = survivors_bytes(session.id, survivors.shared, survivors.survivors)
            return messages.SecAggAgreement(
                session=session.id, signature=self._signer.sign(domains.SECAGG_SURVIVORS, signed)
            )

    def unmask(self, agreements: messages.SecAggAgreements) -> messages.SecAggUnmask:
        """Answers the committee's agreements with one share for each neighbour; the last message of this client."""
        with self._step(State.AGREED, State.DONE):
            session = self._require_session(agreements.session)
            alive = unpack(self._survivors.survivors, clients=session.clients, name="the survivors")
            self._check_agreements(agreements, alive)
            neighbours = sorted(self._inbox)
            half = shamir.SHARE_BYTES
            shares = [
                self._inbox[neighbour][half:] if alive[neighbour] else self._inbox[neighbour][:half]
                for neighbour in neighbours
            ]
            self._erase()
            return messages.SecAggUnmask(session=session.id, neighbours=neighbours, shares=shares)

    def leave(self) -> None:
        """Stops, and erases all secrets. Idempotent, in any state."""
        self._abort()

    @property
    def _secrets(self) -> _Secrets:
        if self._live_secrets is None:
            raise StateError("the session's secrets are erased")
        return self._live_secrets

    @property
    def _signer(self) -> signing.SigningKey:
        if self._identity is None:
            raise StateError("the session's secrets are erased")
        return self._identity

    def _masked(self, vector: npt.NDArray[np.int64], partners: list[int]) -> RingArray:
        session, own_secrets = self._session, self._secrets
        residues = self._configuration.ring.encode(vector)
        seeds = {partner: mask_seed(own_secrets.mask_key, session, self._number, partner) for partner in partners}
        keystream.add_masks(
            residues,
            plus=[own_secrets.self_seed, *(seed for partner, seed in seeds.items() if partner > self._number)],
            minus=[seed for partner, seed in seeds.items() if partner < self._number],
            info=session.id,
        )
        return residues

    def _open(self, sender: int, sealed: bytes) -> bytes | None:
        if len(sealed) != shamir.SEALED_BYTES:
            return None
        try:
            opened = self._ciphers[sender].decrypt(_nonce(sender, self._number), sealed, self._session.id)
            shamir.from_bytes(opened[: shamir.SHARE_BYTES])
            shamir.from_bytes(opened[shamir.SHARE_BYTES :])
        except (InvalidTag, ConfigurationError):
            return None
        return opened

    def _check_survivors(self, shared: BoolArray, alive: BoolArray) -> None:
        if (alive & ~shared).any():
            raise PrivacyError("the survivors hold a client that never shared: its mask could not be removed")
        if not alive[self._number]:
            raise PrivacyError("the server lists this client as dropped, although it sent its vector")
        if self._partners != [neighbour for neighbour in self._neighbours if shared[neighbour]]:
            raise PrivacyError("the server names other neighbours that shared than before")
        if (count := int(alive.sum())) < self._configuration.minimum:
            raise PrivacyError(f"{count} survivors are fewer than the minimum {self._configuration.minimum}")
        if (surviving := int(alive[self._neighbours].sum())) < self._session.parameters.threshold:
            raise PrivacyError(
                f"{surviving} surviving neighbours are fewer than the threshold {self._session.parameters.threshold}"
            )
        fewest = self._session.fewest_survivors
        if count < fewest:
            raise PrivacyError(
                f"{count} survivors of {self._session.clients} clients are fewer than {fewest}: graph "
                "and noise allow no more dropouts than declared"
            )

    def _check_agreements(self, agreements: messages.SecAggAgreements, alive: BoolArray) -> None:
        signers = list(agreements.signers)
        if len(signers) != len(agreements.signatures) or sorted(set(signers)) != signers:
            raise PrivacyError("the agreements do not name their signers once each, in ascending order")
        if not all(signer in self._committee and alive[signer] for signer in signers):
            raise PrivacyError("an agreement is signed by a client that is not a survivor in the committee")
        if len(signers) < self._session.parameters.threshold:
            raise PrivacyError(
                f"only {len(signers)} of the committee agree on the survivors, fewer than the threshold "
                f"{self._session.parameters.threshold}"
            )
        signed = survivors_bytes(self._session.id, self._survivors.shared, self._survivors.survivors)
        for signer, signature in zip(signers, agreements.signatures, strict=True):
            try:
                verify(self._session.adverts[signer].identity, signature, domains.SECAGG_SURVIVORS, signed)
            except signing.SignatureError:
                raise PrivacyError(f"client {signer} was told of other survivors") from None

    def _require_session(self, id: bytes) -> Session:
        if id != self._session.id:
            raise PrivacyError("the message is of another session")
        return self._session

    @contextmanager
    def _step(self, state: State, following: State) -> Iterator[None]:
        """Runs one transition: from ``state`` only, to ``following`` or, after any error, to ABORTED."""
        if self.state is not state:
            current = self.state
            self._abort()
            raise StateError(
                f"a session that is {current.name} cannot go on as one that is {state.name}: it is aborted"
            )
        try:
            yield
        except BaseException:
            self._abort()
            raise
        self.state = following

    def _abort(self) -> None:
        if self.state is not State.DONE:
            self.state = State.ABORTED
        self._erase()

    def _erase(self) -> None:
        self._inbox, self._ciphers = {}, {}
        self._live_secrets = self._identity = None


def _nonce(sender: int, receiver: int) -> bytes:
    # Both directions share a key; one message goes each way.
    return sender.to_bytes(6, "big") + receiver.to_bytes(6, "big")
