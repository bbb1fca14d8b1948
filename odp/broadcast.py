"""How the devices of a task get the rows of its model: a part of the signed task, so that all of them ask alike."""

from __future__ import annotations

import re
from dataclasses import dataclass

from odp._validate import one_of, strict_keywords
from odp.crypto.public_keys import KEY_BYTES, require_x25519
from odp.errors import ConfigurationError
from odp.v1 import broadcast_pb2, common_pb2

AUTO, ALL, ENCLAVE, PIR, LWE = "auto", "all", "enclave", "pir", "lwe"
METHODS = (AUTO, ALL, ENCLAVE, PIR, LWE)
#: Most rows of one request to two parties (``odp.crypto.pir.layout``).
MOST_PIR_KEYS = 512
#: Rows of one request by lattices, whatever a device needs, and the largest table that is answered so: its hint takes a
#: thousand passes over the table.
LATTICE_KEYS = 16
LARGEST_LATTICE_TABLE = 64 * 2**20

_KEY = re.compile(rf"[0-9a-f]{{{2 * KEY_BYTES}}}")
_WIRE = {
    ENCLAVE: broadcast_pb2.BroadcastTerms.METHOD_UNSPECIFIED,
    ALL: broadcast_pb2.BroadcastTerms.METHOD_ALL,
    PIR: broadcast_pb2.BroadcastTerms.METHOD_PIR,
}


@strict_keywords
@dataclass(frozen=True, kw_only=True)
class Broadcast:
    """How devices get the rows that they need; see docs/partial-broadcast.md for what each method tells to whom.

    Attributes:
      method: "enclave": sealed keys to the attested enclave. "all": the whole model, rows are picked on the device.
        "pir": two parties, the distributor's host and a helper, neither of which learns anything unless both conspire.
        "auto": the cheapest of those that the task may use, decided when the task is made (``odp task plan`` prints
        why). "lwe" is for tables that never change, and so for no task that trains one.
      helper_key: Public key of the helper as ``odp distributor helper key`` prints it, 64 hex digits. Required by
        "pir", allowed with "auto", which considers "pir" only where it is given. Devices refuse a helper that their
        person did not pin.
    """

    method: str = ENCLAVE
    helper_key: str = ""

    def __post_init__(self) -> None:
        one_of(METHODS, method=self.method)
        if self.helper_key and not _KEY.fullmatch(self.helper_key):
            raise ConfigurationError(
                f"Expected helper_key={self.helper_key[:16]!r}.. to be {2 * KEY_BYTES} hex digits; "
                "`odp distributor helper key` prints it"
            )
        if self.helper_key:
            require_x25519(bytes.fromhex(self.helper_key), name="helper_key")
        if self.method == PIR and not self.helper_key:
            raise ConfigurationError(
                "Expected helper_key with method='pir': the helper's public key, which `odp distributor helper key` "
                "prints"
            )
        if self.helper_key and self.method not in (PIR, AUTO):
            raise ConfigurationError(f"Expected no helper_key with method={self.method!r}: it asks no helper")

    def resolve(self, definition: common_pb2.TaskDefinition) -> broadcast_pb2.BroadcastTerms | None:
        """The terms for a task of this ``definition``; None for those that the wire form leaves out.

        Raises ConfigurationError for "lwe": what a task trains changes in every round.
        """
        method = self.method
        if method == LWE:
            raise ConfigurationError(
                "Expected method='lwe' for tables that never change: a task replaces its model in every round, and "
                "each version would cost every device a new hint; take 'enclave', 'pir' or 'all'"
            )
        if method == AUTO:
            from odp.broadcast_planner import plan

            method = plan(definition, helper=bool(self.helper_key)).chosen
        if method == ENCLAVE:
            return None
        key = bytes.fromhex(self.helper_key) if method == PIR else b""
        return broadcast_pb2.BroadcastTerms(method=_WIRE[method], helper_key=key)


def method_of(definition: common_pb2.TaskDefinition) -> str:
    """ENCLAVE, ALL or PIR: how devices ask, of a definition that was checked."""
    return next(name for name, number in _WIRE.items() if number == definition.broadcast.method)


def check_broadcast(definition: common_pb2.TaskDefinition) -> None:
    """Raises ConfigurationError unless the terms are ones that this version can follow."""
    if not definition.HasField("broadcast"):
        return
    terms = definition.broadcast
    if definition.WhichOneof("training") == "statistics":
        raise ConfigurationError("Expected no broadcast terms in a task of statistics: its devices fetch no rows")
    if terms.method not in _WIRE.values():
        raise ConfigurationError(f"Expected broadcast.method={terms.method} to be a method that this version knows")
    wanted = terms.method == broadcast_pb2.BroadcastTerms.METHOD_PIR
    slices = definition.dpam.slices_per_device
    if wanted and not 1 <= slices <= MOST_PIR_KEYS:
        raise ConfigurationError(
            f"Expected slices_per_device={slices} to be at most {MOST_PIR_KEYS} with method='pir'; lower it, or "
            "max_items_per_user"
        )
    if wanted:
        require_x25519(terms.helper_key, name="broadcast.helper_key")
    elif terms.helper_key:
        raise ConfigurationError("Expected no broadcast.helper_key: this method asks no helper")
