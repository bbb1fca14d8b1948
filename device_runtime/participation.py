"""One device takes part in one round, once.

Steps, in this order, each of which may be the last one before the device dies:

1. the person's decisions and limits, the conditions       nothing was asked of anybody
2. the transparency log, evidence of both enclaves         nothing private was sent
3. ``Select``: the rows that the device needs, if any      keys encrypted, their count padded
4. the conditions again; clip, quantise, mask, encrypt     in memory
5. the store: PREPARED, bytes to send, local parameters    one transaction
6. the conditions again; ``Submit`` or ``SubmitStream``    the enclave counts one contribution per id
7. the store: SENT or REFUSED, bytes erased                one transaction

Before 5 a device that comes back starts again, after 5 it sends the stored bytes again. So the server sees at most one
contribution of a device to a round, whatever the device's local data became in between. A person who pauses their
device or opts out is heard at each of these places, the last of them 5's transaction and 6.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import time
from collections.abc import Callable, Sequence

import grpc
import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from google.protobuf.message import DecodeError

from device_runtime.assignment import Work
from device_runtime.enclaves import Checked, Enclaves
from device_runtime.gate import Gate
from device_runtime.schema import Identity, Participation, State
from device_runtime.services import Services, Traffic
from device_runtime.store import Store
from device_runtime.verification import Records
from odp.algorithms.seam import LocalRatings, Slices
from odp.crypto import domains, hpke, segments
from odp.crypto.secure_aggregation.masked import mask
from odp.enclave.verifier import VerifiedEnclave
from odp.errors import ConfigurationError, DataError, NotNow, PrivacyError, Refusal, ServiceError
from odp.tables import keyed_entry, padded_keys, slices_from
from odp.transparency.proofs import LoggedEndorsement, LogGuard
from odp.v1 import aggregator_pb2, common_pb2, distributor_pb2

#: A device that computes longer than this sends nothing: its person wants it back.
COMPUTE_SECONDS = 600.0
#: The name of that deadline among the conditions of a NotNow.
COMPUTE = "compute"
_REPLY_KEY_BYTES = 32
_REPLY_NONCE = bytes(12)
#: Endorsements that an assignment's proofs showed to be in the log.
_Logged = Sequence[LoggedEndorsement]


class Outcome(enum.Enum):
    """How an attempt to take part ended."""

    SENT = "sent"
    REFUSED = "refused"
    #: The device had an answer for this round already, or gave the round up: nothing was sent.
    SETTLED = "settled"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Participant:
    """Takes part for one device after another; holds what they share, and nothing of any device; thread-safe.

    Args:
      services: whom to talk to.
      enclaves: which enclaves were verified.
      gate: the person's decisions, the limits of devices whose person set none, and when a device may train.
      records: keeps what was verified before a contribution; None keeps none.
      log: finds task, model and enclaves in the transparency log; None where the reference values pin no log.
      clock: seconds since the epoch.
      random_bytes: source of reply keys.
      compute_seconds: deadline of the computation; what took longer is thrown away.
      monotonic: seconds that only grow, for that deadline.
    """

    services: Services
    enclaves: Enclaves
    gate: Gate = dataclasses.field(default_factory=Gate)
    records: Records | None = None
    log: LogGuard | None = None
    clock: Callable[[], float] = time.time
    random_bytes: Callable[[int], bytes] = os.urandom
    compute_seconds: float = COMPUTE_SECONDS
    monotonic: Callable[[], float] = time.monotonic

    def take_part(self, store: Store, work: Work, traffic: Traffic) -> Outcome:
        """Takes part in ``work`` with the device of ``store``, or finishes what was begun.

        Raises:
          PrivacyError: the person's limits decline the task, or they opted out of it; nothing was sent.
          NotNow: the device is paused, a training condition is not met, or the computation took too long; later it may
            go on where it was.
          TransparencyError: task, model or enclaves are not in the pinned log; nothing was sent.
          AttestationError: an enclave's evidence was refused; nothing was sent to it.
          DataError: the device's data break the task's declared range; nothing was sent.
          ServiceError, ServiceUnavailable: try again later; a contribution that was prepared stays so.
          StateError: the store cannot be used.
        """
        model, task = work.model, work.model.task_sha256
        prepared = store.participation(task, work.round)
        if prepared is not None and (prepared.state is not State.PREPARED or prepared.sealed is None):
            return Outcome.SETTLED
        try:
            self.gate.task(store, model.terms, work.round)
        except PrivacyError:
            store.declined(model.signed_task, model.terms, work.round)
            raise
        logged: _Logged = ()
        if self.log is not None:
            logged = self.log.logged(work.log, task=model.signed_task, model=model.signed_manifest)
        # Both, before anything is encrypted to either: a round with one of them missing is no round. Where no rows are
        # fetched, nothing is ever sent to the distributor.
        distributor = self._verified("distributor", work.distributor, logged) if model.keyed else None
        aggregator = self._verified("aggregator", work.aggregator, logged)
        if prepared is None:
            prepared = self._prepare(store, work, distributor, aggregator, logged, traffic)
        return self._send(store, work, prepared, distributor, aggregator, logged, traffic)

    def _verified(self, role: str, address: str, logged: _Logged, *, unlike: bytes | None = None) -> Checked:
        """The enclave behind ``address``: its evidence was accepted, and it is endorsed in the log."""
        checked = self.enclaves.verified(role, address, unlike=unlike)
        if self.log is not None:
            self.log.require_endorsed(checked.enclave, logged)
        return checked

    def _record(self, work: Work, *enclaves: Checked | None) -> bytes:
        """The hash of what was verified, on the disk before anything that rests on it."""
        if self.records is None:
            return b""
        return self.records.keep(work, [checked.evidence for checked in enclaves if checked is not None])

    def _prepare(
        self,
        store: Store,
        work: Work,
        distributor: Checked | None,
        aggregator: Checked,
        logged: _Logged,
        traffic: Traffic,
    ) -> Participation:
        model = work.model
        identity = store.identity()
        data = usable_ratings(store.ratings(), model.definition)
        if distributor is None:
            nothing = np.zeros(0, dtype=np.int64)
            slices = Slices(model.manifest.version, nothing, np.zeros((0, 0), dtype=np.float32), {})
        else:
            keys = model.client.keys(data, round=work.round, seed=identity.seed)
            slices, distributor = self._fetch(work, keys, distributor, logged, traffic)
        self.gate.again(store, model.terms)
        began = self.monotonic()
        try:
            payload, local = model.client.contribute(slices, data, round=work.round, seed=identity.seed)
        except np.linalg.LinAlgError as error:
            raise ServiceError(f"round {work.round}: nothing can be trained on the model of the server") from error
        took = self.monotonic() - began
        if took > self.compute_seconds:
            raise NotNow(f"{COMPUTE}: took {took:.0f} s (asked: at most {self.compute_seconds:.0f} s)", COMPUTE)
        vector = b""
        if work.vector_bytes:
            halves = mask(
                payload,
                info=domains.masked_vector_info(model.task_sha256, work.round),
                random_bytes=self.random_bytes,
            )
            payload, vector = halves.secret, halves.vector
        terms = model.definition.privacy
        participation = Participation(
            task_sha256=model.task_sha256,
            round=work.round,
            contribution_id=domains.contribution_id(identity.secret, model.task_sha256, work.round),
            model_sha256=model.model_sha256,
            recipient=b"",
            epsilon=terms.epsilon,
            delta=terms.delta,
            policy_sha256=b"",
            image_digest="",
            time=self.clock(),
            record=self._record(work, distributor, aggregator),
            payload=payload,
        )
        participation = _sealed_to(aggregator.enclave, participation, identity, work, vector=vector)
        store.prepare(participation, local_parameters=local, task=model.signed_task, terms=model.terms)
        return participation

    def _fetch(
        self, work: Work, keys: np.ndarray, distributor: Checked, logged: _Logged, traffic: Traffic
    ) -> tuple[Slices, Checked]:
        """The rows, and the enclave that gave them."""
        try:
            return self._select(work, keys, distributor.enclave, traffic), distributor
        except ServiceError as error:
            # An enclave that came back with new keys cannot open what is sealed to the old one.
            if error.code is not grpc.StatusCode.INVALID_ARGUMENT:
                raise
            fresh = self._verified("distributor", work.distributor, logged, unlike=distributor.enclave.hpke_key)
            if fresh.enclave.hpke_key == distributor.enclave.hpke_key:
                raise
            return self._select(work, keys, fresh.enclave, traffic), fresh

    def _select(self, work: Work, keys: np.ndarray, distributor: VerifiedEnclave, traffic: Traffic) -> Slices:
        model = work.model
        entry = keyed_entry(model.manifest)
        count = model.definition.dpam.slices_per_device
        # A device without data asks for some row too: whether it has data is its own affair.
        wire_keys = padded_keys(keys if len(keys) else np.zeros(1, dtype=np.int64), count)
        reply_key = self.random_bytes(_REPLY_KEY_BYTES)
        wanted = distributor_pb2.SelectKeys(table=entry.name, keys=wire_keys, reply_key=reply_key)
        sealed = hpke.seal(distributor.hpke_key, wanted.SerializeToString(), domains.select_info(model.model_sha256))
        request = distributor_pb2.SelectRequest(model_sha256=model.model_sha256, sealed_keys=sealed)
        reply = self.services.select(work.distributor, request, traffic)
        try:
            context = domains.selected_aad(model.model_sha256)
            opened = AESGCM(reply_key).decrypt(_REPLY_NONCE, reply.sealed_rows, context)
            rows = distributor_pb2.SelectedRows.FromString(opened)
            if len(rows.rows) != count * entry.width * 4:
                raise ConfigurationError(f"Expected {count} rows, got {len(rows.rows)} bytes")
            return slices_from(model.manifest, keys, rows)
        except (InvalidTag, DecodeError):
            raise ServiceError(f"the distributor at {work.distributor} sent rows that do not open; try again") from None
        except ConfigurationError as error:
            raise ServiceError(f"the distributor at {work.distributor} sent unusable rows: {error}") from error

    def _send(
        self,
        store: Store,
        work: Work,
        prepared: Participation,
        distributor: Checked | None,
        aggregator: Checked,
        logged: _Logged,
        traffic: Traffic,
    ) -> Outcome:
        self.gate.again(store, work.model.terms)
        if prepared.recipient != aggregator.enclave.hpke_key:
            record = self._record(work, distributor, aggregator)
            prepared = _reseal(store, prepared, aggregator.enclave, work, record)
        refusal = self._submit(work, prepared, traffic)
        if refusal is Refusal.MALFORMED:
            # An enclave that came back with a new key cannot open what was sealed to the old one.
            fresh = self._verified("aggregator", work.aggregator, logged, unlike=prepared.recipient)
            if fresh.enclave.hpke_key != prepared.recipient:
                record = self._record(work, distributor, fresh)
                prepared = _reseal(store, prepared, fresh.enclave, work, record)
                refusal = self._submit(work, prepared, traffic)
        if refusal in (None, Refusal.ALREADY_CONTRIBUTED):
            store.settle(prepared.task_sha256, prepared.round, State.SENT)
            return Outcome.SENT
        store.settle(prepared.task_sha256, prepared.round, State.REFUSED, refusal)
        return Outcome.REFUSED

    def _submit(self, work: Work, prepared: Participation, traffic: Traffic) -> Refusal | None:
        number = self._answer(work, prepared, traffic)
        if number == aggregator_pb2.REFUSAL_UNSPECIFIED:
            return None
        try:
            return Refusal(number)
        except ValueError:
            raise ServiceError(f"the aggregator at {work.aggregator} gave an unknown refusal={number}") from None

    def _answer(self, work: Work, prepared: Participation, traffic: Traffic) -> int:
        task, round = prepared.task_sha256, prepared.round
        sealed, vector = _parts(prepared, work)
        if work.large:
            header = aggregator_pb2.SubmitHeader(
                task_sha256=task, round=round, sealed_contribution=sealed if vector else b""
            )
            return int(self.services.submit_stream(work.aggregator, header, vector or sealed, traffic).refusal)
        request = aggregator_pb2.SubmitRequest(
            task_sha256=task, round=round, sealed_contribution=sealed, masked_vector=vector
        )
        return int(self.services.submit(work.aggregator, request, traffic).refusal)


def usable_ratings(data: LocalRatings, definition: common_pb2.TaskDefinition) -> LocalRatings:
    """The ratings of items that the model has; all of them where there is no model.

    Raises:
      DataError: a value is outside the task's declared range; the message counts them and shows none.
    """
    if definition.WhichOneof("training") == "statistics":
        return data
    known = (data.items >= 0) & (data.items < definition.model.items)
    items, values = data.items[known], data.values[known]
    if definition.WhichOneof("local_data") == "implicit":
        return LocalRatings(items, values)
    low, high = definition.data.low, definition.data.high
    wrong = int(np.count_nonzero(~((values >= low) & (values <= high))))
    if wrong:
        raise DataError(f"{wrong} of the device's ratings are outside the range [{low:g}, {high:g}]; correct them")
    return LocalRatings(items, values)


def _parts(prepared: Participation, work: Work) -> tuple[bytes, bytes]:
    """(what is sealed to the enclave, the masked vector or nothing)."""
    stored = prepared.sealed or b""
    return stored[: len(stored) - work.vector_bytes], stored[len(stored) - work.vector_bytes :]


def _sealed_to(
    aggregator: VerifiedEnclave, participation: Participation, identity: Identity, work: Work, *, vector: bytes
) -> Participation:
    one = participation
    # The enclave's half of a masked contribution is short, however long the vector is.
    large = work.large and not work.vector_bytes
    contribution = aggregator_pb2.Contribution(
        task_sha256=one.task_sha256,
        round=one.round,
        model_sha256=one.model_sha256,
        contribution_id=one.contribution_id,
        pseudonym=domains.pseudonym(identity.secret, one.task_sha256),
        payload=one.payload,
    )
    context = domains.large_contribution_info if large else domains.contribution_info
    seal = segments.seal_segments if large else hpke.seal
    info = context(one.task_sha256, one.round, one.model_sha256, aggregator.policy.sha256)
    return dataclasses.replace(
        one,
        sealed=seal(aggregator.hpke_key, contribution.SerializeToString(), info) + vector,
        recipient=aggregator.hpke_key,
        policy_sha256=aggregator.policy.sha256,
        image_digest=aggregator.image_digest,
    )


def _reseal(
    store: Store, prepared: Participation, aggregator: VerifiedEnclave, work: Work, record: bytes
) -> Participation:
    _, vector = _parts(prepared, work)
    sealed = _sealed_to(aggregator, prepared, store.identity(), work, vector=vector)
    resealed = dataclasses.replace(sealed, record=record)
    store.reseal(resealed)
    return resealed
