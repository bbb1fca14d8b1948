"""What a finished demo keeps for later checks: the signed ledger, and an audited copy of the log."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odp.operations.local.processes import Services
    from odp.services.connection import TaskHandle
    from odp.trust.log.audit import AuditReport

_PINS = "reference_values.json"


@dataclass(frozen=True)
class Receipts:
    """Attributes: ``ledger`` is canonical JSON, ``audit`` what the audit of the copy in ``folder`` found."""

    ledger: bytes
    audit: AuditReport
    folder: Path

    @property
    def summary(self) -> dict[str, Any]:
        """Plain values for a report."""
        return {
            "folder": str(self.folder),
            "size": self.audit.checkpoint.checkpoint.size,
            "entries": self.audit.counts,
            "epsilon": self.audit.tasks[-1].epsilon,
        }

    @property
    def lines(self) -> tuple[str, str]:
        """Lines for the terminal: what was checked, and how to repeat it."""
        pins = self.folder.parent / _PINS
        return (
            f"audit passed: {self.audit.checkpoint.checkpoint.size} entries of the transparency log, every signature, "
            f"ε {self.audit.tasks[-1].epsilon:.4f} from the charges alone; the attested enclave signed the ledger",
            f"again: odp audit verify --log {self.folder} --reference-values {pins}",
        )


def collect(handle: TaskHandle, services: Services, output: Path) -> Receipts:
    """Fetches the ledger and checks its signature; copies the log and what is pinned to ``output``; audits the copy.

    Raises:
        AttestationError, SignatureError, StateError: the ledger is not signed by the attested aggregator.
        AuditFailure: a record of the log is wrong.
        OSError: ``output`` cannot be written.
    """
    from odp.trust.enclave.reference_values import ReferenceValues
    from odp.trust.log.audit import audit
    from odp.trust.log.sources import LogFolder

    pinned = ReferenceValues.load(services.reference_values)
    status = handle.status()
    enclave = handle.connection.attested_aggregator(status, pinned)
    ledger = handle.connection.ledger(status).ledger(enclave.signing_key)
    copy = output / "log"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(services.root / "server" / "log", copy, ignore=shutil.ignore_patterns(".*"))
    shutil.copy(services.reference_values, output / _PINS)
    return Receipts(ledger.encode(), audit(LogFolder(copy), pinned), copy)
