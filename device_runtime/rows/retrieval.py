"""How a device gets the rows that it needs: one interface over the methods that a signed task can name.

No method depends on the device's data, and all give the same rows. docs/partial-broadcast.md lists which party learns
what from each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from device_runtime.network.enclaves import Checked
from device_runtime.network.services import Services, Traffic
from device_runtime.rows.sealed_select import Asked, Verify, select_sealed
from device_runtime.rows.table_cache import TableCache
from device_runtime.rows.two_parties import TwoParties
from device_runtime.rows.whole_model import WholeModel
from device_runtime.tasks.assignment import Model, Work
from odp.numerics.arrays import Int64Array
from odp.protocol.wire.model import Slices
from odp.refusing import refusing
from odp.signed.broadcast.terms import ALL, ENCLAVE, PIR, method_of


class Retrieval(Protocol):
    """One method to get rows."""

    def fetch(self, work: Work, keys: Int64Array, traffic: Traffic) -> Slices:
        """The rows of the distinct, ascending ``keys``, and the dense tables.

        Raises:
          ServiceError: what came is not what the manifest says, or was refused; nothing of it is used.
          ServiceUnavailable: nobody answers; try again later.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Retrievals:
    """The methods that need no enclave, shared by the devices of a process; thread-safe.

    Args:
      whole: for tasks whose devices take the whole model.
      two_parties: for tasks whose devices ask a leader and a helper.
    """

    whole: WholeModel
    two_parties: TwoParties

    @classmethod
    def over(
        cls, services: Services, *, cache: TableCache | None = None, helper_keys: Iterable[str] = ()
    ) -> Retrievals:
        """The methods of a process: ``cache`` holds whole tables; the person pinned the helpers (hex keys)."""
        pinned = frozenset(bytes.fromhex(key) for key in helper_keys)
        return cls(whole=WholeModel(services, cache), two_parties=TwoParties(services, pinned))

    def require(self, model: Model) -> None:
        """Raises AttestationError if the task's helper is not pinned. Makes no network call."""
        if method_of(model.definition) == PIR and model.keyed:
            self.two_parties.require_pinned(model.definition.broadcast.helper_key)

    def of(self, model: Model) -> Retrieval:
        """The method of a task that does not use the enclave (``asks_enclave``); models without rows travel whole."""
        return self.whole if not model.keyed or method_of(model.definition) == ALL else self.two_parties


def asks_enclave(model: Model) -> bool:
    """Whether devices of the task send anything to the distributor's enclave."""
    return model.keyed and method_of(model.definition) == ENCLAVE


class SealedRows:
    """Gets rows from the distributor's enclave; retries once if the enclave restarted with a new key.

    Args:
      services: how to reach it.
      checked: the enclave, and ``verify`` gives another one of it.
      random_bytes: source of reply keys.
    """

    def __init__(
        self, services: Services, checked: Checked, verify: Verify, random_bytes: Callable[[int], bytes]
    ) -> None:
        self.checked = checked
        self._services = services
        self._verify = verify
        self._random_bytes = random_bytes

    @refusing("answer with rows")
    def fetch(self, work: Work, keys: Int64Array, traffic: Traffic) -> Slices:
        """As ``Retrieval``; ``checked`` is the enclave that answered.

        Raises, besides: AttestationError where the enclave's new evidence is refused.
        """
        model = work.model
        selection = Asked(work.distributor, model.model_sha256, model.manifest, model.rows_per_request)
        slices, self.checked = select_sealed(
            self._services,
            selection,
            keys,
            traffic,
            checked=self.checked,
            verify=self._verify,
            random_bytes=self._random_bytes,
        )
        return slices
