"""What the entries of a log have to say together: who signed, in which order, what was charged, what is left.

An entry is judged by those before it. A charter founds its population under a founder of an endorsed policy, or follows
the charter before. A task is signed by a developer who owns its population, also when its models and releases are
logged. An endorsement is by a pinned endorser, for a policy that is in the log; evidence is endorsed at its time.
A catalogue's steps are signed by owners of its population and follow one another; a task that names a version has its
number of items, and the version was not withdrawn before. Models and releases follow one another without gaps. A
release is signed by an attested aggregator and charges exactly what its task declares; a ledger only grows, charges
every release, names it by its hash, and states epsilons that its charges have.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError

from odp.algorithms.registry import algorithm_for
from odp.algorithms.release import charges_of, event_of, round_entry, sampling_of
from odp.algorithms.seam import Algorithm
from odp.crypto import domains
from odp.crypto.signing import SignatureError, verify
from odp.errors import ConfigurationError, OdpError, OutOfResources
from odp.privacy import accounting
from odp.privacy.events import Event
from odp.privacy.ledger import EpsilonCheck
from odp.privacy.ledger_entry import Budget, Entry as LedgerLine, entries_of
from odp.privacy.ledger_events import LedgerEvent, charged
from odp.privacy.ledger_state import LedgerHead, LedgerState
from odp.protocol.catalogues.catalogue import Catalogue
from odp.protocol.catalogues.named import named_in, require_named
from odp.refusing import refusing
from odp.signed.charter import Charter, check_founding, check_succession, open_charter
from odp.signed.release import check_tensors
from odp.signed.task import model_sha256, open_manifest, open_task, task_sha256
from odp.trust.enclave.evidence import Claims, read_token
from odp.trust.enclave.log_policy import LogPolicy
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.enclave.verifier import VerifiedEnclave, verify_evidence
from odp.trust.log.endorsements import Endorsement, check_withdrawal, open_endorsement
from odp.trust.log.entries import (
    CatalogueEntry,
    CharterEntry,
    EndorsementEntry,
    Entry,
    EvidenceEntry,
    HandOverEntry,
    LedgerEntry,
    ManifestEntry,
    PolicyEntry,
    ReleaseEntry,
    TaskEntry,
    WithdrawalEntry,
)
from odp.trust.log.hand_overs import HandOvers, signer_of
from odp.trust.log.sources import AuditFailure
from odp.v1 import catalogue_pb2, common_pb2, population_pb2

# Epsilon is computed from the same events by the same code on another machine.
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class TaskFindings:
    """The findings about one task.

    Attributes:
        name, population, task_id: the task; the id in hexadecimal.
        rounds, planned_rounds: releases in the log, and when the task is finished; none of a task of local trust.
        contributions: of each release.
        epsilon: recomputed from the charges of its releases alone, at ``delta``.
        charged_epsilon: recomputed from everything that the ledger charged to it, rounds without a release included.
        budget, delta: the task's terms.
    """

    name: str
    population: str
    task_id: str
    rounds: int
    planned_rounds: int
    contributions: tuple[int, ...]
    epsilon: float
    charged_epsilon: float
    budget: float
    delta: float


class _Wrong(OdpError):
    """The fault of the present entry; one line."""


@dataclass
class _Task:
    definition: common_pb2.TaskDefinition
    signed: common_pb2.SignedTask
    algorithm: Algorithm
    planned: int
    models: list[bytes] = field(default_factory=list)
    #: Without their tensors.
    releases: list[common_pb2.Release] = field(default_factory=list)
    releases_sha256: list[bytes] = field(default_factory=list)
    events: Counter[Event] = field(default_factory=Counter)
    ledgers: int = 0

    @property
    def budget(self) -> Budget:
        return Budget(self.definition.privacy.epsilon, self.definition.privacy.delta)

    def charges(self, round: int) -> tuple[LedgerEvent, ...]:
        """What the ledger lists for one round, as declared."""
        return round_entry(self.algorithm.query(round), sampling_of(self.definition, round))


@dataclass
class _Ledger:
    """The logged part of one population's ledger, and the charges without a logged release."""

    state: LedgerState
    epsilons: EpsilonCheck
    charges: dict[tuple[str, int], LedgerLine] = field(default_factory=dict)


@dataclass
class _Endorsed:
    endorsement: Endorsement
    withdrawn: int | None = None


class Records:
    """Takes the entries of a log in order."""

    def __init__(self, reference_values: ReferenceValues, policy: LogPolicy) -> None:
        self._pinned = reference_values
        self._endorsers = policy.endorser_keys
        self._policies: dict[str, EnclavePolicy] = {}
        self._charters: dict[str, Charter] = {}
        self._chains: dict[str, set[bytes]] = {}
        self._endorsements: list[_Endorsed] = []
        self._enclaves: list[tuple[VerifiedEnclave, _Endorsed]] = []
        self._tasks: dict[bytes, _Task] = {}
        self._ledgers: dict[str, _Ledger] = {}
        self._hand_overs = HandOvers()
        self._catalogues: dict[str, Catalogue] = {}
        self._checks: dict[type[Entry], Callable[[Any], None]] = {
            TaskEntry: self._task,
            PolicyEntry: self._policy,
            EndorsementEntry: self._endorsement,
            EvidenceEntry: self._evidence,
            ManifestEntry: self._model,
            ReleaseEntry: self._release,
            LedgerEntry: self._ledger,
            CharterEntry: self._charter,
            HandOverEntry: self._hand_over,
            CatalogueEntry: self._catalogue,
        }

    def add(self, number: int, entry: Entry) -> None:
        """Checks entry ``number``.

        Raises:
            AuditFailure: it is wrong, or in a wrong place.
            OutOfResources: this machine could not check it.
        """
        try:
            with refusing(f"{entry.label} of the log"):
                self._take(number, entry)
        except OutOfResources:
            raise
        except OdpError as error:
            raise AuditFailure(f"entry {number} ({entry.label}{_about(entry)})", str(error)) from error

    def _take(self, number: int, entry: Entry) -> None:
        if isinstance(entry, WithdrawalEntry):
            self._withdrawal(number, entry)
        else:
            self._checks[type(entry)](entry)

    def finish(self) -> tuple[TaskFindings, ...]:
        """The findings about each task.

        Raises:
            AuditFailure: a release has no ledger.
        """
        findings = []
        for sha256, task in self._tasks.items():
            definition, rounds = task.definition, len(task.releases)
            if task.ledgers != rounds:
                raise AuditFailure(
                    f"release of round {task.ledgers} of task {definition.name!r}", "no ledger of its charge is logged"
                )
            ledger = self._ledgers.get(definition.population)
            # Without rounds nothing is released or charged: what each device sends is private by itself.
            planned, delta = task.planned, definition.privacy.delta
            findings.append(
                TaskFindings(
                    name=definition.name,
                    population=definition.population,
                    task_id=sha256.hex(),
                    rounds=rounds,
                    planned_rounds=planned,
                    contributions=tuple(release.contributions for release in task.releases),
                    epsilon=accounting.epsilon(task.events, delta=delta) if planned else 0.0,
                    charged_epsilon=0.0
                    if ledger is None or not planned
                    else ledger.state.epsilon_of_task(sha256.hex(), delta=delta),
                    budget=definition.privacy.epsilon,
                    delta=delta,
                )
            )
        return tuple(findings)

    def _policy(self, entry: PolicyEntry) -> None:
        policy = EnclavePolicy.from_bytes(entry.policy)
        self._policies[policy.sha256.hex()] = policy

    def _charter(self, entry: CharterEntry) -> None:
        charter = open_charter(entry.signed)
        if (before := self._charters.get(charter.population)) is None:
            check_founding(charter, self._founders())
        else:
            check_succession(charter, before)
        self._charters[charter.population] = charter
        self._chains.setdefault(charter.population, set()).add(charter.sha256)

    def _founders(self) -> set[bytes]:
        """The founders in the policies of aggregators with an endorsement in the log."""
        standing = {endorsed.endorsement.policy_sha256 for endorsed in self._endorsements if endorsed.withdrawn is None}
        return {key for sha256 in standing for key in self._policies[sha256].founder_keys}

    def _require_owner(self, definition: common_pb2.TaskDefinition) -> None:
        self._charter_of(definition.population).require_owner(definition.developer_key, of=f"task {definition.name!r}")

    def _charter_of(self, population: str) -> Charter:
        if (charter := self._charters.get(population)) is None:
            raise _Wrong(f"population {population!r} has no charter in the log before it")
        return charter

    def _catalogue(self, entry: CatalogueEntry) -> None:
        step = entry.signed.open()
        what = f"version {step.version} of its catalogue"
        self._charter_of(step.population).require_owner(entry.key, of=what)
        before = self._catalogues.get(step.population)
        self._catalogues[step.population] = Catalogue((*(() if before is None else before.steps), entry.step))

    def _task(self, entry: TaskEntry) -> None:
        definition = open_task(entry.signed)
        self._require_owner(definition)
        if (named := named_in(definition)) is not None:
            require_named(self._catalogues.get(definition.population), named)
        algorithm = algorithm_for(definition)
        planned = len(algorithm.planned_releases())
        self._tasks[task_sha256(entry.signed)] = _Task(definition, entry.signed, algorithm, planned)

    def _endorsement(self, entry: EndorsementEntry) -> None:
        endorsement = open_endorsement(entry)
        if endorsement.endorser not in self._endorsers:
            raise _Wrong(f"it is by {endorsement.endorser[:12]}.., which is not a pinned endorser")
        if endorsement.policy_sha256 not in self._policies:
            raise _Wrong("the policy that it names is not in the log before it")
        self._endorsements.append(_Endorsed(endorsement))

    def _withdrawal(self, number: int, entry: WithdrawalEntry) -> None:
        leaf = entry.leaf.hex()
        for endorsed in self._endorsements:
            if endorsed.endorsement.withdrawal == leaf:
                check_withdrawal(entry, endorsed.endorsement)
                endorsed.withdrawn = number
                return
        raise _Wrong("the endorsement that it withdraws is not in the log before it")

    def _evidence(self, entry: EvidenceEntry) -> None:
        if not entry.token.isascii():
            raise _Wrong("its token is not ASCII")
        token = entry.token.decode("ascii")
        claims = Claims.from_json(read_token(token).claims)
        policy = EnclavePolicy.from_bytes(entry.policy)
        sha256 = hashlib.sha256(entry.policy).hexdigest()
        wanted = {"role": policy.role, "image_digest": claims.image_digest, "policy_sha256": sha256}
        endorsed = next(
            (
                matching
                for matching in self._endorsements
                if matching.withdrawn is None and matching.endorsement.covers(**wanted, now=claims.issued)
            ),
            None,
        )
        if endorsed is None:
            raise _Wrong("no standing endorsement in the log before it covers its role, code and policy at its time")
        accepted = dataclasses.replace(
            self._pinned,
            image_digests={policy.role: (claims.image_digest,)},
            policy_sha256={policy.role: (sha256,)},
        )
        enclave = verify_evidence(
            token=token,
            policy=entry.policy,
            event_log=entry.event_log,
            nonce=claims.nonce,
            role=policy.role,
            reference_values=accepted,
            now=claims.issued,
        )
        for name, charter_sha256 in enclave.populations.items():
            if name in self._chains and charter_sha256 not in self._chains[name]:
                raise _Wrong(f"it shows a charter of population {name!r} that is not in the log before it")
        self._hand_overs.attested(enclave.ledgers)
        self._enclaves.append((enclave, endorsed))

    def _hand_over(self, entry: HandOverEntry) -> None:
        signer = signer_of(entry, [enclave for enclave, _ in self._enclaves if enclave.role == "aggregator"])
        self._hand_overs.add(entry, signer)

    def _model(self, entry: ManifestEntry) -> None:
        manifest = common_pb2.ModelManifest.FromString(entry.manifest)
        task = self._task_of(manifest.task_sha256)
        self._require_owner(task.definition)
        open_manifest(entry.signed, task=task.signed, developer_key=task.definition.developer_key)
        if manifest.version != len(task.models):
            raise _Wrong(f"it is version {manifest.version} where {len(task.models)} comes next")
        task.models.append(model_sha256(entry.signed))

    def _release(self, entry: ReleaseEntry) -> None:
        release = common_pb2.Release.FromString(entry.release)
        task = self._task_of(release.task_sha256)
        self._require_owner(task.definition)
        policy = self._signer(entry, domains.RELEASE, entry.release).policy
        number = len(task.releases)
        if release.round != number:
            raise _Wrong(f"it is of round {release.round} where {number} comes next")
        if number >= len(task.models) or release.model_sha256 != task.models[number]:
            raise _Wrong("the model that it was made with is not the one of its round in the log before it")
        if release.contributions < max(task.definition.cohort.minimum, policy.minimum_cohort):
            raise _Wrong(f"it has {release.contributions} contributions, fewer than task and policy allow")
        self._check_declared(release, task)
        task.events.update(charged(task.charges(number)))
        release.ClearField("tensors")
        task.releases.append(release)
        task.releases_sha256.append(hashlib.sha256(entry.release).digest())
        delta, budget = task.budget.delta, task.budget.epsilon
        spent = accounting.epsilon(task.events, delta=delta)
        # The ledger may hold charges of rounds without a release, so it states at least this.
        if release.epsilon_spent < spent * (1 - _TOLERANCE):
            raise _Wrong(f"it states epsilon {release.epsilon_spent!r}; its charges so far give {spent!r}")
        if spent > budget or release.epsilon_spent > budget:
            raise _Wrong(f"epsilon {max(spent, release.epsilon_spent)!r} is above the task's budget {budget!r}")
        if not _close(release.epsilon_remaining, max(0.0, budget - release.epsilon_spent)):
            raise _Wrong("the remaining epsilon that it states is not its budget minus what it states as spent")

    def _check_declared(self, release: common_pb2.Release, task: _Task) -> None:
        query = task.algorithm.query(release.round)
        if tuple(map(event_of, release.charges)) != charges_of(query):
            raise _Wrong("its charges are not those that its task declares for this round")
        check_tensors(release, query.releases)

    def _ledger(self, entry: LedgerEntry) -> None:
        task = self._task_of(entry.task_sha256)
        signer = self._signer(entry, domains.LEDGER, entry.head)
        policy = signer.policy
        head, population = LedgerHead.decode(entry.head), task.definition.population
        if head.population != population:
            raise _Wrong(f"it is of population {head.population!r}, and its task of {population!r}")
        if entry.number != task.ledgers or entry.number != len(task.releases) - 1:
            raise _Wrong(f"it is for round {entry.number}, whose release is not the last one before it")
        ledger = self._ledgers.setdefault(population, _Ledger(LedgerState(population), EpsilonCheck(population)))
        new = list(entries_of(entry.lines))
        self._hand_overs.charged(ledger.state.head, new, signer.image_digest)
        for line in new:
            ledger.state.append(line)
        if ledger.state.head != head:
            raise _Wrong("what was logged of the ledger, its own entries included, does not lead to its signed head")
        ledger.epsilons.add(new)
        ledger.charges.update({(line.task_id, line.round): line for line in new if line.events})
        self._check_charge(ledger, task.releases[-1], task)
        for line in new:
            if line.events:
                of = self._task_of(bytes.fromhex(line.task_id))
                if line.round >= of.planned or line.events != of.charges(line.round):
                    raise _Wrong(f"it charges round {line.round} of {of.definition.name!r} other than declared")
                if line.population_budget != Budget(policy.population_epsilon, policy.population_delta):
                    raise _Wrong("a charge was checked against another population budget than the enclave's policy has")
        task.ledgers += 1

    def _check_charge(self, ledger: _Ledger, release: common_pb2.Release, task: _Task) -> None:
        task_id = release.task_sha256.hex()
        if (charge := ledger.charges.pop((task_id, release.round), None)) is None:
            raise _Wrong(f"it does not charge the release of round {release.round}")
        if charge.events != task.charges(release.round):
            raise _Wrong(f"its charge of round {release.round} is not that of the release")
        if (charge.contributions, charge.task_budget) != (release.contributions, task.budget):
            raise _Wrong(f"its charge of round {release.round} has another cohort or budget than release and task")
        if not _close(charge.task_epsilon, release.epsilon_spent):
            raise _Wrong(f"it states epsilon {charge.task_epsilon!r}, the release {release.epsilon_spent!r}")
        sealed = ledger.state.find(task_id, release.round)
        if sealed is None or sealed.release_sha256 != task.releases_sha256[-1]:
            raise _Wrong(f"it seals another release of round {release.round} than the one in the log before it")

    def _task_of(self, sha256: bytes) -> _Task:
        if (task := self._tasks.get(sha256)) is None:
            raise _Wrong(f"task {sha256[:6].hex()} is not in the log before it")
        return task

    def _signer(self, entry: ReleaseEntry | LedgerEntry, domain: bytes, data: bytes) -> VerifiedEnclave:
        """The attested aggregator that signed ``data``."""
        for enclave, endorsed in reversed(self._enclaves):
            if enclave.role != "aggregator":
                continue
            try:
                verify(enclave.signing_key, entry.signature, domain, data)
            except SignatureError:
                continue
            if endorsed.withdrawn is not None:
                raise _Wrong(
                    f"the endorsement of the enclave that signed it was withdrawn at entry {endorsed.withdrawn}"
                )
            return enclave
        raise _Wrong("no aggregator whose evidence is in the log before it has signed it")


def _about(entry: Entry) -> str:
    """Round and task of an entry, as far as they are readable."""
    try:
        return _ABOUT[type(entry)](entry) if type(entry) in _ABOUT else ""
    except (DecodeError, ConfigurationError):
        return ""


def _version_of_catalogue(entry: CatalogueEntry) -> str:
    step = catalogue_pb2.CatalogueStep.FromString(entry.step)
    return f" version {step.version} of {step.population!r}"


_ABOUT: dict[type[Entry], Callable[[Any], str]] = {
    TaskEntry: lambda entry: f" {common_pb2.TaskDefinition.FromString(entry.definition).name!r}",
    CharterEntry: lambda entry: f" of {population_pb2.PopulationCharter.FromString(entry.charter).population!r}",
    ManifestEntry: lambda entry: f" version {common_pb2.ModelManifest.FromString(entry.manifest).version}",
    ReleaseEntry: lambda entry: f" of round {common_pb2.Release.FromString(entry.release).round}",
    LedgerEntry: lambda entry: f" of round {entry.number}",
    CatalogueEntry: _version_of_catalogue,
}


def _close(first: float, second: float) -> bool:
    return math.isclose(first, second, rel_tol=_TOLERANCE, abs_tol=1e-12)
