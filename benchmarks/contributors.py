"""A process that plays devices: it seals contributions beforehand, and then sends them as fast as they are taken.

Sealing a contribution costs a device more than its parsing costs a server, so both are apart: ``prepare`` seals,
``send`` sends the finished bytes over several TLS channels with a fixed number in flight, and reports its own processor
time, so that a reader sees that the devices were not what was measured.
"""

from __future__ import annotations

import asyncio
import functools
import math
import multiprocessing
import os
import time
from collections import Counter
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, cast

import grpc
import numpy as np
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from benchmarks.bare_grpc import METHOD
from odp.algorithms.dpam import codec
from odp.algorithms.dpam.codec import Contributions
from odp.algorithms.dpam.terms import COUNTS_ROUND, Terms
from odp.algorithms.factorization.codec import ROW_UNITS, WEIGHT_UNITS
from odp.crypto import domains, seal
from odp.crypto.blind_rsa import SALT_BYTES
from odp.crypto.leaves import leaf_of
from odp.errors import ServiceError
from odp.v1 import aggregator_pb2, common_pb2

_CHANNELS, _IN_FLIGHT = 4, 64
_DEADLINE_SECONDS = 60.0
_PRIME = 3701  # below the catalogue: a + b k modulo a prime gives distinct items
_PAYLOADS_AT_ONCE = 4096


@dataclass(frozen=True)
class Target:
    """To which enclave, task, round and model contributions are sealed.

    ``signer`` is the private key (PEM) of the round's tokens; empty where the round asks for none. With ``leaves``, all
    devices are those of ``leaf``.
    """

    definition: bytes
    task_sha256: bytes
    round: int
    model_sha256: bytes
    policy_sha256: bytes
    hpke_key: bytes
    signer: bytes = b""
    leaf: int = 0
    leaves: int = 0

    def token(self, contribution_id: bytes) -> bytes:
        """The token of a contribution, as an issuer's signer makes it."""
        if not self.signer:
            return b""
        message = domains.contribution_token(contribution_id)
        return self._key.sign(message, PSS(MGF1(SHA384()), SALT_BYTES), SHA384())

    def pseudonym(self) -> bytes:
        """One of a device that may contribute there."""
        while True:
            drawn = os.urandom(32)
            if not self.leaves or leaf_of(self.task_sha256, self.round, drawn, self.leaves) == self.leaf:
                return drawn

    @functools.cached_property
    def _key(self) -> rsa.RSAPrivateKey:
        return cast("rsa.RSAPrivateKey", load_pem_private_key(self.signer, password=None))


@dataclass(frozen=True)
class Sent:
    """``refusals``: how many replies had each code; 0 is accepted. ``processor``: seconds of the sending process."""

    seconds: float
    processor: float
    refusals: dict[int, int]


def payloads(terms: Terms, round: int, count: int, *, seed: int) -> list[bytes]:
    """Payloads that a query accepts: all places used, rows and weights at half of their bounds.

    The catalogue has to have more than 3,701 items.
    """
    generator = np.random.default_rng(seed)
    start, stride = generator.integers(0, _PRIME, (count, 1)), generator.integers(1, _PRIME, (count, 1))
    items = (start + stride * np.arange(terms.max_items)) % _PRIME
    weights = np.full(items.shape, 1 if round == COUNTS_ROUND else int(WEIGHT_UNITS / 2 / terms.max_items**0.5))
    most = 0
    if round != COUNTS_ROUND:
        most = math.isqrt(codec.vector_limit(terms, round) // (terms.max_items * int(weights[0, 0]) ** 2))
    most = min(most, codec.TARGET_UNITS)
    targets = generator.integers(-most, most + 1, items.shape)
    rank = terms.rank_of(round)
    bound = int(ROW_UNITS / 2 / max(1, rank) ** 0.5 / terms.full_row_bound)
    rows = generator.integers(-bound, bound + 1, (count, rank))
    given = Contributions(rows, items, weights, np.asarray(targets, dtype=np.int64))
    return codec.encode(terms, round, given)


def requests(target: Target, count: int, *, seed: int) -> list[bytes]:
    """Serialized SubmitRequests of ``count`` devices, sealed."""
    terms = Terms.of(common_pb2.TaskDefinition.FromString(target.definition))
    info = domains.contribution_info(target.task_sha256, target.round, target.model_sha256, target.policy_sha256)
    made: list[bytes] = []
    for first in range(0, count, _PAYLOADS_AT_ONCE):
        some = payloads(terms, target.round, min(_PAYLOADS_AT_ONCE, count - first), seed=seed + first)
        for payload in some:
            contribution_id = os.urandom(32)
            plain = aggregator_pb2.Contribution(
                task_sha256=target.task_sha256,
                round=target.round,
                model_sha256=target.model_sha256,
                contribution_id=contribution_id,
                pseudonym=target.pseudonym(),
                payload=payload,
                token=target.token(contribution_id),
            ).SerializeToString()
            request = aggregator_pb2.SubmitRequest(
                task_sha256=target.task_sha256,
                round=target.round,
                sealed_contribution=seal(target.hpke_key, plain, info),
            )
            made.append(request.SerializeToString())
    return made


class Contributors:
    """The other process; a context manager that ends it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs,), name="contributors", daemon=True)
        self._process.start()
        theirs.close()

    def prepare(self, target: Target, count: int, *, seed: int) -> None:
        """Makes ``count`` requests, in place of those of before."""
        self._ask("prepare", target, count, seed)

    def send(self, address: str, ca: bytes, first: int, last: int) -> Sent:
        """Sends the requests ``first`` to ``last``. Raises ServiceError where a call fails."""
        sent: Sent = self._ask("send", address, ca, first, last)
        return sent

    def _ask(self, *message: Any) -> Any:
        try:
            self._connection.send(message)
            answer = self._connection.recv()
        except (EOFError, BrokenPipeError):
            raise ServiceError("the process that plays the devices ended by itself") from None
        if isinstance(answer, ServiceError):
            raise answer
        return answer

    def __enter__(self) -> Contributors:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
        self._process.join(5.0)
        if self._process.is_alive():
            self._process.kill()


def _work(connection: Connection) -> None:
    held: list[bytes] = []
    while True:
        try:
            what, *arguments = connection.recv()
        except EOFError:
            return
        if what == "prepare":
            target, count, seed = arguments
            held = requests(target, count, seed=seed)
            connection.send(None)
            continue
        address, ca, first, last = arguments
        try:
            connection.send(asyncio.run(_send(address, ca, held[first:last])))
        except grpc.RpcError as error:
            connection.send(ServiceError(f"a submission failed: {error.code()}"))


async def _send(address: str, ca: bytes, messages: list[bytes]) -> Sent:
    credentials = grpc.ssl_channel_credentials(root_certificates=ca)
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.secure_channel(address, credentials, options=options) for _ in range(_CHANNELS)]
    for channel in channels:
        await channel.channel_ready()
    refusals: Counter[int] = Counter()
    waiting = iter(messages)

    async def one_at_a_time(channel: grpc.aio.Channel) -> None:
        call: Any = channel.unary_unary(METHOD)  # bytes in, bytes out
        for message in waiting:
            reply = await call(message, timeout=_DEADLINE_SECONDS)
            refusals[reply[1] if reply else 0] += 1

    started, before = time.perf_counter(), time.process_time()
    await asyncio.gather(*(one_at_a_time(channels[number % _CHANNELS]) for number in range(_IN_FLIGHT)))
    found = Sent(time.perf_counter() - started, time.process_time() - before, dict(refusals))
    for channel in channels:
        await channel.close()
    return found
