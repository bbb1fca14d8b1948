"""The owners of populations, as a device host knows them: it rejects tasks and models of anybody else.

Every task and every model comes with the charter that is in force, and that names its developer as an owner. It has to
be in the transparency log, and what the aggregator's evidence shows. Beyond that a host remembers, for each population,
the founding that it saw first and the newest charter: another founding, or an older charter, is refused. A person who
pins the founding in the reference values trusts no first answer.

It also remembers the id of the population's ledger, which the enclave drew when it was founded, and which goes on
through every restart and upgrade. A population that started again, at zero, has another one: whoever contributed to it
before sends nothing to it.

The memory belongs to the host, and says nothing about any device.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from odp._system.files.state_folder import state_errors, write_atomically
from odp.errors import AttestationError, PrivacyError, StateError
from odp.signed.charter import Charter, open_charter
from odp.trust.enclave.evidence import Reason
from odp.trust.enclave.verifier import VerifiedEnclave
from odp.v1 import common_pb2, population_pb2

FILE = "populations.json"

_LARGEST_FILE = 1 << 20


def charter_of(signed: population_pb2.SignedCharter, definition: common_pb2.TaskDefinition) -> Charter:
    """The charter that came with a task; it names the task's developer as an owner of the population.

    Raises:
      ConfigurationError: it is malformed.
      PrivacyError: it is of another population, or names other owners.
    """
    charter = open_charter(signed)
    if charter.population != definition.population:
        raise PrivacyError(
            f"the charter is of population {charter.population!r}, and the task of {definition.population!r}"
        )
    charter.require_owner(definition.developer_key, of=f"task {definition.name!r}")
    return charter


def require_in_force(charter: Charter | None, enclave: VerifiedEnclave) -> Charter:
    """Returns if the aggregator's evidence shows exactly this charter.

    Raises:
      AttestationError: it shows another one, or none, or no charter came along.
    """
    if charter is None:
        raise AttestationError(Reason.WRONG_CHARTER, "the server gave no charter of the task's population")
    if enclave.populations.get(charter.population) != charter.sha256:
        raise AttestationError(
            Reason.WRONG_CHARTER,
            f"the aggregator's evidence shows another charter of population {charter.population!r} than the server's",
        )
    return charter


class CharterMemory:
    """The memory of a device host about each population. Thread-safe.

    Args:
      file: where it lies; None remembers for the life of the process.
      pinned: population -> SHA-256 of its founding charter (64 hex digits), of ``ReferenceValues.populations``.
    """

    def __init__(self, file: Path | None = None, pinned: Mapping[str, str] | None = None) -> None:
        self._file = file
        self._pinned = dict(pinned or {})
        self._lock = threading.Lock()
        self._lines: dict[str, dict[str, Any]] | None = None

    def check(self, charter: Charter) -> None:
        """Returns if ``charter`` agrees with all that is remembered.

        Raises:
          PrivacyError: the population was founded otherwise than pinned or seen first, or the charter is an older one.
          StateError: the file cannot be read.
        """
        with self._lock:
            last = self._remembered().get(charter.population)
        wanted = self._pinned.get(charter.population, last["founding"] if last else None)
        if wanted is not None and wanted != charter.founding_sha256.hex():
            raise PrivacyError(
                f"population {charter.population!r} was founded by charter {wanted[:12]}.., and the server's charter "
                f"goes back to {charter.founding_sha256.hex()[:12]}..: its owners are not those that this device knows"
            )
        same = last is not None and charter.sha256.hex() == last["charter"]
        if last is not None and not same and charter.sequence <= last["sequence"]:
            raise PrivacyError(
                f"the server shows charter {charter.sequence} of population {charter.population!r}, "
                f"and this device knows charter {last['sequence']}"
            )

    def accept(self, charter: Charter, enclave: VerifiedEnclave | None) -> None:
        """Stores a checked charter, and the ledger that ``enclave`` shows beside it, durably.

        Without an enclave, of a task that has none, the ledger that is remembered stays.

        Raises:
          PrivacyError, StateError: as ``check``.
          AttestationError: it shows another ledger than before, or none any more.
        """
        self.check(charter)
        with self._lock:
            remembered = self._remembered()
            last_ledger = remembered.get(charter.population, {}).get("ledger", "")
            shown = last_ledger if enclave is None else enclave.ledgers.get(charter.population, b"").hex()
            if last_ledger and shown != last_ledger:
                raise AttestationError(
                    Reason.WRONG_LEDGER,
                    f"the ledger of population {charter.population!r} is not the one that this device "
                    "knows: earlier charges are missing from it, so nothing is sent",
                )
            line = {
                "charter": charter.sha256.hex(),
                "founding": charter.founding_sha256.hex(),
                "ledger": shown,
                "sequence": charter.sequence,
            }
            if remembered.get(charter.population) == line and (self._file is None or _marker(self._file).exists()):
                return
            after = {**remembered, charter.population: line}
            if self._file is not None:
                with state_errors(self._file.parent):
                    write_atomically(self._file, json.dumps(after, sort_keys=True).encode() + b"\n")
                    if not _marker(self._file).exists():
                        write_atomically(_marker(self._file), b"")
            self._lines = after

    def _remembered(self) -> dict[str, dict[str, Any]]:
        if self._lines is None:
            self._lines = {} if self._file is None else _read(self._file)
        return self._lines


def _marker(file: Path) -> Path:
    """A marker, created after the file: without it, a lost file would look like that of a new device."""
    return file.with_name(f"kept-{file.name}")


def _read(file: Path) -> dict[str, dict[str, Any]]:
    with state_errors(file.parent):
        try:
            with file.open("rb") as opened:
                data = opened.read(_LARGEST_FILE)
        except FileNotFoundError:
            if _marker(file).exists():
                raise StateError(
                    f"{file} is gone: the owners and the ledgers of populations are lost; restore it "
                    f"from a backup, or remove {_marker(file).name} too, to trust the next answer"
                ) from None
            return {}
    try:
        values = json.loads(data)
        return {
            str(name): {
                "charter": str(line["charter"]),
                "founding": str(line["founding"]),
                "ledger": str(line.get("ledger", "")),
                "sequence": int(line["sequence"]),
            }
            for name, line in values.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        # Taken for an empty one, it would let anybody found the populations anew.
        raise StateError(
            f"{file} is damaged: restore it, or remove it and {_marker(file).name} to trust the next answer"
        ) from None
