"""The enclave's half of an aggregation mode: one round, from its opening to the integers of its release.

Guarantee of every mode: ``noisy_sums`` gives numbers of exactly the set that ``freeze`` named, with the noise that was
drawn at the opening or that the set's devices added, and nothing before the set is closed.

If the population names an issuer, a contribution is admitted by a token under the one key of its round. The enclave
takes it when the round opens and seals it with the round's record, so neither the server nor the issuer can later have
other tokens count, or tell devices apart by several keys. A token is over one contribution id, and one id counts once:
so a round has at most as many contributions as its issuer gave tokens.

An enclave has no clock that it could trust, so it does not look at ``not_after``: that binds the issuer.
"""

from __future__ import annotations

import abc
import dataclasses
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError

from odp.algorithms.declared import DeclaredRelease
from odp.algorithms.dense.query import DenseQuery
from odp.algorithms.seam import Query, SampledQuery
from odp.crypto import domains
from odp.crypto.hpke import HpkeKey
from odp.crypto.signing import SignatureError
from odp.errors import ConfigurationError, PrivacyError, Refusal, StateError
from odp.numerics.arrays import Int64Array
from odp.privacy.events import Sampling
from odp.privacy.matrix.encoding import Encoder
from odp.privacy.matrix.sensitivity import ParticipationRecord
from odp.privacy.mechanisms import IntegerNoise
from odp.signed.charter import Charter
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enrolment.token_key import TOKEN_BYTES, TokenKey, open_token_key
from odp.v1 import aggregator_pb2, enrolment_pb2
from trusted_aggregator.boundary.interface import HostSum, Status
from trusted_aggregator.state.sealed_state import HASH_BYTES, RoundNoise, RoundRecord

#: In the record of a round: anybody may contribute.
NO_KEY = b""
#: A ciphertext begins with a public key that its device drew for it alone: this number of bytes identifies it.
MARK_BYTES = 8


class Admission:
    """The requirements for a contribution to one round. Thread-safe: it never changes.

    Args:
        signed: the serialized SignedTokenKey of the round, as ``sealed_key`` gave it; empty: anybody may contribute.
    """

    def __init__(self, signed: bytes = NO_KEY) -> None:
        self._key = key_of(enrolment_pb2.SignedTokenKey.FromString(signed)) if signed else None

    @property
    def token_bytes(self) -> int:
        """Length of the token in every contribution of the round."""
        return 0 if self._key is None else TOKEN_BYTES

    def admits(self, contribution: aggregator_pb2.Contribution) -> bool:
        """Whether ``contribution``, whose token has the length of the round, may be counted under its id."""
        if self._key is None:
            return True
        return self._key.admits(domains.contribution_token(contribution.contribution_id), contribution.token)


def sealed_key(
    signed: enrolment_pb2.SignedTokenKey | None, charter: Charter | None, *, task_sha256: bytes, round: int
) -> bytes:
    """The stored form of ``signed`` in a new round's record, after every check; ``charter`` is the one in force.

    Raises:
        PrivacyError: the population names an issuer and no key came, or names none and one came, or the key is another
            issuer's.
        ConfigurationError: the key is malformed, or that of another round, task or population.
    """
    has_key = signed is not None and bool(signed.token_key)
    if charter is None or not charter.issuer_key:
        if has_key:
            raise PrivacyError("the population names no issuer of tokens, so its rounds open without a token key")
        return NO_KEY
    if signed is None or not has_key:
        raise PrivacyError(
            f"population {charter.population!r} names an issuer of tokens: its rounds open with the issuer's token key "
            "alone; start the server with --issuer"
        )
    try:
        open_token_key(
            signed, issuer_key=charter.issuer_key, population=charter.population, task_sha256=task_sha256, round=round
        )
    except SignatureError:
        raise PrivacyError(
            f"the token key of round {round} is not signed by the issuer that population {charter.population!r} names"
        ) from None
    return signed.SerializeToString(deterministic=True)


def key_of(signed: enrolment_pb2.SignedTokenKey) -> TokenKey:
    """The key of a statement whose signer and round were checked before. Raises ConfigurationError."""
    stated = enrolment_pb2.TokenKey()
    try:
        stated.ParseFromString(signed.token_key)
    except DecodeError as error:
        raise ConfigurationError("the token key is not a valid message") from error
    return TokenKey(stated.population, stated.task_sha256, stated.round, stated.modulus, stated.not_after)


def require_same_key(round: int, sealed: bytes, signed: enrolment_pb2.SignedTokenKey | None) -> None:
    """Returns if an open round was opened with this key. Raises PrivacyError otherwise.

    ``sealed`` is of the round's record.
    """
    stated = enrolment_pb2.SignedTokenKey.FromString(sealed).token_key
    # Of one statement there may be two signatures, which change nothing.
    if stated != (b"" if signed is None else signed.token_key):
        raise PrivacyError(
            f"round {round} is open with another token key: a round has exactly one, because several "
            "could identify devices"
        )


class Judged(NamedTuple):
    """A contribution that the round accepts, unless it was counted before; ``mark`` is where its ciphertext begins."""

    contribution: aggregator_pb2.Contribution
    payload: bytes
    mark: bytes


class Round(abc.ABC):
    """One round of one task. ``submit`` may run in many threads; the other methods run in one.

    Args:
        task_sha256: the task.
        order: names the round and its model.
        record: what the enclave sealed of the round when it was opened.
        query: the round's declared query; ``require`` accepted it.
        policy: the enclave's.
        sampling: how contributions are drawn; None where all count.
        most: the largest number of contributions that can be charged: the round takes no more.

    Raises:
        PrivacyError: the round is sampled, and nothing can stand for a contribution that is not drawn.
    """

    #: Length of every well-formed sealed contribution; 0 where none comes to the enclave.
    sealed_bytes = 0
    #: Length of the part of each contribution that stays with the host; 0 where none does.
    host_part_bytes = 0
    #: Whether sums are known modulo 2^32 alone.
    wraps = False
    #: Whether the enclave can tell for good that a contribution does not count.
    signs_refusals = True
    #: Whether nothing of the round can ever be known once its enclave has erased it.
    can_be_void = True
    #: Of a stream: who was in the rounds before this one. Nobody is taken who may not come back yet.
    participation: ParticipationRecord | None = None

    def __init__(
        self, *, task_sha256: bytes, order: aggregator_pb2.RoundOrder, record: RoundRecord, query: Query,
        policy: EnclavePolicy, sampling: Sampling | None = None, most: int,
    ) -> None:  # fmt: skip
        if sampling is not None and not isinstance(query, SampledQuery):
            raise PrivacyError(f"round {order.round} cannot be sampled: nothing can stand for what is not drawn")
        self.task_sha256 = task_sha256
        self.number = order.round
        self.model_sha256 = order.model_sha256
        self.record = record
        self.query = query
        self.status = Status.OPEN
        #: Contributions are sealed to it.
        self.public_key = HpkeKey.from_bytes(record.hpke_key).public
        #: Of each contribution that is held, its first bytes (``MARK_BYTES``).
        self.marks = bytearray()
        self._policy = policy
        # The sums and the charge are valid up to this number of contributions.
        self._most = min(query.maximum, most)
        if sampling is not None:
            self._most = min(self._most, sampling.population_bound)
        self._lock = threading.Lock()
        self._frozen = False

    @classmethod
    @abc.abstractmethod
    def require(cls, query: Query) -> None:
        """Returns if rounds of this mode can release what ``query`` declares. Raises ConfigurationError otherwise."""

    @classmethod
    @abc.abstractmethod
    def noised(cls, query: Query) -> tuple[DeclaredRelease, ...]:
        """The releases with noise of the enclave."""

    @classmethod
    @abc.abstractmethod
    def draw_noise(cls, query: Query, noise: IntegerNoise) -> RoundNoise:
        """The noise of ``noised``, under a new random name. Raises PrivacyError if it is below the charged noise."""

    @property
    @abc.abstractmethod
    def contributions(self) -> int:
        """The number of contributions that a charge would cover."""

    @property
    def is_closed(self) -> bool:
        """Whether the round accepts no contribution now."""
        return self._frozen or self.status is not Status.OPEN

    def submit(self, sealed: Sequence[bytes], *, host_sha256: Sequence[bytes] | None = None) -> list[Refusal | None]:
        """``judge`` and ``keep``."""
        if self.is_closed:
            return [Refusal.ROUND_CLOSED] * len(sealed)
        return self.keep(self.judge(sealed, host_sha256=host_sha256))

    @abc.abstractmethod
    def judge(self, sealed: Sequence[bytes], *, host_sha256: Sequence[bytes] | None = None) -> list[Judged | Refusal]:
        """Opens and checks sealed contributions, in order; for each the reason if it can never count.

        A refusal follows from the bytes and the round's opening alone: every copy of this enclave gives the same.
        ``host_sha256`` are, for each, of the part that the host holds of it; empty, or None, of none.
        """

    @abc.abstractmethod
    def keep(self, judged: Sequence[Judged | Refusal]) -> list[Refusal | None]:
        """Counts contributions that ``judge`` accepted, each once, in order; for each the reason if it is refused."""

    @abc.abstractmethod
    def resubmit(self, stored: Iterable[bytes]) -> None:
        """``submit`` for accepted contributions from the host's store, a few in memory at a time."""

    def announce(self, clients: int, set_sha256: bytes) -> None:
        """Takes the number and the name of the contributions of an open round that only the host holds.

        Raises:
            StateError: the round is closed, or its contributions come to the enclave.
            ConfigurationError: more clients than the round may have, or no hash.
        """
        raise StateError(f"round {self.number} accepts no survivors now")

    def restore_charge(self, contributions: int, set_sha256: bytes) -> None:  # noqa: B027
        """Tells a restored round which set its charge names; a round that holds its contributions knows it."""

    def host_parts(self, start: int) -> bytes:
        """SHA-256 of the host's parts of a charged round, ascending, a page from number ``start`` on.

        Raises StateError where the round does not wait for their sum.
        """
        raise StateError(f"round {self.number} does not wait for a sum of its host")

    def freeze(self) -> tuple[int, bytes]:
        """Closes the set: (number of contributions, its name of 32 bytes)."""
        with self._lock:
            self._frozen = True
            return self.contributions, self._set_sha256()

    def thaw(self) -> None:
        """Opens the set again after a ``freeze`` without a charge."""
        with self._lock:
            self._frozen = False

    def participants(self) -> Sequence[bytes]:
        """The pseudonyms of those who are in the set of a stream's round."""
        return ()

    def noisy_sums(
        self, noise: RoundNoise, host_sum: HostSum | None = None, encoder: Encoder | None = None
    ) -> dict[str, Int64Array]:
        """The integers of the release, by release name, of the frozen set.

        ``noise`` is what was drawn for the round, ``host_sum`` what the host hands in where it holds a part. In a
        stream, ``encoder`` has the past sums, and takes in this one.

        Raises:
            StateError: the noise is of another round, or the sums are not those of the set, or the host's sum is
                missing.
            PrivacyError: the host's sum is of another set.
            ConfigurationError: the host's sum has another length, or numbers beyond what a sum can have.
        """
        if noise.noise_id != self.record.noise_id:
            raise StateError(
                f"the noise of round {self.number} is not the one of its opening: restore the newest state folder"
            )
        with self._lock:
            if not self._frozen:
                raise StateError(f"round {self.number} is still open")
            return self._noisy_sums(noise, host_sum, encoder)

    def erase(self) -> None:
        """Drops contributions, sums and the round's secrets; keeps its public key and its marks."""
        with self._lock:
            self._frozen = True
            self.record = dataclasses.replace(self.record, draw_seed=b"", hpke_key=b"")
            self._erase()

    # Under the lock

    @abc.abstractmethod
    def _set_sha256(self) -> bytes: ...

    @abc.abstractmethod
    def _noisy_sums(
        self, noise: RoundNoise, host_sum: HostSum | None, encoder: Encoder | None
    ) -> dict[str, Int64Array]: ...

    @abc.abstractmethod
    def _erase(self) -> None: ...


def new_record(
    order: bytes, noise: RoundNoise, *, token_key: bytes = NO_KEY, policy_sha256: bytes = b""
) -> RoundRecord:
    """The record of a new round, with a new seed of its draw and a new key.

    ``token_key`` is of ``sealed_key``.
    """
    return RoundRecord(
        order=order, noise_id=noise.noise_id, draw_seed=os.urandom(HASH_BYTES),
        hpke_key=HpkeKey.generate().to_bytes(), token_key=token_key, policy_sha256=policy_sha256,
    )  # fmt: skip


def encoded(totals: Mapping[str, Int64Array], encoder: Encoder | None) -> Mapping[str, Int64Array]:
    """``totals`` as they are released, without noise: encoded in a stream, and as they are elsewhere."""
    if encoder is None:
        return totals
    return {name: encoder.step(total) for name, total in totals.items()}


def dense(query: Query, *, aggregation: str) -> DenseQuery:
    """``query``, whose contributions are dense. Raises ConfigurationError otherwise, which names the mode."""
    if not isinstance(query, DenseQuery):
        raise ConfigurationError(f"Expected dense contributions for aggregation={aggregation!r}")
    return query
