"""The issuer of tokens: one blind signature per device and round, and one key per round.

It learns which device asks for a token of which round. It sees neither the token nor what the token is for: neither the
issuer nor whoever reads its database can tell which contribution came from which device.

What it guarantees to an enclave is a number: at most one token per attested device and round. Who invents devices (an
issuer that lies, the vendor of emulated devices, the owner of many real ones) invents contributions.

A challenge costs no memory until a device has answered it. It is ``random (16 bytes) || expiry (8 bytes, whole seconds)
|| HMAC-SHA-256 (32 bytes)`` under a key of this process. A restart ends all of them, and devices ask again. Only
answered challenges are remembered, until they expire: each counts once.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from odp import _validate
from odp.crypto import domains
from odp.crypto.blind_signer import BlindSigner
from odp.crypto.domains import CHALLENGE_BYTES
from odp.crypto.signing import SigningKey
from odp.errors import Busy, ConfigurationError, EnrolmentError
from odp.signed.task import check_length, open_order, open_task, task_sha256
from odp.transport.service import NotFound
from odp.transport.sweeping import SweepClock
from odp.trust.enrolment.attesters.seam import LARGEST_STATEMENT, Verifier
from odp.trust.enrolment.storage import DAY, Grant, KeyRecord, Storage
from odp.trust.enrolment.token_key import TOKEN_BYTES, TokenKey
from odp.v1 import common_pb2, enrolment_pb2

_HASH_BYTES = 32
_MOST_SIGNERS = 256
_PRUNE_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class TokenLimits:
    """Limits of an issuer per developer, round and device.

    Attributes:
        tokens_per_device: tokens of one device within 24 hours, over all tasks.
        tokens_per_round: devices that get a token of one round.
        keys_per_developer: rounds of one developer that have a key at the same time.
        key_days: a key signs for this long at most; a round that is open for longer gets no further devices.

    Raises:
        ConfigurationError: a number is out of its range.
    """

    tokens_per_device: int = 1_000
    tokens_per_round: int = 1_000_000
    keys_per_developer: int = 1_000
    key_days: int = 30

    def __post_init__(self) -> None:
        _validate.integer(low=1, high=10**6, tokens_per_device=self.tokens_per_device)
        _validate.integer(low=1, high=10**8, tokens_per_round=self.tokens_per_round)
        _validate.integer(low=1, high=10**5, keys_per_developer=self.keys_per_developer)
        _validate.integer(low=1, high=365, key_days=self.key_days)


class Issuer:
    """Serves servers and devices; thread-safe.

    Args:
        storage: its database.
        key: its long-lived key, which populations name.
        verifiers: the kinds of device attestation that count; at least one.
        developers: Ed25519 keys (32 bytes) whose tasks it serves.
        limits: see ``TokenLimits``.
        clock: seconds since the epoch.
        monotonic: seconds that only grow, for what is forgotten.

    Raises:
        ConfigurationError: there is no verifier or developer, a kind comes twice, or a key is not 32 bytes.
    """

    def __init__(
        self,
        storage: Storage,
        key: SigningKey,
        *,
        verifiers: Sequence[Verifier],
        developers: Collection[bytes],
        limits: TokenLimits | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._storage, self._key = storage, key
        self._verifiers = {verifier.kind: verifier for verifier in verifiers}
        if not verifiers or len(self._verifiers) != len(verifiers):
            raise ConfigurationError(
                "Expected an attester of devices, each kind once; give --emulated-vendor or --roster"
            )
        if not developers:
            raise ConfigurationError("Expected the key of at least one developer; give --developer")
        for developer in developers:
            check_length("developer key", developer, _HASH_BYTES)
        self._developers = frozenset(developers)
        self._limits = TokenLimits() if limits is None else limits
        self._clock = clock
        self._challenges = Challenges(clock=clock)
        self._making = threading.Lock()
        self._signers_lock = threading.Lock()
        self._signers: OrderedDict[tuple[bytes, int], BlindSigner] = OrderedDict()
        # A key that is pruned never signs again, and the round that it is of takes no further device.
        self._sweeps = SweepClock(clock=clock, monotonic=monotonic)
        self._pruned = float("-inf")

    @property
    def attesters(self) -> list[str]:
        """The accepted kinds of statements."""
        return sorted(self._verifiers)

    def token_key(self, task: common_pb2.SignedTask, order: bytes, signature: bytes) -> enrolment_pb2.SignedTokenKey:
        """The key of the ordered round, created on the first call. It ends the keys of the task's earlier rounds.

        Args:
            task: the task, under its developer's signature.
            order: serialized RoundOrder.
            signature: by the developer, domain ``odp/v1/token-order``.

        Raises:
            SignatureError, ConfigurationError: task or order are not valid, or do not belong together.
            EnrolmentError: this issuer does not serve the developer, a limit is reached, or the round is over.
            StateError: the key could not be stored.
        """
        definition = open_task(task)
        if definition.developer_key not in self._developers:
            raise EnrolmentError(
                "this issuer does not serve the task's developer; start it with --developer and its key"
            )
        wanted = open_order(order, signature, domain=domains.TOKEN_ORDER, developer_key=definition.developer_key)
        if wanted.task_sha256 != task_sha256(task):
            raise ConfigurationError("the order is of another task than the one beside it")
        with self._making:
            now = self._clock()
            if not 0 <= now - self._pruned < _PRUNE_SECONDS:
                self._storage.prune(self._sweeps.now())
                self._pruned = now
            if (record := self._storage.key(wanted.task_sha256, wanted.round)) is None:
                record = self._make(definition, wanted.task_sha256, wanted.round, now)
            if record.private_key is None or record.not_after < now:
                raise EnrolmentError(f"the token key of round {wanted.round} has ended: the round is over")
            return record.signed

    def challenge(self) -> bytes:
        """A challenge for a statement, 56 bytes."""
        return self._challenges.make()

    def issue(self, request: enrolment_pb2.IssueTokenRequest) -> bytes:
        """The blind signature (256 bytes) of one device for one round; the same for the same blinded message.

        Raises:
            ConfigurationError: a field is malformed.
            NotFound: there is no key of that round.
            EnrolmentError: the round is over, the challenge or the statement does not count, the device has its token,
                or a limit is reached.
            Busy: too many devices ask at the same time.
            StateError: it could not be stored; nothing was signed.
        """
        check_length("task_sha256", request.task_sha256, _HASH_BYTES)
        check_length("blinded_message", request.blinded_message, TOKEN_BYTES)
        if len(request.statement) > LARGEST_STATEMENT:
            raise ConfigurationError(f"Expected a statement of at most {LARGEST_STATEMENT} bytes")
        if request.attester not in self._verifiers:
            raise EnrolmentError(
                f"this issuer does not accept statements of that kind; it accepts: {', '.join(self.attesters)}"
            )
        signer = self._signer(request.task_sha256, request.round)
        signer.public.check_blinded(request.blinded_message)
        self._challenges.check(request.challenge)
        now = self._clock()
        device = self._verifiers[request.attester].verify(
            request.statement,
            domains.enrolment_nonce(
                issuer_key=self._key.public,
                challenge=request.challenge,
                task_sha256=request.task_sha256,
                round=request.round,
                blinded_message=request.blinded_message,
            ),
            now=now,
        )
        self._challenges.spend(request.challenge)
        grant = self._storage.grant(
            device,
            request.task_sha256,
            request.round,
            hashlib.sha256(request.blinded_message).digest(),
            now=now,
            per_device=self._limits.tokens_per_device,
            per_round=self._limits.tokens_per_round,
        )
        if grant not in (Grant.NEW, Grant.AGAIN):
            raise EnrolmentError(self._refusal(grant, request.round))
        return signer.sign(request.blinded_message)

    def _make(self, definition: common_pb2.TaskDefinition, sha256: bytes, round: int, now: float) -> KeyRecord:
        newest = self._storage.newest_round(sha256)
        if newest is not None and newest > round:
            raise EnrolmentError(f"round {round} is over: round {newest} of the task has a token key")
        developer = definition.developer_key
        # The key of the round before is about to end.
        if newest is None and self._storage.keys_of(developer) >= self._limits.keys_per_developer:
            raise EnrolmentError(
                f"the developer has {self._limits.keys_per_developer} rounds with a token key, which is this issuer's "
                "limit; keys end with the next round of a task, or when they expire"
            )
        signer = BlindSigner.generate()
        key = TokenKey(
            population=definition.population,
            task_sha256=sha256,
            round=round,
            modulus=signer.public.to_bytes(),
            not_after=int(now + self._limits.key_days * DAY),
        )
        record = KeyRecord(sha256, round, developer, key.signed(self._key), signer.to_bytes(), key.not_after)
        self._storage.add_key(record)
        with self._signers_lock:
            for forgotten in [entry for entry in self._signers if entry[0] == sha256]:
                del self._signers[forgotten]
        # To read it back costs more than to make it: the library tests the primes of what it reads.
        self._remember(sha256, round, signer)
        return record

    def _signer(self, sha256: bytes, round: int) -> BlindSigner:
        with self._signers_lock:
            if (cached := self._signers.get((sha256, round))) is not None:
                self._signers.move_to_end((sha256, round))
                return cached
        if (record := self._storage.key(sha256, round)) is None:
            raise NotFound(f"this issuer has no token key of round {round} of that task")
        if record.private_key is None:
            raise EnrolmentError(self._refusal(Grant.ENDED, round))
        signer = BlindSigner.from_bytes(record.private_key)
        self._remember(sha256, round, signer)
        return signer

    def _remember(self, sha256: bytes, round: int, signer: BlindSigner) -> None:
        with self._signers_lock:
            self._signers[sha256, round] = signer
            while len(self._signers) > _MOST_SIGNERS:
                self._signers.popitem(last=False)

    def _refusal(self, grant: Grant, round: int) -> str:
        per_device, per_round = self._limits.tokens_per_device, self._limits.tokens_per_round
        return {
            Grant.OTHER: f"this device has its token of round {round}: one device, one token",
            Grant.DEVICE_LIMIT: f"this device has {per_device} tokens of the last 24 hours, the limit of one device",
            Grant.ROUND_LIMIT: f"{per_round} devices have a token of round {round}, the limit of one round",
            Grant.ENDED: f"the token key of round {round} has ended: the round is over",
        }[grant]


VALID_SECONDS = 120
_RANDOM_BYTES, _TIME_BYTES, _KEY_BYTES = 16, 8, 32
_RETRY_SECONDS = 5.0


class Challenges:
    """Creates challenges, and accepts each of them once; thread-safe.

    Args:
        clock: seconds since the epoch.
        random_bytes: the source of keys and challenges.
        most: answered challenges that are remembered; beyond them devices get a retry window.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        random_bytes: Callable[[int], bytes] = os.urandom,
        most: int = 100_000,
    ) -> None:
        _validate.integer(low=1, high=10**7, most=most)
        self._clock, self._random_bytes, self._most = clock, random_bytes, most
        self._key = random_bytes(_KEY_BYTES)
        self._lock = threading.Lock()
        # In the order in which they were answered; each is forgotten at the latest ``VALID_SECONDS`` later.
        self._order: deque[tuple[float, bytes]] = deque()
        self._answered: set[bytes] = set()

    def make(self) -> bytes:
        """A new challenge, ``CHALLENGE_BYTES`` long."""
        expiry = int(self._clock()) + VALID_SECONDS
        body = self._random_bytes(_RANDOM_BYTES) + expiry.to_bytes(_TIME_BYTES, "big")
        return body + hmac.digest(self._key, body, "sha256")

    def check(self, challenge: bytes) -> None:
        """Returns if ``challenge`` is one of this process, has not expired and was not answered.

        Raises EnrolmentError otherwise.
        """
        body, tag = challenge[: _RANDOM_BYTES + _TIME_BYTES], challenge[_RANDOM_BYTES + _TIME_BYTES :]
        if len(challenge) != CHALLENGE_BYTES or not hmac.compare_digest(tag, hmac.digest(self._key, body, "sha256")):
            raise EnrolmentError("the challenge is not from this run of the issuer; get a new one")
        if self._clock() > int.from_bytes(body[_RANDOM_BYTES:], "big"):
            raise EnrolmentError(f"the challenge is older than {VALID_SECONDS} s; get a new one")
        with self._lock:
            if challenge in self._answered:
                raise _answered()

    def spend(self, challenge: bytes) -> None:
        """Marks a checked challenge as answered.

        Raises EnrolmentError where another call was first, Busy where too many are remembered.
        """
        now = self._clock()
        with self._lock:
            while self._order and self._order[0][0] < now:
                self._answered.discard(self._order.popleft()[1])
            if challenge in self._answered:
                raise _answered()
            if len(self._answered) >= self._most:
                raise Busy(
                    "the issuer of tokens is busy with other devices; try again in a moment",
                    _RETRY_SECONDS,
                    2 * _RETRY_SECONDS,
                )
            self._answered.add(challenge)
            # By then it has expired, whenever it was made.
            self._order.append((now + VALID_SECONDS + 1, challenge))


def _answered() -> EnrolmentError:
    return EnrolmentError("the challenge was answered before; get a new one")
