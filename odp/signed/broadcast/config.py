"""The developer's setting for how the devices of a task get the rows of its model."""

from __future__ import annotations

import re
from dataclasses import dataclass

from odp._validate import one_of, strict_keywords
from odp.crypto.public_keys import KEY_BYTES, require_x25519
from odp.errors import ConfigurationError
from odp.signed.broadcast.planner import plan
from odp.signed.broadcast.terms import AUTO, ENCLAVE, METHODS, PIR, WIRE_METHODS
from odp.v1 import broadcast_pb2, common_pb2

_KEY = re.compile(rf"[0-9a-f]{{{2 * KEY_BYTES}}}")


@strict_keywords
@dataclass(frozen=True, kw_only=True)
class Broadcast:
    """How devices get the rows that they need; docs/partial-broadcast.md lists what each method reveals to whom.

    Attributes:
      method: "enclave": sealed keys to the attested enclave. "all": the whole model, rows are picked on the device.
        "pir": two parties, the distributor's host and a helper, neither of which learns anything unless both conspire.
        "auto": the cheapest of those that the task may use, decided when the task is made (``odp task plan`` prints
        why).
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
            raise ConfigurationError(f"Expected no helper_key with method={self.method!r}: it uses no helper")

    def resolve(self, definition: common_pb2.TaskDefinition) -> broadcast_pb2.BroadcastTerms | None:
        """The terms for a task of this ``definition``; None for those that the wire form omits."""
        method = self.method
        if method == AUTO:
            method = plan(definition, helper=bool(self.helper_key)).chosen
        if method == ENCLAVE:
            return None
        key = bytes.fromhex(self.helper_key) if method == PIR else b""
        return broadcast_pb2.BroadcastTerms(method=WIRE_METHODS[method], helper_key=key)
