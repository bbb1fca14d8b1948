"""The settings that every program with a listener has."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from odp._system.files.state_folder import StateFolder
from odp.transport.certificate_renewal import watch
from odp.transport.limits import Limits
from odp.transport.logs import Log
from odp.transport.tls import TlsIdentity, check_files, identity_for


@dataclass(frozen=True, kw_only=True)
class ProgramConfig:
    """Settings of a program that serves.

    Attributes:
      state: Folder of everything that it must not lose; made on first start with mode 0700.
      certificate, key, ca: PEM files, all three or none; default: a development CA issues the certificate.
      ca_folder: Folder of the development CA, shared by the programs of one machine; default: inside ``state``.
      limits: What callers may take of the listener.
      reflection: Whether gRPC reflection is served.
    """

    state: Path
    certificate: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    ca_folder: Path | None = None
    limits: Limits = field(default_factory=Limits)
    reflection: bool = False

    def __post_init__(self) -> None:
        check_files(certificate=self.certificate, key=self.key, ca=self.ca)

    def identity(self, state: StateFolder, log: Log, undo: contextlib.ExitStack) -> TlsIdentity:
        """The program's identity, watched until ``undo`` closes. Raises ConfigurationError for a wrong file."""
        identity = identity_for(
            state,
            certificate=self.certificate,
            key=self.key,
            ca=None if self.certificate is None else self.ca,
            ca_folder=self.ca_folder,
        )
        undo.callback(watch(identity, log).close)
        return identity
