"""The record of a device's checks before a contribution, so that anybody can repeat them without a network.

A record holds the task and the model as their developer signed them, the population's charter, the evidence of both
enclaves with the nonces that it answers, the key of the round, the proofs from the transparency log, and the hash of
the reference values. It says nothing about the device: all devices of a host that verified the same things share one.
Records are files named by their SHA-256, which stands in the device's ledger; a record is on the disk before the
contribution that rests on it.

The key of a round comes with the assignment, from a server that nobody trusts. The enclave erases its private half with
the round, so what a host recorded stays closed, whatever leaks later. A device seals once for a key: where the round
comes back with another key, ``void_openings.py`` decides.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from device_runtime.network.enclaves import Evidence
from device_runtime.store.schema import Participation
from device_runtime.tasks.assignment import Work
from device_runtime.tasks.charters import charter_of, require_in_force
from odp._system.files.private_files import make_folders
from odp._system.files.state_folder import state_errors, write_atomically
from odp._system.recent import Recent
from odp.crypto import domains
from odp.crypto.public_keys import require_x25519
from odp.crypto.signing import SignatureError, verify
from odp.errors import AttestationError, ConfigurationError, OdpError, StateError
from odp.signed.charter import Charter
from odp.signed.task import model_sha256, open_manifest, open_task, task_sha256
from odp.trust.enclave.evidence import Reason
from odp.trust.enclave.log_policy import LogPolicy
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.enclave.verifier import VerifiedEnclave, verify_evidence
from odp.trust.log.checkpoint import check_age, verify_checkpoint
from odp.trust.log.entries import CharterEntry, ManifestEntry, TaskEntry
from odp.trust.log.proofs import endorsements_in
from odp.v1 import common_pb2, log_pb2, population_pb2

FOLDER = "records"

_FORMAT = "odp-verification-3"
_REMEMBERED = 64
_LARGEST = 4 << 20


def reference_values_bytes(values: ReferenceValues) -> bytes:
    """The bytes whose SHA-256 stands in records: JSON with sorted keys."""
    return json.dumps(dataclasses.asdict(values), sort_keys=True).encode() + b"\n"


class Records:
    """The records of a device host; thread-safe.

    Args:
      folder: where they lie; made where it is missing.
      reference_values: gives what the enclaves are checked against now; kept beside the records.
      clock: seconds since the epoch.
    """

    def __init__(
        self, folder: Path, reference_values: Callable[[], ReferenceValues], *, clock: Callable[[], float] = time.time
    ) -> None:
        self._folder, self._reference_values = folder, reference_values
        self._pinned = reference_values()
        self._pinned_bytes = reference_values_bytes(self._pinned)
        self._clock = clock
        self._lock = threading.Lock()
        self._written: Recent[tuple[object, ...], bytes] = Recent(_REMEMBERED)

    def keep(self, work: Work, evidence: Sequence[Evidence]) -> bytes:
        """The SHA-256 of the record of what was verified for ``work``; it is on the disk when this returns.

        Raises:
          StateError: the folder cannot be written.
        """
        proof = b"" if work.log is None else work.log.SerializeToString(deterministic=True)
        round_key = common_pb2.SignedRoundKey() if work.round_key is None else work.round_key
        shown = hashlib.sha256(proof).digest(), round_key.hpke_key, *(piece.nonce for piece in evidence)
        key = (work.key, work.model.model_sha256, *shown)
        pinned = self._reference_values()
        with self._lock:
            if pinned is not self._pinned:
                self._pinned, self._pinned_bytes = pinned, reference_values_bytes(pinned)
                self._written = Recent(_REMEMBERED)
            if (record := self._written.get(key)) is None:
                reference_values = self._write(self._pinned_bytes)
                content = {
                    "format": _FORMAT,
                    "time": self._clock(),
                    "reference_values_sha256": reference_values.hex(),
                    "task": _signed(work.model.signed_task.definition, work.model.signed_task.signature),
                    "model": _signed(work.model.signed_manifest.manifest, work.model.signed_manifest.signature),
                    "log": _text(proof),
                    "charter": _text(b"" if work.charter is None else work.charter.signed.SerializeToString()),
                    "round_key": _signed(round_key.hpke_key, round_key.signature),
                    "evidence": [
                        {
                            name: _text(value) if isinstance(value, bytes) else value
                            for name, value in vars(piece).items()
                        }
                        for piece in evidence
                    ],
                }
                record = self._write(json.dumps(content, sort_keys=True).encode() + b"\n")
                self._written.put(key, record)
            return record

    def _write(self, data: bytes) -> bytes:
        digest = hashlib.sha256(data).digest()
        path = record_path(self._folder, digest)
        with state_errors(self._folder):
            make_folders(self._folder)
            if not path.exists():
                write_atomically(path, data)
        return digest


def record_path(folder: Path, sha256: bytes) -> Path:
    """The file of a record."""
    return folder / f"{sha256.hex()}.json"


def _signed(data: bytes, signature: bytes) -> dict[str, str]:
    return {"data": _text(data), "signature": _text(signature)}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was verified again: ``what``, whether it holds, and in words what the verification saw."""

    what: str
    holds: bool
    observed: str


def replay(folder: Path, line: Participation, *, pinned: ReferenceValues | None = None) -> tuple[Finding, ...]:
    """Verifies again what the device verified before the contribution of ``line``, as of the time when it did.

    ``pinned`` are the reference values of today, where there are any: a record that rests on others says so.

    Raises:
      StateError: the record or its reference values are missing, or are not what the ledger names.
    """
    if not line.record:
        raise StateError("the ledger names no verification record for this contribution: its host kept none")
    record = _Record(_content(_read(folder, line.record)), folder)
    findings: list[Finding] = [Finding("record", True, f"is the one that the ledger names, {line.record.hex()[:12]}..")]

    def verified(what: str, check: Callable[[], str]) -> None:
        try:
            findings.append(Finding(what, True, check()))
        except (OdpError, ValueError, TypeError, KeyError, DecodeError) as error:
            findings.append(Finding(what, False, " ".join(str(error).split()) or type(error).__name__))

    verified("reference values", lambda: record.reference(pinned))
    verified("task", lambda: record.task(line))
    verified("model", lambda: record.model(line))
    if not record.without_distributor:
        verified("distributor", lambda: record.enclave("distributor"))
    verified("aggregator", lambda: record.enclave("aggregator"))
    verified("population", record.population)
    verified("recipient", lambda: record.recipient(line))
    verified("transparency log", record.log)
    return tuple(findings)


class _Record:
    """A record that is being verified; each method raises, or says what it found."""

    def __init__(self, content: dict[str, Any], folder: Path) -> None:
        self._content, self._folder = content, folder

    def _bytes(self, *names: str) -> bytes:
        value: Any = self._content
        for name in names:
            value = value[name]
        try:
            return base64.b64decode(value, validate=True)
        except binascii.Error as error:
            raise ValueError(f"{names[-1]} is not base64") from error

    @property
    def without_distributor(self) -> bool:
        """Whether no rows were fetched: then nothing was sent to a distributor, and none was verified."""
        try:
            manifest = common_pb2.ModelManifest.FromString(self._signed_model().manifest)
        except (ValueError, TypeError, KeyError, DecodeError):
            return False  # a record that is damaged so is told by the checks of its parts
        return not any(table.keyed for table in manifest.tables)

    def _values(self) -> ReferenceValues:
        digest = bytes.fromhex(self._content["reference_values_sha256"])
        _read(self._folder, digest)
        return ReferenceValues.load(record_path(self._folder, digest))

    def _signed_task(self) -> common_pb2.SignedTask:
        return common_pb2.SignedTask(definition=self._bytes("task", "data"), signature=self._bytes("task", "signature"))

    def _signed_model(self) -> common_pb2.SignedManifest:
        return common_pb2.SignedManifest(
            manifest=self._bytes("model", "data"), signature=self._bytes("model", "signature")
        )

    def reference(self, pinned: ReferenceValues | None) -> str:
        mine = reference_values_bytes(self._values())
        if pinned is None:
            return "those that were pinned then; those of today were not given"
        same = reference_values_bytes(pinned) == mine
        return "those that were pinned then, and are today" if same else "those that were pinned then; others are today"

    def task(self, line: Participation) -> str:
        signed = self._signed_task()
        definition = open_task(signed)
        if task_sha256(signed) != line.task_sha256:
            raise ValueError("is another task than the ledger's")
        terms = definition.privacy
        if (terms.epsilon, terms.delta) != (line.epsilon, line.delta):
            raise ValueError("states another guarantee than the ledger")
        return f"{definition.name!r}, signed by {definition.developer_key.hex()[:12]}.., epsilon={terms.epsilon:g}"

    def model(self, line: Participation) -> str:
        signed, task = self._signed_model(), self._signed_task()
        manifest = open_manifest(signed, task=task, developer_key=open_task(task).developer_key)
        if model_sha256(signed) != line.model_sha256 or manifest.version != line.round:
            raise ValueError("is another model than the ledger's")
        return f"version {manifest.version}, signed by the task's developer"

    def verified(self, role: str) -> VerifiedEnclave:
        (entry,) = (candidate for candidate in self._content["evidence"] if candidate["role"] == role)
        return verify_evidence(
            token=entry["token"],
            policy=base64.b64decode(entry["policy"]),
            event_log=base64.b64decode(entry["event_log"]),
            nonce=base64.b64decode(entry["nonce"]),
            role=role,
            reference_values=self._values(),
            now=float(entry["time"]),
        )

    def enclave(self, role: str) -> str:
        enclave = self.verified(role)
        kind = "emulated" if enclave.emulated else "in hardware"
        if enclave.policy.test_noise_seed is not None:
            kind += ", TEST NOISE that protects nobody"
        return f"{kind}, code {enclave.image_digest[:19]}.., policy {enclave.policy.sha256.hex()[:12]}.."

    def charter(self) -> Charter:
        signed = population_pb2.SignedCharter.FromString(self._bytes("charter"))
        return charter_of(signed, open_task(self._signed_task()))

    def population(self) -> str:
        charter = require_in_force(self.charter(), self.verified("aggregator"))
        return (
            f"{charter.population!r}, founded by charter {charter.founding_sha256.hex()[:12]}.., belongs to the task's "
            f"developer by charter {charter.sequence}, which the aggregator shows"
        )

    def recipient(self, line: Participation) -> str:
        enclave = self.verified("aggregator")
        if (enclave.policy.sha256, enclave.image_digest) != (line.policy_sha256, line.image_digest):
            raise ValueError("the contribution was made for another policy or code than this enclave's")
        if not line.recipient:
            return "nothing was encrypted to this aggregator: its host gets a masked vector"
        signed = common_pb2.SignedRoundKey(
            hpke_key=self._bytes("round_key", "data"), signature=self._bytes("round_key", "signature")
        )
        named = {"task_sha256": line.task_sha256, "model_sha256": line.model_sha256}
        if require_round_key(signed, enclave, round=line.round, **named) != line.recipient:
            raise ValueError("the contribution was encrypted to another key than the round's")
        return "the contribution was encrypted to the key of its round alone, which this aggregator signed"

    def log(self) -> str:
        if (policy := self._values().log) is None:
            return "none was pinned"
        return self._logged(policy)

    def _logged(self, policy: LogPolicy) -> str:
        proof = log_pb2.LogProof.FromString(self._bytes("log"))
        verified = verify_checkpoint(proof.checkpoint, policy)
        now = float(self._content["time"])
        check_age(verified, policy, now=now)
        task, model = TaskEntry.of(self._signed_task()).leaf, ManifestEntry.of(self._signed_model()).leaf
        charter = CharterEntry.of(self.charter().signed).leaf
        logged = endorsements_in(proof, verified.checkpoint, policy, task=task, model=model, charter=charter)
        for role in ("aggregator",) if self.without_distributor else ("distributor", "aggregator"):
            enclave = self.verified(role)
            if not any(
                entry.endorsement.covers(
                    role=role, image_digest=enclave.image_digest, policy_sha256=enclave.policy.sha256.hex(), now=now
                )
                for entry in logged
            ):
                raise ValueError(f"no endorsement in it covers the {role}")
        return f"checkpoint of {verified.checkpoint.size} entries holds task, model, charter and both endorsements"


def _content(data: bytes) -> dict[str, Any]:
    try:
        content = json.loads(data)
        if content["format"] != _FORMAT:
            raise ValueError(content["format"])
    except (ValueError, TypeError, KeyError) as error:
        raise StateError("the verification record is of another version; use the program that made it") from error
    return dict(content)


def _read(folder: Path, sha256: bytes) -> bytes:
    path = record_path(folder, sha256)
    with state_errors(folder):
        try:
            with path.open("rb") as file:
                data = file.read(_LARGEST)
        except FileNotFoundError as error:
            raise StateError(f"the verification record {path} is missing") from error
    if hashlib.sha256(data).digest() != sha256:
        raise StateError(f"the verification record {path} was changed: it is not the one that the ledger names")
    return data


def require_round_key(
    signed: common_pb2.SignedRoundKey | None,
    enclave: VerifiedEnclave,
    *,
    task_sha256: bytes,
    round: int,
    model_sha256: bytes,
) -> bytes:
    """The key (32 bytes), which the aggregator's enclave signed for this task, round and model under its policy.

    Raises:
      AttestationError: it signed another one, or none came along.
    """
    if signed is None:
        raise AttestationError(Reason.WRONG_ROUND_KEY, "the server gave no key of the round")
    try:
        require_x25519(signed.hpke_key, name="the round's key")
        data = domains.round_key(task_sha256, round, model_sha256, enclave.policy.sha256, signed.hpke_key)
        verify(enclave.signing_key, signed.signature, domains.ROUND_KEY, data)
    except (ConfigurationError, SignatureError):
        raise AttestationError(
            Reason.WRONG_ROUND_KEY, f"the key of round {round} is not one that the aggregator's enclave signed for it"
        ) from None
    return signed.hpke_key
