"""The method by which the devices of a task get the rows of its model: signed with the task, equal for all.

A distributor can serve a model, a request for rows of it and a reply up to some sizes. A task beyond these sizes could
never run. It is refused when it is made, by the tables that its algorithm declares, and wherever it is opened; a
distributor checks the manifest of each published model by the same function.

=========  =============================  =======================================================================
method     a request                      a reply
=========  =============================  =======================================================================
enclave    4 MiB: 4 bytes for each row    15 MiB: its rows and the dense tables, in one message
all        none                           in pieces; the enclave of the distributor answers for every model that
                                          it holds, so its 15 MiB hold here, too
pir        512 rows                       15 MiB as above; then the answer of the two parties is below 32 MiB
=========  =============================  =======================================================================
"""

from __future__ import annotations

from dataclasses import dataclass

from odp.algorithms.registry import algorithm_for
from odp.crypto.public_keys import require_x25519
from odp.errors import ConfigurationError
from odp.protocol.wire.encoding import row_bytes
from odp.v1 import broadcast_pb2, common_pb2

AUTO, ALL, ENCLAVE, PIR = "auto", "all", "enclave", "pir"
METHODS = (AUTO, ALL, ENCLAVE, PIR)
#: Most rows of one request to two parties (``odp.crypto.pir.shape``).
MOST_PIR_KEYS = 512

#: Method -> its number in the signed task; those that are missing are never in one.
WIRE_METHODS = {
    ENCLAVE: broadcast_pb2.BroadcastTerms.METHOD_UNSPECIFIED,
    ALL: broadcast_pb2.BroadcastTerms.METHOD_ALL,
    PIR: broadcast_pb2.BroadcastTerms.METHOD_PIR,
}
#: Largest model, all tables together.
MAX_MODEL_BYTES = 2**30
#: Longest reply to a Select: it travels as one message, whose limit is 16 MiB with room for its framing.
MAX_SELECTED_BYTES = 15 * 2**20
#: Longest list of keys in a request.
MAX_KEYS_BYTES = 4 * 2**20
KEY_BYTES = 4


def method_of(definition: common_pb2.TaskDefinition) -> str:
    """ENCLAVE, ALL or PIR: the method in a checked definition."""
    return next(name for name, number in WIRE_METHODS.items() if number == definition.broadcast.method)


def check_broadcast(definition: common_pb2.TaskDefinition) -> None:
    """Raises ConfigurationError unless this version can follow the terms."""
    if not definition.HasField("broadcast"):
        return
    terms = definition.broadcast
    if (slices := algorithm_for(definition).rows_per_request) is None:
        raise ConfigurationError("Expected no broadcast terms in a task whose devices fetch no rows")
    if terms.method not in WIRE_METHODS.values():
        raise ConfigurationError(f"Expected broadcast.method={terms.method} to be a method that this version knows")
    wanted = terms.method == broadcast_pb2.BroadcastTerms.METHOD_PIR
    if wanted and not 1 <= slices <= MOST_PIR_KEYS:
        raise ConfigurationError(
            f"Expected slices_per_device={slices} to be at most {MOST_PIR_KEYS} with method='pir'; lower it, or "
            "max_items_per_user"
        )
    if wanted:
        require_x25519(terms.helper_key, name="broadcast.helper_key")
    elif terms.helper_key:
        raise ConfigurationError("Expected no broadcast.helper_key: this method uses no helper")


@dataclass(frozen=True, kw_only=True)
class ServedSizes:
    """The sizes of a model's tables.

    Attributes:
      rows, row_bytes: of the keyed table; 0 without one.
      keys: rows that a device asks for; 0 without a keyed table.
      dense_bytes: of all other tables, which every device gets whole.
    """

    rows: int
    row_bytes: int
    keys: int
    dense_bytes: int

    @classmethod
    def of(cls, definition: common_pb2.TaskDefinition) -> ServedSizes:
        """Of the tables that the task's algorithm declares. Raises ConfigurationError as ``algorithm_for``."""
        algorithm = algorithm_for(definition)
        keyed = next((table for table in algorithm.tables if table.keyed), None)
        return cls(
            rows=0 if keyed is None else keyed.rows,
            row_bytes=0 if keyed is None else row_bytes(keyed.width, algorithm.encoding),
            keys=0 if keyed is None else algorithm.rows_per_request or 0,
            dense_bytes=sum(
                table.rows * row_bytes(table.width, "float32") for table in algorithm.tables if not table.keyed
            ),
        )

    def check(self) -> None:
        """Raises ConfigurationError where no distributor takes such a model."""
        model = self.rows * self.row_bytes + self.dense_bytes
        if model > MAX_MODEL_BYTES:
            raise ConfigurationError(
                f"Expected model_bytes={model} to be at most {MAX_MODEL_BYTES} (1 GiB); lower the items or the rank"
            )
        reply = self.keys * self.row_bytes + self.dense_bytes
        if self.rows and reply > MAX_SELECTED_BYTES:
            raise ConfigurationError(
                f"Expected reply_bytes={reply} ({self.keys} rows of {self.row_bytes} bytes, and {self.dense_bytes} of "
                f"dense tables) to be at most {MAX_SELECTED_BYTES} (15 MiB); lower slices_per_device or the rank"
            )


def check_sizes(definition: common_pb2.TaskDefinition) -> None:
    """Returns if devices can get the model of a task, whose other fields were checked.

    Raises:
      ConfigurationError: the model, or a device's request or reply, is beyond what a distributor serves.
    """
    sizes = ServedSizes.of(definition)
    sizes.check()
    request = sizes.keys * KEY_BYTES
    if method_of(definition) == ENCLAVE and request > MAX_KEYS_BYTES:
        raise ConfigurationError(
            f"Expected request_bytes={request} ({sizes.keys} keys of {KEY_BYTES} bytes) to be at most {MAX_KEYS_BYTES} "
            "(4 MiB); lower slices_per_device, or take broadcast.method='all'"
        )
