"""An issuer of tokens without a network: its folder, a developer with tasks, a vendor, and devices that ask."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from odp.algorithms.dpam.config import DPAM, RatingsData
from odp.crypto import domains
from odp.crypto.signing import SigningKey
from odp.models.matrix_factorization import MatrixFactorization
from odp.protocol.terms import Cohort, UserLevelDP
from odp.signed.task import open_task, sign_order, sign_task, task_sha256
from odp.tasks.task import Task
from odp.trust.enrolment.attesters.emulated import EmulatedVendor, EmulatedVerifier
from odp.trust.enrolment.attesters.seam import Attester, Verifier
from odp.trust.enrolment.issuer import Issuer, TokenLimits
from odp.trust.enrolment.storage import Storage
from odp.trust.enrolment.token_key import TokenKey, open_token_key
from odp.trust.enrolment.tokens import TokenRequest
from odp.v1 import aggregator_pb2, common_pb2, enrolment_pb2

NOW = 1_790_000_000.0


@dataclass
class Clock:
    """Seconds since the epoch, as far as a test lets them pass."""

    now: float = NOW

    def __call__(self) -> float:
        return self.now


@dataclass
class Developer:
    """Who has tasks, and orders token keys for their rounds."""

    key: SigningKey = field(default_factory=SigningKey.generate)

    def task(self, name: str = "films", *, population: str = "viewers") -> common_pb2.SignedTask:
        """A small task; another name is another task."""
        task = Task(
            name=name,
            model=MatrixFactorization(items=12, rank=2),
            data=RatingsData(low=1, high=5),
            privacy=UserLevelDP(epsilon=8.0, delta=1e-6, max_items_per_user=4),
            training=DPAM(),
            cohort=Cohort(minimum=100, goal=200, round_seconds=60),
            population=population,
        )
        definition = task.definition()
        definition.developer_key = self.key.public
        return sign_task(definition, self.key)

    def order(
        self, task: common_pb2.SignedTask, round: int, domain: bytes = domains.TOKEN_ORDER
    ) -> tuple[bytes, bytes]:
        """(order of a round's token key, signature)."""
        order = aggregator_pb2.RoundOrder(task_sha256=task_sha256(task), round=round, model_sha256=bytes(32))
        return sign_order(order, self.key, domain)


@dataclass(frozen=True)
class Device:
    """One device: its secret, and how it shows that it is one."""

    secret: bytes
    attester: Attester

    def contribution_id(self, key: TokenKey) -> bytes:
        """Its id in the round of ``key``."""
        return domains.contribution_id(self.secret, key.task_sha256, key.round)

    def request(
        self, key: TokenKey, issuer_key: bytes, *, message: bytes | None = None, now: float = NOW
    ) -> TokenRequest:
        """What it asks for: the token of its contribution, unless told otherwise."""
        message = domains.contribution_token(self.contribution_id(key)) if message is None else message
        return TokenRequest.of(key, message, issuer_key=issuer_key, secret=self.secret, now=now)


class World:
    """An issuer in ``folder`` with an emulated vendor."""

    def __init__(
        self,
        folder: Path,
        *,
        clock: Clock | None = None,
        limits: TokenLimits | None = None,
        verifiers: list[Verifier] | None = None,
        key: SigningKey | None = None,
    ) -> None:
        self.folder = folder
        self.clock = Clock() if clock is None else clock
        self.monotonic = self.clock
        self.limits = limits
        self.developer = Developer()
        self.vendor = EmulatedVendor.open(folder / "vendor", clock=self.clock)
        self.verifiers: list[Verifier] = [EmulatedVerifier(self.vendor.root_pem)] if verifiers is None else verifiers
        self.key = SigningKey.generate() if key is None else key
        self.restart()

    def restart(self) -> None:
        """The issuer's process died, and started again with its files."""
        if hasattr(self, "storage"):
            self.storage.close()
        self.storage = Storage(self.folder / "issuer.sqlite")
        self.issuer = Issuer(
            self.storage,
            self.key,
            verifiers=self.verifiers,
            developers=[self.developer.key.public],
            limits=self.limits,
            clock=self.clock,
            monotonic=self.monotonic,
        )

    def device(self, number: int) -> Device:
        """An emulated device; the same one for the same number."""
        secret = hashlib.sha256(b"device %d" % number).digest()
        return Device(secret, self.vendor.device(secret))

    def signed_key(self, task: common_pb2.SignedTask, round: int) -> enrolment_pb2.SignedTokenKey:
        """The issuer's statement of a round's key."""
        return self.issuer.token_key(task, *self.developer.order(task, round))

    def token_key(self, task: common_pb2.SignedTask, round: int) -> TokenKey:
        """The key of a round, as a device or an enclave checks it."""
        return open_token_key(
            self.signed_key(task, round),
            issuer_key=self.key.public,
            population=open_task(task).population,
            task_sha256=task_sha256(task),
            round=round,
        )

    def challenge(self) -> enrolment_pb2.GetChallengeResponse:
        """A new challenge."""
        return enrolment_pb2.GetChallengeResponse(challenge=self.issuer.challenge(), attesters=self.issuer.attesters)

    def issue(self, request: enrolment_pb2.IssueTokenRequest) -> enrolment_pb2.IssueTokenResponse:
        """The issuer's answer."""
        return enrolment_pb2.IssueTokenResponse(blind_signature=self.issuer.issue(request))

    def token(self, device: Device, key: TokenKey, *, message: bytes | None = None) -> bytes:
        """What a device gets that keeps the protocol."""
        request = device.request(key, self.key.public, message=message, now=self.clock())
        return request.token(self.issue(request.answer(self.challenge(), device.attester)))

    def close(self) -> None:
        """Closes the issuer's files."""
        self.storage.close()
