"""Who may take a seat in a session of SecAgg+: asked once for each client, before the host holds anything of it."""

from __future__ import annotations

from typing import Protocol

from odp.v1 import secagg_service_pb2 as wire


class Admission(Protocol):
    """One check of a client that has no seat in a session yet."""

    def require(self, request: wire.StepRequest) -> None:
        """Returns if the client of this advert may take a seat. Raises PrivacyError, or Busy to have it come again.

        Args:
            request: its ``client`` names task, round, attempt and identity; its signature is checked after this.
        """
        ...


class Anybody:
    """Admits every client: sessions of a task without a roster are open to strangers."""

    def require(self, request: wire.StepRequest) -> None:
        """Returns."""
