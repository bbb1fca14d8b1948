"""The developer's setting for how the devices of a task get the rows of its model, and the plan that chooses a method.

The plan takes the method that gets the rows of a table to devices for the fewest bytes and processor seconds of the
servers.

The cost of a method is how long a device of the reference connection below is busy with its bytes, plus the time that
the servers' processors are busy for it. Bytes are exact, from the formats of docs/protocol.md. Times follow a model
with the constants below, fitted to ``python -m benchmarks distributor`` (docs/partial-broadcast.md, section 7); numbers
of another machine differ, mostly by one factor for all methods.

``pir`` is ruled out without a declared helper, whatever it costs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from odp import _validate
from odp._validate import one_of, strict_keywords
from odp.algorithms.registry import algorithm_for
from odp.crypto.public_keys import KEY_BYTES as HELPER_KEY_BYTES, require_x25519
from odp.errors import ConfigurationError
from odp.signed.broadcast.terms import (
    ALL,
    AUTO,
    ENCLAVE,
    KEY_BYTES,
    MAX_KEYS_BYTES,
    METHODS,
    MOST_PIR_KEYS,
    PIR,
    WIRE_METHODS,
    ServedSizes,
)
from odp.v1 import broadcast_pb2, common_pb2

if TYPE_CHECKING:
    from odp.crypto.pir.shape import Shape

_KEY = re.compile(rf"[0-9a-f]{{{2 * HELPER_KEY_BYTES}}}")
#: The reference connection of a device: 10 Mbit/s down, 2.5 Mbit/s up.
DOWN_SECONDS_PER_BYTE = 8e-7
UP_SECONDS_PER_BYTE = 3.2e-6

# Seconds of processor time, all processes of the service together.
_CALL = 6e-4
_SENT_BYTE = 7e-10
# Enclave: reading the table once, and one more key in the matrix product.
_PASS_BYTE, _PASS_BYTE_KEY = 5e-11, 2.7e-12
# Two parties: scan, of records of some cache lines and of wider ones, and evaluation of the functions at each row, at
# each of the two.
_SCAN_BYTE, _WIDE_SCAN_BYTE, _SCAN_ROW = 1.1e-10, 2e-10, 1e-8
_WIDE_RECORD = 512

_BLOCK_BYTES, _BLOCK_HASH_BYTES = 2**16, 32
# Protobuf fields, HPKE and AES-GCM around keys and rows.
_FRAME_BYTES = 130
_NO_HELPER = "no helper is declared (broadcast.helper_key)"


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
                f"Expected helper_key={self.helper_key[:16]!r}.. to be {2 * HELPER_KEY_BYTES} hex digits; "
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


@dataclass(frozen=True)
class Cost:
    """The cost of one method for one table, per device and round.

    Attributes:
      method: its name.
      up, down: bytes of messages.
      cpu: seconds of the servers' processors, all of them together.
      excluded: why it cannot be chosen; empty where it can.
      note: what decides its cost.
    """

    method: str
    up: float
    down: float
    cpu: float
    note: str
    excluded: str = ""

    @property
    def seconds(self) -> float:
        """The compared cost: transfer on the reference connection and processor time."""
        return self.up * UP_SECONDS_PER_BYTE + self.down * DOWN_SECONDS_PER_BYTE + self.cpu


@dataclass(frozen=True)
class TablePlan:
    """The costs of every method for one table; ``chosen`` is the cheapest that may be used."""

    name: str
    rows: int
    row_bytes: int
    keys: int
    dense_bytes: int
    costs: tuple[Cost, ...]

    @property
    def chosen(self) -> str:
        """The method's name. Of equal costs, the first in the list: it needs fewer parties."""
        return min((cost for cost in self.costs if not cost.excluded), key=lambda cost: cost.seconds).method


def plan(definition: common_pb2.TaskDefinition, *, helper: bool) -> TablePlan:
    """The plan for the keyed table of a task: its model changes in every round.

    Args:
      definition: of a task that trains a model, every number resolved.
      helper: whether a helper is declared.

    Raises:
      ConfigurationError: the task has no keyed table, or a number of it is out of range.
    """
    if (keyed := next((table for table in algorithm_for(definition).tables if table.keyed), None)) is None:
        raise ConfigurationError("Expected a task with a keyed table: devices of other tasks fetch no rows")
    return plan_table(keyed.name, **asdict(ServedSizes.of(definition)), helper=helper)


def plan_table(
    name: str,
    *,
    rows: int,
    row_bytes: int,
    keys: int,
    dense_bytes: int = 0,
    helper: bool = False,
) -> TablePlan:
    """The plan for one table.

    Args:
      name: of the table.
      rows, row_bytes: its shape.
      keys: rows that every device asks for.
      dense_bytes: of what every device gets with them, whole.
      helper: whether a helper is declared.

    Raises:
      ConfigurationError: a number is out of range.
    """
    _validate.integer(low=1, high=2**26, rows=rows)
    _validate.integer(low=1, high=2**20, row_bytes=row_bytes)
    _validate.integer(low=1, high=2**31, keys=keys)
    _validate.integer(low=0, high=2**31, dense_bytes=dense_bytes)
    costs = (
        _all(rows * row_bytes + dense_bytes),
        _enclave(rows, row_bytes, keys, dense_bytes),
        _two_parties(rows, row_bytes, keys, dense_bytes, helper=helper),
    )
    return TablePlan(name, rows, row_bytes, keys, dense_bytes, costs)


def reasons(plan: TablePlan) -> Sequence[tuple[str, str]]:
    """(method, one sentence) for every method: what it costs, or why it cannot be chosen."""
    least = min(cost.seconds for cost in plan.costs if not cost.excluded)
    sentences = []
    for cost in plan.costs:
        if cost.method == plan.chosen:
            reason = f"chosen: {cost.note}"
        elif cost.excluded:
            reason = f"not eligible: {cost.excluded}"
        else:
            reason = f"{cost.seconds / least:.1f} times the cost: {cost.note}"
        sentences.append((cost.method, reason))
    return tuple(sentences)


def _all(size: int) -> Cost:
    # A table of another version has its changed blocks listed first; after a round of training all of them changed.
    blocks = -(-size // _BLOCK_BYTES)
    listed = 0 if blocks < 2 else blocks * _BLOCK_HASH_BYTES
    return Cost(
        ALL,
        up=60,
        down=size + listed,
        cpu=_CALL + size * _SENT_BYTE + (_CALL if listed else 0.0),
        note="every round of training changes every block",
    )


def _enclave(rows: int, row_bytes: int, keys: int, dense_bytes: int) -> Cost:
    cpu = 2 * _CALL + rows * row_bytes * (_PASS_BYTE + _PASS_BYTE_KEY * keys)
    most = MAX_KEYS_BYTES // KEY_BYTES
    return Cost(
        ENCLAVE,
        up=keys * KEY_BYTES + _FRAME_BYTES,
        down=keys * row_bytes + dense_bytes + _FRAME_BYTES,
        cpu=cpu,
        note="one pass over the table for all keys, inside the enclave",
        excluded=f"more than {most} rows per device" if keys > most else "",
    )


def _two_parties(rows: int, row_bytes: int, keys: int, dense_bytes: int, *, helper: bool) -> Cost:
    excluded = "" if helper else _NO_HELPER
    if keys > MOST_PIR_KEYS:
        return Cost(PIR, 0, 0, 0, "", excluded=f"more than {MOST_PIR_KEYS} rows per device")
    from odp.crypto.pir import two_server

    shape = _shape(rows, row_bytes, keys)
    each = _SCAN_BYTE if shape.record_bytes <= _WIDE_RECORD else _WIDE_SCAN_BYTE
    scan = rows * shape.record_bytes * each + rows * _SCAN_ROW
    return Cost(
        PIR,
        up=2 * two_server.request_bytes(shape) + 2 * _FRAME_BYTES,
        down=two_server.reply_bytes(shape) + len(shape.to_bytes()) + dense_bytes + _FRAME_BYTES,
        # The leader is called twice, and is itself a caller of the helper.
        cpu=5 * _CALL + 2 * scan,
        note=f"{shape.layout.buckets} buckets, one pass over the table at each of two parties",
        excluded=excluded,
    )


def _shape(rows: int, row_bytes: int, keys: int) -> Shape:
    """The public shape of a table without its content: sufficient for lengths."""
    from odp.crypto.pir import records
    from odp.crypto.pir.shape import SEED_BYTES, Shape

    cap = bytes(records.cap_nodes(rows, row_bytes) * records.NODE_BYTES)
    return Shape(rows, row_bytes, keys, bytes(SEED_BYTES), bytes(32), cap)
