"""One device takes part in one round, once.

Steps, in this order, each of which may be the last one before the device dies. Those marked with * are shared with
sessions and reports of local trust (``pipeline.py``).

1. * the person's decisions and limits, the conditions       nothing was asked of anybody
2. * the transparency log, the catalogue's differences,      nothing private was sent
   evidence of both enclaves
   the token of the round, where its issuer gives them       ``admission.py``: the same calls for everybody
3. * the conditions again; time for the device's own code    the same time whatever it does
4. * the data are read, where rows are asked for by key      for a fixed time (``fixed_times.py``)
5. the rows that the device needs, if any                    as the task says: ``device_runtime.rows.retrieval``
6. * the data are read; clip, quantise                       for a fixed time, of which the rest is for 7
7. mask, encrypt; the store: PREPARED, bytes to send, local  one transaction
   parameters; a report that is private by itself
8. ``Submit`` or ``SubmitStream``                            the enclave counts one contribution per id
9. the store: SENT or REFUSED, bytes erased                  one transaction; REFUSED, and uncharged, only if the
                                                             enclave signed that these bytes can never count

From step 3 on, which calls a device makes, when, of which sizes and in which order, and that an upload follows, depends
on public facts, the person's decisions, mains power and network alone, and never on the data: what cannot be computed
in its time is the empty contribution (``contribution.py``).

Before 7 a device that comes back starts again, after 7 it sends the stored bytes again; it never seals twice for one
opening of a round. So the server sees at most one contribution of a device to it, whatever the device's local data
became in between. After one that its enclave signed to be void, the next may come (``void_openings.py``); a report that
is private by itself goes from 2 to 7 then, and is the same one. A pause, or an opting out, takes effect at each of
these places, the last of them 7's transaction and 8.

Before 1, a device whose contribution to this or another round the enclave signed to be void takes that charge back. For
that it verifies the log and the aggregator's evidence, as in 2.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import os
import time
from collections.abc import Callable

from device_runtime.modes import half_of
from device_runtime.network.enclaves import Checked, Enclaves
from device_runtime.network.services import Services, Traffic
from device_runtime.round.admission import NO_TOKEN, Admission
from device_runtime.round.computations import NO_KEYS
from device_runtime.round.computing_processes import ComputingProcesses
from device_runtime.round.contribution import Contributing, require_trainable, without_rows
from device_runtime.round.examples import MadeExamples
from device_runtime.round.fixed_times import FixedTimes
from device_runtime.round.gate import Gate
from device_runtime.round.pipeline import Logged, Pipeline
from device_runtime.round.verification import Records, require_round_key
from device_runtime.round.void_openings import is_answered, named_void, take_back, takes_part_again
from device_runtime.rows.retrieval import Retrievals, SealedRows, asks_enclave
from device_runtime.store.retention import prepare_again
from device_runtime.store.schema import Identity, Participation, State
from device_runtime.store.store import Store
from device_runtime.tasks.assignment import Work
from device_runtime.tasks.catalogues import CatalogueMemory
from device_runtime.tasks.charters import CharterMemory, require_in_force
from odp.crypto import domains, hpke, segments
from odp.crypto.leaves import leaf_of
from odp.crypto.refusals import KEY_BYTES, refusal_holds
from odp.crypto.roster import hash_of
from odp.errors import AttestationError, PrivacyError, Refusal, ServiceError
from odp.models.litert.trainer import ProgramTrainer
from odp.numerics.arrays import Int64Array
from odp.protocol.wire.model import Slices
from odp.trust.enclave.verifier import VerifiedEnclave
from odp.trust.log.proofs import LogGuard
from odp.v1 import aggregator_pb2, secagg_terms_pb2

#: To a contribution.
Answer = aggregator_pb2.SubmitResponse | aggregator_pb2.SubmitStreamResponse


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
      retrievals: the ways to get rows that need no enclave; by default whole models without a cache, and no helper.
      records: keeps what was verified before a contribution; None keeps none.
      log: finds task, model and enclaves in the transparency log; None where the reference values pin no log.
      charters: whose the populations are, as far as this host knows.
      catalogues: what this host knows of catalogues; by default nothing, which is not kept.
      admission: gets the devices' tokens; by default for rounds that ask for none.
      roster: identities that may be clients of SecAgg+ sessions; None where nobody pinned any.
      made_examples: gives the device's own code time to make the examples that a task may read, before each
        contribution to one.
      trainer: runs developers' networks; without one, their tasks are refused.
      fixed_times: gives every computation on a person's data its fixed time.
      processes: compute what may take long, or much memory.
      clock: seconds since the epoch.
      random_bytes: source of reply keys.
    """

    services: Services
    enclaves: Enclaves
    gate: Gate = dataclasses.field(default_factory=Gate)
    retrievals: Retrievals | None = None
    records: Records | None = None
    log: LogGuard | None = None
    charters: CharterMemory = dataclasses.field(default_factory=CharterMemory)
    catalogues: CatalogueMemory | None = None
    admission: Admission | None = None
    roster: frozenset[bytes] | None = None
    made_examples: MadeExamples | None = None
    trainer: ProgramTrainer | None = None
    fixed_times: FixedTimes = dataclasses.field(default_factory=FixedTimes)
    processes: ComputingProcesses = dataclasses.field(default_factory=ComputingProcesses)
    clock: Callable[[], float] = time.time
    random_bytes: Callable[[int], bytes] = os.urandom

    @functools.cached_property
    def _retrievals(self) -> Retrievals:
        return self.retrievals if self.retrievals is not None else Retrievals.over(self.services)

    @functools.cached_property
    def tokens(self) -> Admission:
        """What gets the devices' tokens."""
        return self.admission if self.admission is not None else Admission(self.services, clock=self.clock)

    @functools.cached_property
    def pipeline(self) -> Pipeline:
        """The steps that rounds, sessions and reports of local trust share."""
        catalogues = self.catalogues
        return Pipeline(
            admission=self.tokens,
            catalogues=CatalogueMemory(None, self.services.catalogue_steps) if catalogues is None else catalogues,
            gate=self.gate, log=self.log, charters=self.charters, made_examples=self.made_examples,
            fixed_times=self.fixed_times, processes=self.processes, clock=self.clock,
        )  # fmt: skip

    def take_part(self, store: Store, work: Work, traffic: Traffic) -> Outcome:
        """Takes part in ``work`` with the device of ``store``, or finishes what was begun.

        Raises:
          PrivacyError: the person's limits decline the task, or they opted out of it; nothing was sent.
          NotNow: the device is paused, or a training condition is not met; later it may go on where it was.
          TransparencyError: task, model or enclaves are not in the pinned log; nothing was sent.
          AttestationError: an enclave's evidence, address or the task's helper was refused; nothing was sent to it.
          EnrolmentError: the issuer gives the device no token of the round; nothing was read.
          ServiceError, ServiceUnavailable: try again later; a contribution that was prepared stays so.
          StateError: the store cannot be used.
        """
        task = work.model.task_sha256
        before = store.participation(task, work.round)
        if before is not None and is_answered(before, work):
            return Outcome.SETTLED
        self.services.require_pinned(distributor=work.distributor, aggregator=work.aggregator)
        logged = self.admitted(store, work)
        # Both, before anything is encrypted to either: a round with one of them missing is no round.
        distributor = self.verified_distributor(work, logged)
        aggregator = self._keyed(work, self.verified_aggregator(work, logged), logged)
        to = self._destination(store, work, aggregator)
        prepared, report = store.participation(task, work.round), None
        if prepared is not None and prepared.recipient != work.hpke_key:
            if not takes_part_again(store, prepared, work):
                return Outcome.SETTLED
            report, prepared = prepared.report, None
        if prepared is None:
            token = self.tokens.contribution_token(work, store.identity().secret, traffic)
            if report is None:
                prepared = self._prepare(store, work, distributor, aggregator, logged, token, traffic)
            else:
                prepared = self._prepare_again(store, work, report, distributor, aggregator, token)
        return self._send(store, work, prepared, aggregator, to, traffic)

    def admitted(self, store: Store, work: Work) -> Logged:
        """As ``Pipeline.admitted``, for a round, once the device has taken back what void openings charged it."""
        self._take_back(store, work)
        return self.pipeline.admitted(store, work, work.round, model=work.model.signed_manifest)

    def _take_back(self, store: Store, work: Work) -> None:
        # Before the limits: a charge for nothing must not keep the device from the round that brings the word of it.
        if lines := named_void(store, work):
            logged = self.pipeline.logged(work, model=work.model.signed_manifest)
            aggregator = self._keyed(work, self.verified_aggregator(work, logged), logged)
            take_back(store, lines, work, aggregator.enclave)

    def model_for(
        self, work: Work, contributing: Contributing, distributor: Checked | None, logged: Logged, traffic: Traffic
    ) -> tuple[Slices, Checked | None]:
        """What a contribution is computed with: the model, whose rows are asked for by key; and who gave them, if an
        enclave did.

        Raises ServiceError, ServiceUnavailable, AttestationError as ``take_part``.
        """
        keys = contributing.keys() if work.model.keyed else NO_KEYS
        if not work.model.reads_model:
            return without_rows(work), distributor
        slices, distributor = self._fetch(work, keys, distributor, logged, traffic)
        require_trainable(work, slices)
        return slices, distributor

    def verified_distributor(self, work: Work, logged: Logged) -> Checked | None:
        """The distributor's enclave, verified; None where no rows are asked of it: then its evidence says nothing.

        Raises AttestationError, also where the task's helper is not pinned, and TransparencyError.
        """
        self._retrievals.require(work.model)
        return self._verified("distributor", work.distributor, logged) if asks_enclave(work.model) else None

    def verified_aggregator(self, work: Work, logged: Logged) -> Checked:
        """The aggregator's enclave, verified, which shows the task's charter to be in force.

        Raises AttestationError, TransparencyError; PrivacyError where this host knows other owners.
        """
        return self._chartered(work, self._verified("aggregator", work.aggregator, logged), logged)

    def roster_for(self, terms: secagg_terms_pb2.SecAggTerms) -> frozenset[bytes] | None:
        """Who may take part in a task's sessions: the pinned roster; None where neither task nor device has one.

        Raises PrivacyError where the task names another roster than the device holds, or counts other devices on it.
        """
        if terms.roster_sha256 and (self.roster is None or hash_of(self.roster) != terms.roster_sha256):
            raise PrivacyError(
                "the task names another roster of devices than the one pinned here: give it with --roster"
            )
        if terms.roster_sha256 and self.roster is not None and len(self.roster) != terms.roster_size:
            raise PrivacyError(
                f"the task counts the corrupt ones of roster_size={terms.roster_size} devices, and its roster has "
                f"{len(self.roster)}: have the developer sign it anew"
            )
        return self.roster

    def _chartered(self, work: Work, checked: Checked, logged: Logged) -> Checked:
        """``checked``, or fresh evidence where the charter came after it; the charter is remembered then."""
        try:
            charter = require_in_force(work.charter, checked.enclave)
        except AttestationError:
            checked = self._verified("aggregator", work.aggregator, logged, older_than=checked.evidence.time)
            charter = require_in_force(work.charter, checked.enclave)
        self.charters.accept(charter, checked.enclave)
        return checked

    def _keyed(self, work: Work, checked: Checked, logged: Logged) -> Checked:
        """``checked``, or fresh evidence of the enclave that signed the round's key."""
        try:
            _require_round_key(work, checked)
        except AttestationError:
            checked = self._verified("aggregator", work.aggregator, logged, older_than=checked.evidence.time)
            checked = self._chartered(work, checked, logged)
            _require_round_key(work, checked)
        return checked

    def _verified(
        self, role: str, address: str, logged: Logged, *, unlike: bytes | None = None, older_than: float | None = None
    ) -> Checked:
        """The enclave behind ``address``: its evidence was accepted, and it is endorsed in the log."""
        checked = self.enclaves.verified(role, address, unlike=unlike, older_than=older_than)
        if self.log is not None:
            self.log.require_endorsed(checked.enclave, logged)
        return checked

    def recorded(self, work: Work, *enclaves: Checked | None) -> bytes:
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
        logged: Logged,
        token: bytes,
        traffic: Traffic,
    ) -> Participation:
        model = work.model
        self.pipeline.before_data(store, work)
        identity = store.identity()
        with self.pipeline.contributing(store, work, seed=identity.seed) as contributing:
            slices, distributor = self.model_for(work, contributing, distributor, logged, traffic)
            self.gate.after_data(store, model.terms)
            made = contributing.contribution(slices)
            record = self.recorded(work, distributor, aggregator)
            participation = self._sealed(work, identity, aggregator.enclave, made.payload, record=record, token=token)
            store.prepare(
                participation, local_parameters=made.local_parameters, task=model.signed_task, terms=model.terms
            )
            contributing.leave()
        return participation

    def _prepare_again(
        self, store: Store, work: Work, report: bytes, distributor: Checked | None, aggregator: Checked, token: bytes
    ) -> Participation:
        """Seals the report of a void opening for this one: the data are not read again."""
        self.gate.after_data(store, work.terms)
        record = self.recorded(work, distributor, aggregator)
        participation = self._sealed(work, store.identity(), aggregator.enclave, report, record=record, token=token)
        prepare_again(store, participation, terms=work.terms)
        return participation

    def _sealed(
        self,
        work: Work,
        identity: Identity,
        aggregator: VerifiedEnclave,
        payload: bytes,
        *,
        record: bytes,
        token: bytes,
    ) -> Participation:
        """What is stored and sent: encrypted to the aggregator's enclave."""
        model = work.model
        enclave_part, host_part = half_of(model.definition.cohort).split(
            payload, task_sha256=model.task_sha256, round=work.round, random_bytes=self.random_bytes
        )
        contribution = aggregator_pb2.Contribution(
            task_sha256=model.task_sha256,
            round=work.round,
            model_sha256=model.model_sha256,
            contribution_id=domains.contribution_id(identity.secret, model.task_sha256, work.round),
            pseudonym=domains.pseudonym(identity.secret, model.task_sha256),
            payload=enclave_part,
            token=token or NO_TOKEN,
        )
        # Where the host gets a part, the enclave's is short, however long the contribution is.
        large = work.large and not work.host_bytes
        context = domains.large_contribution_info if large else domains.contribution_info
        seal = segments.seal_segments if large else hpke.seal
        info = context(model.task_sha256, work.round, model.model_sha256, aggregator.policy.sha256)
        return Participation(
            task_sha256=model.task_sha256,
            round=work.round,
            contribution_id=contribution.contribution_id,
            model_sha256=model.model_sha256,
            recipient=work.hpke_key,
            epsilon=model.definition.privacy.epsilon,
            delta=model.definition.privacy.delta,
            policy_sha256=aggregator.policy.sha256,
            image_digest=aggregator.image_digest,
            time=self.clock(),
            record=record,
            report=None if work.terms.local is None else payload,
            sealed=seal(work.hpke_key, contribution.SerializeToString(), info) + host_part,
            token=token,
        )

    def _fetch(
        self, work: Work, keys: Int64Array, distributor: Checked | None, logged: Logged, traffic: Traffic
    ) -> tuple[Slices, Checked | None]:
        """The rows, and the enclave that gave them, if one did."""
        if distributor is None:
            return self._retrievals.of(work.model).fetch(work, keys, traffic), None

        def verify(unlike: bytes) -> Checked:
            return self._verified("distributor", work.distributor, logged, unlike=unlike)

        sealed = SealedRows(self.services, distributor, verify, self.random_bytes)
        return sealed.fetch(work, keys, traffic), sealed.checked

    def _send(
        self,
        store: Store,
        work: Work,
        prepared: Participation,
        aggregator: Checked,
        to: str,
        traffic: Traffic,
    ) -> Outcome:
        self.gate.after_data(store, work.model.terms)
        task, round = prepared.task_sha256, prepared.round
        answer = self._submit(work, prepared, to, traffic)
        if (refusal := _refusal_of(answer, work)) in (None, Refusal.ALREADY_CONTRIBUTED):
            store.settle(task, round, State.SENT)
            return Outcome.SENT
        sealed, host_part = _parts(prepared, work)
        signed = refusal_holds(
            answer.signature, refusal, signing_key=aggregator.enclave.signing_key, task_sha256=task, round=round,
            hpke_key=prepared.recipient, sealed=sealed, masked=host_part,
        )  # fmt: skip
        store.settle(task, round, State.REFUSED if signed else State.SENT, refusal)
        if signed and refusal is Refusal.TASK_ABANDONED:
            store.end_task(task)
        return Outcome.REFUSED

    def _destination(self, store: Store, work: Work, aggregator: Checked) -> str:
        """Where the contribution goes: to the aggregator, or to the device's leaf where its enclave has leaves.

        Raises ServiceError where the server names another number of leaves, and AddressRefused.
        """
        leaves = aggregator.enclave.policy.leaves
        if leaves != len(work.leaves):
            raise ServiceError(f"the server names {len(work.leaves)} leaves, and the aggregator's enclave has {leaves}")
        if not leaves:
            return work.aggregator
        pseudonym = domains.pseudonym(store.identity().secret, work.task_sha256)
        address = work.leaves[leaf_of(work.task_sha256, work.round, pseudonym, leaves)]
        self.services.require_pinned(leaf=address)
        return address

    def _submit(self, work: Work, prepared: Participation, to: str, traffic: Traffic) -> Answer:
        task, round = prepared.task_sha256, prepared.round
        sealed, host_part = _parts(prepared, work)
        if work.large:
            header = aggregator_pb2.SubmitHeader(task_sha256=task, round=round)
            if host_part:
                header.sealed_contribution = sealed
            else:
                header.sealed_key = sealed[:KEY_BYTES]
            return self.services.submit_stream(to, header, host_part or sealed, traffic)
        request = aggregator_pb2.SubmitRequest(
            task_sha256=task, round=round, sealed_contribution=sealed, masked_vector=host_part
        )
        return self.services.submit(to, request, traffic)


def _require_round_key(work: Work, aggregator: Checked) -> None:
    model = work.model
    require_round_key(
        work.round_key, aggregator.enclave, task_sha256=model.task_sha256, round=work.round,
        model_sha256=model.model_sha256,
    )  # fmt: skip


def _refusal_of(answer: Answer, work: Work) -> Refusal | None:
    if answer.refusal == aggregator_pb2.REFUSAL_UNSPECIFIED:
        return None
    try:
        return Refusal(answer.refusal)
    except ValueError:
        raise ServiceError(f"the aggregator at {work.aggregator} gave an unknown refusal={answer.refusal}") from None


def _parts(prepared: Participation, work: Work) -> tuple[bytes, bytes]:
    """(what is sealed to the enclave, the part of the aggregator's host or nothing)."""
    stored = prepared.sealed or b""
    return stored[: len(stored) - work.host_bytes], stored[len(stored) - work.host_bytes :]
