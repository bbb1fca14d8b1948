"""One device in a SecAgg+ session: its *seat*, what it answers, and what it stores.

A session needs all of its clients alive at the same time, so no device is worked on from beginning to end: a seat has
at most one call under way, and is advanced by one step when its answer is there (``secagg_sessions.py``). A seat is in
memory alone: a device that dies has dropped out, and its secrets are gone with it.

Steps of one device, in this order. Those marked with * are shared with rounds and reports of local trust
(``pipeline.py``).

1. * the person's decisions and limits, the conditions     nothing was asked of anybody
2. * the transparency log, evidence of the aggregator      nothing private was sent
   the token of the round, where its issuer gives them     the same in all attempts
3. * the conditions again; time for the device's own code  the same time whatever it does
4. * the model, where the task reads it: of a keyed table  the same for all devices; or asked for as in rounds, at a
   the rows of the data's items                            fixed time
   the data are read; clip, quantise                       in a fixed time (``fixed_times.py``), before the session:
                                                           others wait for each message of it
5. keys; the store: the attempt; reveal, shares            random numbers of this session, and no data
6. noise, mask; limits; the store: PREPARED, with nothing  one transaction
   to send again
7. the masked vector                                       once: a lying host could have two of them unmasked
8. the survivors are agreed on, shares to unmask them      what was asked of the others, they have signed
9. the store: SENT                                         one transaction

From 6 on the round is in the person's ledger, and the device joins no further session of it, whatever the host says.
Before, it takes part in few attempts of a round, and in each once. However a seat is left, the
secrets of its session are erased.

With a small probability an order of a session's clients does not protect everybody, and a lying host may choose among
the attempts of a round. What the round is charged counts on four of them, numbered from 0. So a device reveals its part
of the order once for each number, in ascending order, and for none after it made its masked vector, whatever becomes of
its process, of the host's, or of the session: its store has the attempts.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from device_runtime.network.services import Traffic
from device_runtime.round.contribution import ComputedPayload
from device_runtime.round.participation import Outcome, Participant
from device_runtime.store.database import Database
from device_runtime.store.schema import Participation, State
from device_runtime.store.store import Store
from device_runtime.tasks.assignment import Work
from odp.algorithms.dense.query import DenseQuery
from odp.algorithms.dense.shares import draw_share, secagg_config
from odp.algorithms.registry import algorithm_for
from odp.crypto import domains
from odp.crypto.secure_aggregation.client import Client
from odp.crypto.secure_aggregation.parameters import MOST_ATTEMPTS
from odp.crypto.secure_aggregation.session import Configuration
from odp.crypto.signing import SigningKey
from odp.errors import (
    ConfigurationError,
    PrivacyError,
    ServiceError,
    StateError,
)
from odp.numerics.arrays import Int64Array
from odp.privacy.mechanisms.discrete_gaussian import NoiseSource
from odp.v1 import secagg_service_pb2 as wire

_TOKEN_BYTES = 32


@dataclasses.dataclass(frozen=True)
class Session:
    """What the host announced, found to be what the signed task asks for."""

    work: Work
    configuration: Configuration
    query: DenseQuery
    roster: frozenset[bytes] | None

    def client(self, identity: SigningKey, token: bytes) -> wire.SecAggClient:
        """Names a client to the host."""
        return wire.SecAggClient(
            task_sha256=self.configuration.task_sha256,
            round=self.configuration.round,
            attempt=self.configuration.attempt,
            identity=identity.public,
            token=token,
        )


def announced(participant: Participant, work: Work, traffic: Traffic) -> Session | None:
    """The session that gathers clients for ``work``; None where none does now.

    Raises:
        PrivacyError: it is another session than the task's, or the task's roster is not the one that is pinned here.
        AddressRefused: the services are not where the person pinned them.
        ServiceError: the host is away, or does not know the round.
    """
    participant.services.require_pinned(distributor=work.distributor, aggregator=work.aggregator)
    reply = participant.services.join_session(work.aggregator, work.key, traffic)
    if reply.WhichOneof("answer") != "config":
        return None
    try:
        configuration = Configuration.open(reply.config)
    except ConfigurationError as error:
        raise PrivacyError(f"the aggregator announced no valid session: {error}") from error
    model = work.model
    query = algorithm_for(model.definition).query(work.round)
    if not isinstance(query, DenseQuery):
        raise PrivacyError("secure aggregation is for dense contributions")
    expected = secagg_config(
        model.definition, query=query, task_sha256=model.task_sha256, round=work.round,
        model_sha256=model.model_sha256, attempt=configuration.attempt,
    )  # fmt: skip
    if expected != reply.config:
        raise PrivacyError("the aggregator announced another session than the one of the signed task and its model")
    roster = participant.roster_for(model.definition.cohort.secagg)
    return Session(work, configuration, query, roster)


class Seat:
    """One device in one session: what it answers, and what it stores. Used by one thread at a time, and left by any.

    Args:
        session: as announced.
        open_store: opens the device's store for one use.
        noise: source of the device's share of the noise.
        random_bytes: source of the client's secrets.
    """

    def __init__(
        self,
        session: Session,
        participant: Participant,
        open_store: Callable[[], Store],
        *,
        population: str,
        noise: NoiseSource,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._session, self._participant, self._open_store = session, participant, open_store
        self._population, self._noise, self._random_bytes = population, noise, random_bytes
        self._client: Client | None = None
        self._stepping = threading.Lock()
        self._name = wire.SecAggClient()
        self._policy_sha256, self._image_digest, self._record = b"", "", b""
        self._made: ComputedPayload | None = None
        # SHA-256 of the last answer, and the message that it was answered with.
        self._answered, self._said = b"", wire.StepRequest()
        #: Whether its part of an order, and whether a masked vector, may have left.
        self.revealed = self.sent = False

    def sit_down(self, traffic: Traffic) -> wire.StepRequest | None:
        """The first message; None where the device has settled the round before.

        Raises as ``Participant.take_part``; nothing was sent.
        """
        work, session = self._session.work, self._session
        with self._participant.pipeline.alone(), self._open_store() as store:
            if store.participation(work.model.task_sha256, work.round) is not None:
                return None
            require_new_attempt(store, work.model.task_sha256, work.round, session.configuration.attempt)
            self._participant.gate.check_in(store, self._population)
            logged = self._participant.admitted(store, work)
            checked = self._participant.verified_aggregator(work, logged)
            distributor = self._participant.verified_distributor(work, logged)
            secret = store.identity().secret
            identity = identity_key(secret, b"" if session.roster is not None else work.model.task_sha256)
            if session.roster is not None and identity.public not in session.roster:
                raise PrivacyError("this device is not on the roster of those that may take part")
            admission = self._participant.tokens.session_token(work, identity.public, secret, traffic)
            pipeline = self._participant.pipeline
            pipeline.before_data(store, work)
            with pipeline.contributing(store, work, seed=store.identity().seed) as contributing:
                slices, distributor = self._participant.model_for(work, contributing, distributor, logged, traffic)
                self._made = contributing.contribution(slices)
                contributing.leave()
            self._participant.gate.after_data(store, work.model.terms)
        self._policy_sha256, self._image_digest = checked.enclave.policy.sha256, checked.enclave.image_digest
        self._record = self._participant.recorded(work, distributor, checked)
        client = Client(session.configuration, identity, roster=session.roster, random_bytes=self._random_bytes)
        self._client = client
        self._name = session.client(identity, self._random_bytes(_TOKEN_BYTES))
        self._said = wire.StepRequest(client=self._name, advert=client.advert, admission_token=admission)
        return self._said

    def poll(self) -> wire.StepRequest:
        """Asks for what comes next."""
        return wire.StepRequest(client=self._name)

    def repeat(self) -> wire.StepRequest:
        """The last message once more: the host lost it."""
        return self._said

    def leave(self) -> wire.StepRequest | None:
        """Erases the session's secrets, and reports the dropout to the host; None if the host never heard of the
        device.
        """
        with self._stepping:
            self._erase()
        return wire.StepRequest(client=self._name, leave=True) if self._name.identity else None

    def next(self, answer: wire.StepResponse) -> wire.StepRequest | None:
        """The next message; None where the session is over for this device.

        The same answer again, of a host that started again, gets the same message again, and another one none.

        Raises, after the session's secrets were erased:
            PrivacyError: the host sent something that an honest host does not send.
            NotNow, StateError: the device drops out.
        """
        with self._stepping:
            answered = hashlib.sha256(answer.SerializeToString(deterministic=True)).digest()
            if answered == self._answered and self._said.HasField("client"):
                return self._said
            request = None
            try:
                request = self._next(answer)
            finally:
                if request is None:
                    self._erase()
            self._answered, self._said = answered, request or wire.StepRequest()
            return request

    def _next(self, answer: wire.StepResponse) -> wire.StepRequest | None:
        if (kind := answer.WhichOneof("answer")) == "end":
            return None
        if (client := self._client) is None:
            raise StateError("the device left its session before")
        request = wire.StepRequest(client=self._name)
        if kind == "adverts":
            request.reveal.CopyFrom(self._revealed(client, answer))
        elif kind == "reveals":
            request.shares.CopyFrom(client.share(answer.reveals))
        elif kind == "inbox":
            request.masked.CopyFrom(self._masked(client, answer))
        elif kind == "survivors":
            request.agreement.CopyFrom(client.agree(answer.survivors))
        elif kind == "agreements":
            request.unmask.CopyFrom(client.unmask(answer.agreements))
        else:
            raise ServiceError("the aggregator answered a step with nothing; is it of another version?")
        return request

    def _erase(self) -> None:
        if self._client is not None:
            self._client.leave()
            self._client = None
        self._made = None
        self._answered, self._said = b"", wire.StepRequest()

    def _revealed(self, client: Client, answer: wire.StepResponse) -> Any:
        reveal = client.reveal(answer.adverts)
        configuration = self._session.configuration
        with self._participant.pipeline.alone(), self._open_store() as store:
            begin_attempt(store, configuration.task_sha256, configuration.round, configuration.attempt)
        self.revealed = True
        return reveal

    def outcome(self, answer: wire.StepResponse) -> Outcome | None:
        """How the session ended for the device; None where it may join another one."""
        if not self.sent:
            return None
        if answer.end.reason != wire.SecAggEnd.REASON_DONE:
            return Outcome.SETTLED  # the vector may have been used, or not: the ledger keeps it
        work = self._session.work
        with self._participant.pipeline.alone(), self._open_store() as store:
            store.settle(work.model.task_sha256, work.round, State.SENT)
        return Outcome.SENT

    def _masked(self, client: Client, answer: wire.StepResponse) -> Any:
        work, model = self._session.work, self._session.work.model
        with self._participant.pipeline.alone(), self._open_store() as store:
            self._participant.gate.after_data(store, model.terms)
            identity = store.identity()
            if (made := self._made) is None:
                raise StateError("the device has no seat in the session")
            masked = client.mask(answer.inbox, self._vector(made))
            terms = model.definition.privacy
            participation = Participation(
                task_sha256=model.task_sha256, round=work.round,
                contribution_id=domains.contribution_id(identity.secret, model.task_sha256, work.round),
                model_sha256=model.model_sha256, recipient=b"", epsilon=terms.epsilon, delta=terms.delta,
                policy_sha256=self._policy_sha256, image_digest=self._image_digest,
                time=self._participant.clock(), record=self._record,
            )  # fmt: skip
            with store.transaction():
                # The device may sit in sessions of other tasks: what they spent since it sat down counts now.
                self._participant.gate.person_allows(store, model.terms, work.round)
                store.prepare(
                    participation, local_parameters=made.local_parameters, task=model.signed_task, terms=model.terms
                )
                end_attempts(store, model.task_sha256, work.round)
        self.sent = True
        return masked

    def _vector(self, made: ComputedPayload) -> Int64Array:
        """The device's integers with its share of the noise."""
        vector = np.frombuffer(made.payload, dtype="<i4").astype(np.int64)
        return vector + draw_share(self._session.work.definition, self._session.query, self._noise)


def identity_key(secret: bytes, task_sha256: bytes) -> SigningKey:
    """A device's Ed25519 key as a client: of one task, or (``task_sha256`` empty) the one that stands in rosters."""
    return SigningKey.from_bytes(domains.secagg_identity(secret, task_sha256 or bytes(32)))


def require_new_attempt(store: Database, task_sha256: bytes, round: int, attempt: int) -> None:
    """Returns if the device may still take part in this attempt of a round.

    Raises:
      PrivacyError: it revealed its part for this attempt or a later one, or made its vector, or took part in a later
        round of the task.
    """
    row = store.first("SELECT round, attempt FROM secagg_attempts WHERE task_sha256 = ?", (task_sha256,))
    if row is not None and row >= (round, attempt):
        raise PrivacyError(
            f"the aggregator began attempt {attempt} of round {round} after this device took part in it, or in a later "
            "one: a round has no more orders of its devices than it is charged for"
        )


def begin_attempt(store: Database, task_sha256: bytes, round: int, attempt: int) -> None:
    """Notes an attempt, on the disk, before the device reveals its part of the order. Raises PrivacyError as above."""
    with store.transaction():
        require_new_attempt(store, task_sha256, round, attempt)
        _note(store, task_sha256, round, attempt)


def end_attempts(store: Database, task_sha256: bytes, round: int) -> None:
    """Notes, within ``transaction``, that the device makes its vector: it joins no further attempt of the round."""
    _note(store, task_sha256, round, MOST_ATTEMPTS)


def _note(store: Database, task_sha256: bytes, round: int, attempt: int) -> None:
    store.execute(
        "INSERT OR REPLACE INTO secagg_attempts (task_sha256, round, attempt) VALUES (?, ?, ?)",
        (task_sha256, round, attempt),
    )
